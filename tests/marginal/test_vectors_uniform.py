from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from hidden_uncertainty.marginal import Uniform


def test_as_scipy() -> None:
    marginal = Uniform(-10, 10, points=1000).fit(torch.tensor([-3.0, 7.0], dtype=torch.float64))
    reference = stats.uniform(-10, 20)
    y = torch.linspace(-12, 12, 49, dtype=torch.float64)
    torch.testing.assert_close(marginal.log_prob(y), torch.as_tensor(reference.logpdf(y)))
    torch.testing.assert_close(marginal.cdf(y), torch.as_tensor(reference.cdf(y)))


def test_a_flat_likelihood_is_summed_over_all_of_the_papers_support() -> None:
    marginal = Uniform(-10, 10, points=1000).fit(torch.tensor([-3.0, 7.0]))
    points, log_weight, log_volume = marginal.at(torch.zeros(1), lambda points: torch.zeros(1, points.shape[-2]))
    torch.testing.assert_close(points[0, :, 0], torch.linspace(-10, 10, 1000, dtype=torch.float64))
    assert log_volume is not None
    torch.testing.assert_close(log_weight, log_volume - math.log(20))
    assert log_weight.exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_fitted_bounds_leave_a_mean_gap() -> None:
    marginal = Uniform().fit(torch.tensor([3.0, 1.0, 2.0, 5.0]))
    torch.testing.assert_close(marginal.bounds, torch.tensor([1 - 4 / 3, 5 + 4 / 3]))
    assert torch.equal(marginal.at(torch.zeros(1)).points[[0, -1], 0].float(), marginal.bounds)
    half = Uniform(low=0).fit(torch.tensor([3.0, 1.0, 2.0, 5.0]))
    torch.testing.assert_close(half.bounds, torch.tensor([0, 5 + 4 / 3]))


def test_bounds_in_single_precision_hold_values_at_them() -> None:
    y = torch.tensor([0.1, 0.5, 0.7])
    marginal = Uniform(0.1, 0.7).fit(y)  # as float32, 0.7 is below 0.7
    assert marginal.log_prob(y).isfinite().all()
    assert marginal.at(y).log_weight.isfinite().all()


def test_box() -> None:
    y = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0])
    marginal = Uniform().fit(y)
    low, high = marginal.bounds
    expected = -(high - low).log().sum()
    torch.testing.assert_close(marginal.log_prob(y), expected.expand(50))
    assert marginal.log_prob(torch.tensor([[0.5, 20.0]])).item() == -math.inf
    torch.testing.assert_close(Uniform(-1, 9).fit(y).bounds, torch.tensor([[-1.0, -1.0], [9.0, 9.0]]))


def test_values_outside_given_bounds() -> None:
    with pytest.raises(
        ValueError,
        match=r"2 of 3 predictions lie outside Uniform\(low=-1\.0, high=1\.0\); they reach from -3 to 2\. Give",
    ):
        Uniform(-1, 1).fit(torch.tensor([-3.0, 0.0, 2.0]))
    with pytest.raises(ValueError, match=r"1 of 2 predictions lie outside Uniform\(low=0\.0\)"):
        Uniform(low=0).fit(torch.tensor([[-3.0, -1.0], [1.0, 2.0]]))
