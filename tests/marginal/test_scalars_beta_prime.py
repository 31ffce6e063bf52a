from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from hidden_uncertainty.marginal import BetaPrime

SHAPES = [(31.76, 3.07), (2.0, 30.0), (200.0, 100.0), (1.0, 4.0), (0.4, 5.0)]  # the first is the paper's


def draw(alpha: float, beta: float, n: int = 600) -> torch.Tensor:
    return torch.as_tensor(stats.betaprime.rvs(alpha, beta, size=n, random_state=np.random.default_rng(1)))


@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
def test_likeliest_as_in_scipy(alpha: float, beta: float) -> None:
    y = draw(alpha, beta)
    marginal = BetaPrime().fit(y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy's own, on the way
        expected = stats.betaprime.fit(y, floc=0, fscale=1)[:2]
    np.testing.assert_allclose(marginal.shape, expected, rtol=2e-4)
    assert marginal.log_prob(y).sum() >= stats.betaprime.logpdf(y, *expected).sum() - 1e-6
    # The slope is zero there, which scipy's simplex does not reach.
    shape = marginal.shape.clone().requires_grad_()
    torch.distributions.Beta(*shape).log_prob(y / (1 + y)).mean().backward()
    assert shape.grad is not None
    assert (shape.grad * shape).abs().max() < 1e-7


@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
def test_as_scipy(alpha: float, beta: float) -> None:
    marginal = BetaPrime().fit(draw(alpha, beta))
    reference = stats.betaprime(*marginal.shape.tolist())
    y = torch.tensor([1e-6, 0.1, 1, 5, 10, 80, 1e4], dtype=torch.float64)
    torch.testing.assert_close(marginal.log_prob(y), torch.as_tensor(reference.logpdf(y)), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(marginal.cdf(y), torch.as_tensor(reference.cdf(y)), rtol=1e-9, atol=1e-12)


def test_nothing_below_zero() -> None:
    marginal = BetaPrime().fit(draw(2, 30))
    assert marginal.log_prob(torch.tensor([-1.0, 0.0])).tolist() == [-math.inf, -math.inf]
    assert marginal.cdf(torch.tensor([-1.0, 0.0])).tolist() == [0, 0]


@pytest.mark.parametrize("end", [0.3, 40.0])
def test_a_pole_at_zero_and_a_long_tail_are_summed(end: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of what lies above
        marginal = BetaPrime(low=0, high=end).fit(draw(0.4, 1.5))
    assert marginal.log_prob(torch.zeros(1)).item() == math.inf
    flat = marginal.at(torch.zeros(1), lambda points: torch.zeros(1, points.shape[-2]))
    mass = stats.betaprime.cdf(end, *marginal.shape.tolist())
    assert flat.log_weight.exp().sum().item() == pytest.approx(mass, abs=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e15])
def test_a_fitted_scale_makes_it_scale_free(scale: float) -> None:
    y = draw(3, 5)
    one, other = BetaPrime(None).fit(y), BetaPrime(None).fit(scale * y)
    torch.testing.assert_close(other.shape, one.shape)
    torch.testing.assert_close(other.log_prob(scale * y), one.log_prob(y) - math.log(scale))
    torch.testing.assert_close(other.cdf(scale * y), one.cdf(y))
    with pytest.raises(ValueError, match="scale must be above zero, or None, not 0"):
        BetaPrime(0)


@pytest.mark.parametrize("scale", [1e-5, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_from_one(scale: float, dtype: torch.dtype) -> None:
    """Far from one it is a gamma distribution of y or of 1 / y."""
    y = torch.as_tensor(stats.gamma.rvs(9, size=600, random_state=np.random.default_rng(0)))
    y = y * scale if scale < 1 else scale / y
    marginal = BetaPrime().fit(y.to(dtype))
    gamma = (y if scale < 1 else 1 / y).numpy()
    a, _, width = stats.gamma.fit(gamma, floc=0)
    expected = stats.gamma.logpdf(gamma, a, scale=width) - (0 if scale < 1 else 2 * np.log(y.numpy()))
    np.testing.assert_allclose(marginal.log_prob(y), expected, atol=2e-3)


@pytest.mark.parametrize(
    ("y", "text"),
    [
        ([1.0, 0.0, -2.0], "2 of 3 predictions are not positive, .* use Gaussian or Histogram"),
        ([[1.0, 2.0], [3.0, 4.0]], "BetaPrime is for one number, not for vectors of 2: use Gaussian or Uniform"),
        ([1.0e17, 1.2e17, 1.5e17], r"predictions around 1.2e\+17 are too far from scale=1\.0, .* give scale=None"),
        ([1.0, 1.0 + 1e-6, 1.0 - 1e-6], "too close to each other, for BetaPrime"),
    ],
)
def test_errors(y: list, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        BetaPrime().fit(torch.tensor(y, dtype=torch.float64))
