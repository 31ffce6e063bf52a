"""Points in memory: parts of them stay together."""

from __future__ import annotations

import pytest
import torch

from reproduction.datasets import Points


def points(n: int = 10) -> Points:
    return Points(torch.arange(2.0 * n).reshape(n, 2), 2 * torch.arange(float(n)))


def test_parts_keep_inputs_and_targets_together() -> None:
    for part in (points()[2:5], points()[points().y > 7], points()[torch.tensor([3, 0])]):
        assert torch.equal(part.x[:, 0], part.y)
        assert len(part) == len(part.x)
    batches = points().batches(4)
    assert [len(y) for _, y in batches] == [4, 4, 2]
    assert torch.equal(torch.cat([x for x, _ in batches]), points().x)


@pytest.mark.parametrize(("share", "count"), [(0.1, 1), (0.25, 2), (0.5, 5), (0.94, 9)])
def test_dividing_leaves_each_point_in_one_part(share: float, count: int) -> None:
    before = torch.random.get_rng_state()
    one, rest = points().divide(share, seed=3)
    assert (len(one), len(rest)) == (count, 10 - count)
    assert sorted([*one.y.tolist(), *rest.y.tolist()]) == points().y.tolist()
    assert torch.equal(one.x[:, 0], one.y)
    assert torch.equal(points().divide(share, seed=3)[0].y, one.y)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_seed_decides_the_division() -> None:
    assert not torch.equal(points().divide(0.5, seed=0)[0].y, points().divide(0.5, seed=1)[0].y)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 0.01, 0.99, 2.0, float("nan")])
def test_shares_that_leave_nothing(share: float) -> None:
    with pytest.raises(ValueError, match=r"at least one of the 10 points in both parts, got"):
        points().divide(share)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"expected x \(n, d\) and y \(n,\), got \(3,\) and \(3,\)"):
        Points(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"got \(3, 2\) and \(3, 1\)"):
        Points(torch.zeros(3, 2), torch.zeros(3, 1))
