"""K-means against scikit-learn, and alone against in a stack."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans, kmeans_plusplus
from torch import Tensor

from hidden_uncertainty.density.gaussian import _kmeans
from hidden_uncertainty.density.gaussian._kmeans import _plus_plus, candidates, kmeans


def draws(components: int, seed: int = 0, stack: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(stack, components, candidates(components), generator=generator, dtype=torch.float64)


def clustered(n: int = 400, dim: int = 2, clusters: int = 8, seed: int = 0, spread: float = 0.6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 5 * torch.randn(clusters, dim, generator=generator, dtype=torch.float64)
    noise = spread * torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return centres[torch.arange(n) % clusters] + noise


def assign(x: Tensor, components: int, uniform: Tensor) -> Tensor:
    """The cluster of each row of one class (n,)."""
    member = kmeans(x[None], torch.ones(1, len(x), dtype=x.dtype), components, uniform)
    assert member.shape == (1, len(x), components)
    assert torch.equal(member.sum(-1), torch.ones_like(member[..., 0]))
    return member[0].argmax(-1)


def inertia(x: Tensor, label: Tensor) -> float:
    return sum(float((x[label == c] - x[label == c].mean(0)).square().sum()) for c in label.unique())


def potential(x: Tensor, centres: Tensor) -> float:
    return float(torch.cdist(x, centres).square().amin(1).sum())


@pytest.mark.parametrize(("spread", "seed"), [(0.6, 0), (1.5, 1)])
def test_as_good_as_scikit_learn_on_average(spread: float, seed: int) -> None:
    x = clustered(seed=seed, spread=spread)
    present = torch.ones(1, len(x), dtype=x.dtype)
    starts = [potential(x, _plus_plus(x[None], x.square().sum(1)[None], present, 8, draws(8, s))[0]) for s in range(40)]
    peers = [potential(x, torch.from_numpy(kmeans_plusplus(x.numpy(), 8, random_state=s)[0])) for s in range(40)]
    assert np.mean(starts) <= 1.05 * np.mean(peers)
    ours = [inertia(x, assign(x, 8, draws(8, s))) for s in range(40)]
    theirs = [KMeans(8, n_init=1, random_state=s).fit(x.numpy()).inertia_ for s in range(40)]
    assert np.mean(ours) <= 1.05 * np.mean(theirs)


@pytest.mark.parametrize("seed", range(4))
def test_lloyd_as_scikit_learn_from_the_same_centres(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = clustered(1000, dim=3, clusters=5, seed=seed, spread=3)
    centres = x[:5]
    monkeypatch.setattr(_kmeans, "_plus_plus", lambda *_: centres[None])
    peer = KMeans(5, init=centres.numpy(), n_init=1, algorithm="lloyd").fit(x.numpy())
    assert np.array_equal(assign(x, 5, draws(5)).numpy(), peer.labels_)


@given(seed=st.integers(0, 1000), components=st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_a_stack_gives_each_class_what_it_gets_alone(seed: int, components: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(6, 300, (3,), generator=generator).tolist()
    classes = [torch.randn(n, 3, generator=generator, dtype=torch.float64) + 4 for n in sizes]
    x = 50 * torch.randn(3, max(sizes), 3, generator=generator, dtype=torch.float64)  # padding need not be zero
    present = torch.zeros(3, max(sizes), dtype=torch.float64)
    for b, rows in enumerate(classes):
        x[b, : len(rows)], present[b, : len(rows)] = rows, 1
    uniform = draws(components, seed, stack=3)
    together = kmeans(x, present, components, uniform)
    for b, rows in enumerate(classes):
        assert torch.equal(together[b, : len(rows)].argmax(-1), assign(rows, components, uniform[b : b + 1]))
        assert not together[b, len(rows) :].any()


def test_a_class_stops_when_it_would_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    classes = [torch.rand(3000, 2, generator=generator, dtype=torch.float64) for _ in range(4)]
    together = kmeans(torch.stack(classes), torch.ones(4, 3000, dtype=torch.float64), 6, draws(6, stack=4))
    for b, rows in enumerate(classes):
        assert torch.equal(together[b].argmax(-1), assign(rows, 6, draws(6, stack=4)[b : b + 1]))


@pytest.mark.parametrize("seed", range(3))
def test_sums_of_clusters_follow_rows_that_change(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Mock(side_effect=_kmeans._nearest)
    monkeypatch.setattr(_kmeans, "_nearest", steps)
    x = torch.rand(2, 2000, 8, generator=torch.Generator().manual_seed(seed))
    present = torch.ones(2, 2000)
    present[1, 1500:] = 0
    member = kmeans(x, present, 6, draws(6, seed, stack=2), tol=0).double()
    assert steps.call_count > 20
    mean = torch.bmm(member.mT, x.double()) / member.sum(1)[..., None]
    distance = torch.cdist(x.double(), mean)  # each row is where it belongs, by means that are computed afresh
    assert torch.all(((distance * member).sum(2) - distance.amin(2)) * present < 1e-5)


def test_a_row_halfway_joins_the_first_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[-1.0], [0.0], [1.0], [7.0], [9.0]], dtype=torch.float64)
    monkeypatch.setattr(_kmeans, "_plus_plus", lambda *_: torch.tensor([[[8.0], [1.0], [-1.0]]], dtype=torch.float64))
    assert assign(x, 3, draws(3)).tolist() == [2, 1, 1, 0, 0]


def test_empty_clusters_are_given_the_farthest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [9.0]], dtype=torch.float64)
    start = torch.tensor([[[0.0], [100.0], [200.0]]], dtype=torch.float64)
    monkeypatch.setattr(_kmeans, "_plus_plus", lambda *_: start)
    label = assign(x, 3, draws(3))
    assert label[0] == label[1] == label[2]
    assert len(label.unique()) == 3
    distance, size = x.square().mT[None], torch.tensor([[5, 0, 0]])
    filled = _kmeans._fill_empty(x[None], torch.tensor([[1.0, 1, 1, 1, 0]]), distance, size, start)
    assert filled[0, :, 0].tolist() == [0, 5, pytest.approx(0.2)]  # the last row is padding


@given(distinct=st.integers(1, 3), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_fewer_distinct_points_than_clusters(distinct: int, seed: int) -> None:
    points = torch.randn(distinct, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    which = torch.arange(20) % distinct
    label = assign(points[which], 5, draws(5, seed))
    for point in range(distinct):
        assert len(label[which == point].unique()) == 1
    assert len(label.unique()) == distinct


def test_as_many_rows_as_clusters() -> None:
    x = clustered(8)
    assert sorted(assign(x, 8, draws(8)).tolist()) == list(range(8))


def test_each_row_joins_one_cluster_even_where_distances_overflow() -> None:
    x = clustered().float()
    x[::2] *= 1e30
    assign(x, 4, draws(4))


def test_the_draws_alone_decide() -> None:
    x = clustered(spread=4)
    state = torch.get_rng_state()
    one, two = assign(x, 6, draws(6, 1)), assign(x, 6, draws(6, 1))
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), state)
    assert any(not torch.equal(one, assign(x, 6, draws(6, seed))) for seed in range(2, 6))


def test_points_are_drawn_by_their_weight() -> None:
    weight = torch.tensor([[0.0, 3.0, 0.0, 1.0, 0.0]])
    uniform = torch.linspace(0, 1, 4001, dtype=torch.float64)[None, :-1]
    assert torch.bincount(_kmeans._draw(weight, uniform)[0], minlength=5).tolist() == [0, 3000, 0, 1000, 0]


def test_as_many_candidates_as_scikit_learn() -> None:
    assert [candidates(k) for k in (1, 2, 3, 8, 20)] == [2, 2, 3, 4, 4]
