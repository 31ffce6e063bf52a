import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from torch import nn

from hidden_uncertainty.baselines import neighbours
from hidden_uncertainty.baselines.neighbours import Index, NearestNeighbours


def random(n: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 60),
    dim=st.integers(1, 5),
    queries=st.integers(1, 20),
    shift=st.sampled_from([0.0, 1e4]),
    data=st.data(),
)
def test_search_is_exact(n, dim, queries, shift, data):
    k = data.draw(st.integers(1, n))
    points, z = random(n, dim) + shift, random(queries, dim, seed=1) + shift
    away, index = Index(points, k).search(z, k)
    reference = (z.double()[:, None] - points.double()).norm(dim=-1)
    assert torch.allclose(away, reference.sort(1).values[:, :k], rtol=1e-12)
    assert torch.allclose(reference.gather(1, index), away)
    assert all(len(set(row)) == k for row in index.tolist())


def test_blocks_do_not_show(monkeypatch):
    points, z = random(300, 4), random(50, 4, seed=1)
    whole = Index(points, 7).search(z, 7)
    monkeypatch.setattr(neighbours, "POINTS", 16)
    monkeypatch.setattr(neighbours, "QUERIES", 3)
    assert all(torch.equal(a, b) for a, b in zip(whole, Index(points, 7).search(z, 7), strict=True))


@pytest.mark.parametrize("normalise", [True, False])
def test_scores_are_the_distances_of_scikit_learn(trained, data, normalise):
    method = NearestNeighbours(trained, "hidden", k=5, normalise=normalise).fit(data["train"])
    got = method.predict(data["test"]).epistemic
    trained.eval()
    train, test = (
        trained.hidden(trained.body(torch.cat([x for x, _ in data[part]]))).detach() for part in ("train", "test")
    )
    if normalise:
        train, test = (z / z.norm(dim=1, keepdim=True) for z in (train, test))
    away, _ = (
        NearestNeighbors(n_neighbors=5, algorithm="brute").fit(train.double().numpy()).kneighbors(test.double().numpy())
    )
    assert torch.allclose(got.double(), torch.from_numpy(away[:, -1]), rtol=1e-3, atol=1e-5)


def test_several_layers_are_standardised_without_meeting_themselves(trained, data):
    method = NearestNeighbours(trained, ["body.0", "hidden"], k=1, normalise=False).fit(data["train"])
    assert all(
        standard.mean > 0 for standard in method.head.combination.learnt.values()
    )  # each row is its own nearest, at 0
    u, far = method.predict(data["test"]), method(data["far"])
    assert abs(u.epistemic.mean()) < 0.5 and 0.3 < u.epistemic.std() < 3
    assert far.epistemic.min() > u.epistemic.max()


def test_numbers_are_welcome(data):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    loader = [(x, x[:, 0] * 1.5) for x, _ in data["train"]]
    u = NearestNeighbours(model, "0", k=3).fit(loader)(data["far"])
    assert u.prediction.is_floating_point() and u.epistemic.shape == (5,)


def test_more_neighbours_than_data_is_an_error(trained, data):
    with pytest.raises(ValueError, match="k=601 neighbours are asked for, but there are 600"):
        NearestNeighbours(trained, "hidden", k=601).fit(data["train"])


@pytest.mark.parametrize(
    ("options", "text"),
    [({"k": 0}, "k must be a whole number"), ({"k": 2.5}, "k must be")],
)
def test_options_are_checked(trained, options, text):
    with pytest.raises(ValueError, match=text):
        NearestNeighbours(trained, "hidden", **options)
