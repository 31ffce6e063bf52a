from __future__ import annotations

import pytest
import torch
from scipy import stats

from hidden_uncertainty.scoring.distribution import OutputDistribution

SUPPORT = torch.linspace(-8, 8, 2001, dtype=torch.float64)


def gaussians(means: list[float], deviations: list[float], prediction: list[float]) -> OutputDistribution:
    normal = torch.distributions.Normal(
        torch.tensor(means)[:, None].double(), torch.tensor(deviations)[:, None].double()
    )
    log_volume = torch.full_like(SUPPORT, 16 / 2000).log()
    return OutputDistribution(
        SUPPORT, torch.log_softmax(normal.log_prob(SUPPORT) + log_volume, 1), torch.tensor(prediction).double()
    )


def two_modes(apart: float = 6.0) -> OutputDistribution:
    one, two = (torch.distributions.Normal(m, 0.5).log_prob(SUPPORT) for m in (-apart / 2, apart / 2))
    mixed = torch.logaddexp(one + torch.tensor(0.7).log(), two + torch.tensor(0.3).log())
    return OutputDistribution(SUPPORT, torch.log_softmax(mixed, 0)[None], torch.tensor([0.0]).double())


def test_moments_and_quantiles_of_gaussians() -> None:
    d = gaussians([0.0, 1.5], [1.0, 0.3], [0.0, 1.5])
    torch.testing.assert_close(d.mean, torch.tensor([0.0, 1.5]).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(d.deviation, torch.tensor([1.0, 0.3]).double(), atol=1e-4, rtol=0)
    for share in (0.025, 0.5, 0.9):
        expected = [stats.norm.ppf(share, m, s) for m, s in ((0, 1), (1.5, 0.3))]
        assert d.quantile(share).tolist() == pytest.approx(expected, abs=1e-4)
        assert d.cdf(d.quantile(share)).tolist() == pytest.approx([share, share], abs=1e-6)
    assert d.density.amax(1).tolist() == pytest.approx([0.3989, 1.3298], abs=1e-3)


def test_outwards_takes_half_of_the_mass_each_way() -> None:
    d = gaussians([0.0, 0.0], [1.0, 1.0], [0.0, 1.0])
    low, high, mass = d.outwards(0.2)
    start = stats.norm.cdf([0.0, 1.0])
    assert low.tolist() == pytest.approx(stats.norm.ppf(start - 0.1), abs=1e-4)
    assert high.tolist() == pytest.approx(stats.norm.ppf(start + 0.1), abs=1e-4)
    assert mass.tolist() == pytest.approx([0.2, 0.2], abs=1e-9)


def test_outwards_ends_with_the_distribution() -> None:
    d = gaussians([0.0], [1.0], [6.0])
    low, high, mass = d.outwards(0.5)
    assert mass.item() == pytest.approx(0.25, abs=1e-6)
    assert low.item() == pytest.approx(stats.norm.ppf(0.75), abs=1e-3) and high.item() >= 6.0


def test_a_prediction_beyond_the_support_stays_in_its_region() -> None:
    low, high, _ = gaussians([0.0], [1.0], [20.0]).outwards(0.5)
    assert low.item() < high.item() and high.item() == 20.0


@pytest.mark.parametrize("mass", [0.2, 0.5, 0.9])
def test_regions_hold_their_mass_of_samples(mass: float) -> None:
    d = two_modes(2.0)
    generator = torch.Generator().manual_seed(0)
    which = torch.rand(200_000, generator=generator) < 0.7
    y = torch.where(which, -1.0, 1.0) + 0.5 * torch.randn(200_000, generator=generator)
    low, high, held = d.outwards(mass)
    assert ((y > low) & (y < high)).double().mean().item() == pytest.approx(held.item(), abs=0.005)


@pytest.mark.parametrize("mass", [0.0, 1.0, 20.0])
def test_a_mass_that_is_no_share(mass: float) -> None:
    with pytest.raises(ValueError, match=f"between 0 and 1, both excluded; got {mass}"):
        two_modes().outwards(mass)


def test_every_input_may_have_its_own_points() -> None:
    """As on one grid for all, but far apart, and of different widths."""
    means, deviations = torch.tensor([0.0, 1e4]).double(), torch.tensor([1.0, 1e-3]).double()
    normal = torch.distributions.Normal(means[:, None], deviations[:, None])
    support = means[:, None] + deviations[:, None] * SUPPORT
    d = OutputDistribution(support, normal.log_prob(support).log_softmax(1), means)
    expected = torch.as_tensor(stats.norm.ppf(0.9, means, deviations))
    torch.testing.assert_close(d.quantile(0.9), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(d.deviation, deviations, rtol=1e-3, atol=0)
    torch.testing.assert_close(d.cdf(means), torch.full((2,), 0.5).double())
    low, high, _ = d.outwards(0.5)
    torch.testing.assert_close(
        (high - low) / deviations, torch.full((2,), 2 * stats.norm.ppf(0.75), dtype=torch.float64), rtol=1e-3, atol=0
    )
