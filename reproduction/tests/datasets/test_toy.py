"""The toy curve: the paper's formula, and points only where they are said to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from reproduction.datasets import Points
from reproduction.datasets.toy import GAP, Toy, curve, toy


def parts(data: Toy) -> dict[str, Points]:
    return {name: getattr(data, name) for name in ("train", "inside", "gap", "outside", "grid")}


def test_targets_are_the_curve_of_the_paper() -> None:
    for part in parts(toy()).values():
        x = part.x[:, 0].double().numpy()
        np.testing.assert_allclose(part.y, 0.5 * (np.sin(4 * np.pi * x - np.pi / 2) + x), atol=1e-7)
        assert part.x.dtype == part.y.dtype == torch.float32


def test_the_curve_maps_its_range_into_itself_and_swings_once_in_the_gap() -> None:
    y = curve(torch.linspace(-1, 1, 10_001, dtype=torch.float64))
    assert (float(y.min()), float(y.max())) == (pytest.approx(-1), pytest.approx(0.875, abs=1e-2))
    slopes = curve(torch.linspace(*GAP, 1001, dtype=torch.float64)).diff().sign()
    assert int((slopes.diff() < 0).sum()) == 1  # one top


@pytest.mark.parametrize("gap", [GAP, (-0.3, 0.1)])
def test_points_lie_where_they_are_said_to(gap: tuple[float, float]) -> None:
    low, high = gap
    data = toy(2000, gap=gap, evaluation=2000)
    for part in (data.train, data.inside):
        x = part.x[:, 0]
        assert (x.min() >= -1) and (x.max() <= 1)
        assert ((x <= np.float32(low)) | (x >= np.float32(high))).all()
        # Evenly over what is left: removing the gap and joining its ends gives a uniform distribution.
        joined = torch.where(x > low, x - (high - low), x).numpy()
        assert stats.kstest(joined, stats.uniform(-1, 2 - (high - low)).cdf).pvalue > 0.01
    assert stats.kstest(data.gap.x[:, 0].numpy(), stats.uniform(low, high - low).cdf).pvalue > 0.01
    beyond = data.outside.x[:, 0]
    assert stats.kstest(beyond.abs().numpy(), stats.uniform(1, 1).cdf).pvalue > 0.01
    assert 900 < int((beyond > 0).sum()) < 1100
    assert (float(data.grid.x.min()), float(data.grid.x.max())) == (-2, 2)


def test_sizes_and_seed() -> None:
    data = toy(30, evaluation=7, seed=1)
    assert [len(part) for part in parts(data).values()] == [30, 7, 7, 7, 1001]
    assert torch.equal(toy(30, evaluation=7, seed=1).train.x, data.train.x)
    assert not torch.equal(toy(30, evaluation=7, seed=2).train.x, data.train.x)
    assert not np.intersect1d(data.train.x, data.inside.x).size
    before = torch.random.get_rng_state()
    toy()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_noise_is_added_to_the_same_points_but_not_to_the_grid() -> None:
    quiet, noisy = parts(toy(4000, evaluation=4000)), parts(toy(4000, evaluation=4000, noise=0.1))
    for name, part in noisy.items():
        assert torch.equal(part.x, quiet[name].x)
        added = (part.y - quiet[name].y).numpy()
        if name == "grid":
            assert (added == 0).all()
        else:
            assert stats.kstest(added, stats.norm(scale=0.1).cdf).pvalue > 0.01


@pytest.mark.parametrize("gap", [(0.5, 0.1), (-1.0, 0.0), (0.5, 1.0), (float("nan"), 0.5)])
def test_gaps_that_are_none(gap: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"gap must be an interval inside \(-1, 1\), got"):
        toy(gap=gap)


def test_other_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0 and 500"):
        toy(0)
    with pytest.raises(ValueError, match="at least 1, got 750 and 0"):
        toy(evaluation=0)
    for noise in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="noise must be a standard deviation of 0 or more, got"):
            toy(noise=noise)
