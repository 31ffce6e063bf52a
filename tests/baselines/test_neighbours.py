import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from torch import nn

from hidden_uncertainty.baselines import neighbours
from hidden_uncertainty.baselines.kernel import Credibility
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


@pytest.mark.parametrize("backend", ["torch", "faiss", "auto"])
@pytest.mark.parametrize("normalise", [True, False])
def test_scores_are_the_distances_of_scikit_learn(trained, data, normalise, backend):
    if backend == "faiss":
        pytest.importorskip("faiss")
    method = NearestNeighbours(trained, "hidden", k=5, normalise=normalise, backend=backend).fit(data["train"])
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


def test_faiss_finds_who_torch_finds():
    pytest.importorskip("faiss")
    points, z = random(500, 8), random(40, 8, seed=1)
    exact, fast = Index(points, 9).search(z, 9), Index(points, 9, "faiss").search(z, 9)
    assert torch.equal(exact[0], fast[0]) and torch.equal(exact[1], fast[1])
    assert Index(points, 9, "faiss").search(z.double() * 1e100, 9)[0].isfinite().all()


def test_faiss_is_asked_for_by_name(trained, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ImportError, match=r"hidden-uncertainty\[faiss\]"):
        NearestNeighbours(trained, "hidden", backend="faiss")


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
    [({"k": 0}, "k must be a whole number"), ({"backend": "ann"}, "backend must be one of"), ({"k": 2.5}, "k must be")],
)
def test_options_are_checked(trained, options, text):
    with pytest.raises(ValueError, match=text):
        NearestNeighbours(trained, "hidden", **options)


class Line(nn.Module):
    """Negative numbers are class 0, others class 1; the second layer turns the line over and shifts it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Identity(), nn.Linear(1, 1)
        nn.init.constant_(self.second.weight, -1.0)
        nn.init.constant_(self.second.bias, 0.0)

    def forward(self, x):
        return torch.cat([self.second(self.first(x)), x], 1)


def test_credibility_of_a_worked_example():
    # Labels that the network gets wrong at -1 and 3.
    train = [(torch.tensor([[-3.0], [-2.0], [-1.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 0, 1, 1, 1, 0]))]
    # Two neighbours each: of -2.6 {-3, -2}, none disagrees; of -1.6 {-2, -1}, one; of 2.6 {3, 2}, one; of 0.9 {1, 2},
    # both, as its label is 0 although the network says 1.
    unseen = [(torch.tensor([[-2.6], [-1.6], [2.6], [0.9]]), torch.tensor([0, 0, 1, 0]))]
    method = Credibility(Line(), ["first", "second"], k=2, task="classification").fit(train, calibration=unseen)
    assert method.head.calibration.scores.tolist() == [0.0, 2.0, 2.0, 4.0]  # both layers agree, so each counts twice
    # -0.9 is called 0 but its neighbours {-1, -2} are 1 and 0; 1.6 is called 1 and {2, 1} are; -0.1: {-1, 1}, both 1
    u = method(torch.tensor([[-0.9], [1.6], [-0.1]]))
    assert u.prediction.tolist() == [0, 1, 0]
    assert u.layers["first"].epistemic.tolist() == u.layers["second"].epistemic.tolist() == [1.0, 0.0, 2.0]
    credibility = torch.tensor([(1 + 3) / 5, (1 + 4) / 5, (1 + 1) / 5])
    assert torch.allclose(u.p_value.float(), credibility) and torch.allclose(u.epistemic, 1 - credibility)
    assert method.threshold(0.5) == pytest.approx(1 - 4 / 5)  # of the third lowest count, 2
    assert method(torch.tensor([[-0.9], [1.6], [-0.1]])).surprising.tolist() == [False, False, True]


def test_credibility_needs_calibration(trained, data):
    with pytest.raises(ValueError, match="calibration=unseen_loader"):
        Credibility(trained, "hidden").fit(data["train"])
    method = Credibility(trained, "hidden")
    with pytest.raises(ValueError, match="calibration=unseen_loader"):
        method.fit_features(method.extract(data["train"]))
