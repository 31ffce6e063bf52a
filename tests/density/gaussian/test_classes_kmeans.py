"""K-means against scikit-learn, and alone against in a stack."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor

from hidden_uncertainty.density.gaussian import _classes
from hidden_uncertainty.density.gaussian._classes import _split, kmeans


def clustered(n: int = 400, dim: int = 2, clusters: int = 8, seed: int = 0, spread: float = 0.6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 5 * torch.randn(clusters, dim, generator=generator, dtype=torch.float64)
    noise = spread * torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return centres[torch.arange(n) % clusters] + noise


def assign(x: Tensor, components: int) -> Tensor:
    """The cluster of each row of one class (n,)."""
    member = kmeans(x[None], torch.ones(1, len(x), dtype=x.dtype), components)
    assert member.shape == (1, len(x), components)
    assert torch.equal(member.sum(-1), torch.ones_like(member[..., 0]))
    return member[0].argmax(-1)


def inertia(x: Tensor, label: Tensor) -> float:
    return sum(float((x[label == c] - x[label == c].mean(0)).square().sum()) for c in label.unique())


@pytest.mark.parametrize(("dim", "spread"), [(2, 0.6), (2, 1.5), (20, 4.0)])
def test_as_good_as_scikit_learn_on_average(dim: int, spread: float) -> None:
    ours, theirs = [], []
    for seed in range(80):
        x = clustered(dim=dim, seed=seed, spread=spread)
        ours.append(inertia(x, assign(x, 8)))
        theirs.append(KMeans(8, n_init=1, random_state=seed).fit(x.numpy()).inertia_)
    assert np.mean(ours) <= 1.05 * np.mean(theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_order_of_rows_does_not_matter(dtype: torch.dtype) -> None:
    for seed in range(5):
        x = clustered(dim=5, seed=seed, spread=2.0).to(dtype)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        assert (assign(x[order], 6) == assign(x, 6)[order]).float().mean() > 0.99


def test_splits_across_the_leading_direction() -> None:
    """Against an eigendecomposition, on a thin line of two parts, where few steps find it."""
    generator = torch.Generator().manual_seed(0)
    axis = torch.nn.functional.normalize(torch.randn(4, generator=generator, dtype=torch.float64), dim=0)
    place = torch.randn(300, 1, generator=generator, dtype=torch.float64) + 5 * (torch.arange(300) % 2)[:, None]
    x = place * axis + 0.1 * torch.randn(300, 4, generator=generator, dtype=torch.float64)
    leading = torch.linalg.eigh(torch.cov(x.mT)).eigenvectors[:, -1]
    right = (x - x.mean(0)) @ leading > 0
    expected = torch.stack([x[right].mean(0), x[~right].mean(0)])
    found = _split(x[None], torch.ones(1, 300, dtype=torch.float64), 2)[0]
    flipped = found if (found[0] - found[1]) @ leading > 0 else found.flip(0)
    torch.testing.assert_close(flipped, expected, rtol=1e-6, atol=1e-6)


def test_the_split_that_lowers_the_inertia_most_comes_first() -> None:
    centres = torch.tensor([[0.0, 0.0], [40.0, 0.0], [46.0, 3.0]], dtype=torch.float64)
    x = centres.repeat_interleave(50, 0) + clustered(150, clusters=1, spread=0.3) - clustered(1, clusters=1, spread=0)
    found = _split(x[None], torch.ones(1, 150, dtype=torch.float64), 3)[0]
    torch.testing.assert_close(found[found[:, 0].argsort()], centres, rtol=0, atol=0.3)


@pytest.mark.parametrize("seed", range(4))
def test_lloyd_as_scikit_learn_from_the_same_centres(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = clustered(1000, dim=3, clusters=5, seed=seed, spread=3)
    centres = x[:5]
    monkeypatch.setattr(_classes, "_split", lambda *_: centres[None])
    peer = KMeans(5, init=centres.numpy(), n_init=1, algorithm="lloyd").fit(x.numpy())
    assert np.array_equal(assign(x, 5).numpy(), peer.labels_)


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
    together = kmeans(x, present, components)
    for b, rows in enumerate(classes):
        assert torch.equal(together[b, : len(rows)].argmax(-1), assign(rows, components))
        assert not together[b, len(rows) :].any()


def test_a_class_stops_when_it_would_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    classes = [torch.rand(3000, 2, generator=generator, dtype=torch.float64) for _ in range(4)]
    together = kmeans(torch.stack(classes), torch.ones(4, 3000, dtype=torch.float64), 6)
    for b, rows in enumerate(classes):
        assert torch.equal(together[b].argmax(-1), assign(rows, 6))


@pytest.mark.parametrize("seed", range(3))
def test_sums_of_clusters_follow_rows_that_change(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Mock(side_effect=_classes._nearest)
    monkeypatch.setattr(_classes, "_nearest", steps)
    x = torch.rand(2, 2000, 8, generator=torch.Generator().manual_seed(seed))
    present = torch.ones(2, 2000)
    present[1, 1500:] = 0
    member = kmeans(x, present, 6, tol=0).double()
    assert steps.call_count > 10
    mean = torch.bmm(member.mT, x.double()) / member.sum(1)[..., None]
    distance = torch.cdist(x.double(), mean)  # each row is where it belongs, by means that are computed afresh
    assert torch.all(((distance * member).sum(2) - distance.amin(2)) * present < 1e-5)


def test_a_row_halfway_joins_the_first_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[-1.0], [0.0], [1.0], [7.0], [9.0]], dtype=torch.float64)
    monkeypatch.setattr(_classes, "_split", lambda *_: torch.tensor([[[8.0], [1.0], [-1.0]]], dtype=torch.float64))
    assert assign(x, 3).tolist() == [2, 1, 1, 0, 0]


def test_empty_clusters_are_given_the_farthest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [9.0]], dtype=torch.float64)
    start = torch.tensor([[[0.0], [100.0], [200.0]]], dtype=torch.float64)
    monkeypatch.setattr(_classes, "_split", lambda *_: start)
    label = assign(x, 3)
    assert label[0] == label[1] == label[2]
    assert len(label.unique()) == 3
    distance, size = x.square().mT[None], torch.tensor([[5, 0, 0]])
    filled = _classes._fill_empty(x[None], torch.tensor([[1.0, 1, 1, 1, 0]]), distance, size, start)
    assert filled[0, :, 0].tolist() == [0, 5, pytest.approx(0.2)]  # the last row is padding


@given(distinct=st.integers(1, 3), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_fewer_distinct_points_than_clusters(distinct: int, seed: int) -> None:
    points = torch.randn(distinct, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    which = torch.arange(20) % distinct
    label = assign(points[which], 5)
    for point in range(distinct):
        assert len(label[which == point].unique()) == 1
    assert len(label.unique()) == distinct


def test_as_many_rows_as_clusters() -> None:
    x = clustered(8)
    assert sorted(assign(x, 8).tolist()) == list(range(8))


def test_each_row_joins_one_cluster_even_where_distances_overflow() -> None:
    x = clustered().float()
    x[::2] *= 1e30
    assign(x, 4)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scales_do_not_matter(scale: float) -> None:
    x = clustered(spread=2).float()
    assert torch.equal(assign(x * scale, 6), assign(x, 6))
