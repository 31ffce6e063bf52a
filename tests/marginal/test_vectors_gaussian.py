from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from hidden_uncertainty.marginal import Gaussian


def numbers(n: int = 500) -> torch.Tensor:
    return 3 * torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 7


def test_as_scipy() -> None:
    y = numbers()
    marginal = Gaussian().fit(y)
    reference = stats.norm(*stats.norm.fit(y))
    at = torch.linspace(-100, 100, 41, dtype=torch.float64)
    torch.testing.assert_close(marginal.log_prob(at), torch.as_tensor(reference.logpdf(at)))
    torch.testing.assert_close(marginal.cdf(at), torch.as_tensor(reference.cdf(at)))


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_vectors_as_scipy(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    y = torch.randn(300, dim, generator=generator, dtype=torch.float64) @ mix + 5
    covariance = np.cov(y.T, bias=True)
    covariance += 1e-6 * np.diag(np.diag(covariance))
    reference = stats.multivariate_normal(y.mean(0), covariance)
    marginal = Gaussian().fit(y)
    torch.testing.assert_close(marginal.log_prob(y), torch.as_tensor(reference.logpdf(y)))
    single = Gaussian().fit(y.float())
    torch.testing.assert_close(single.log_prob(y), marginal.log_prob(y).float(), rtol=1e-4, atol=1e-3)


def test_outputs_that_move_together() -> None:
    y = numbers(100)
    both = torch.stack([y, 2 * y + 1], dim=1).float()
    marginal = Gaussian().fit(both)
    assert marginal.log_prob(both).isfinite().all()
    correlation = torch.tensor([[1 + 1e-6, 1], [1, 1 + 1e-6]], dtype=torch.float64)
    deviation = y.std(correction=0) * torch.tensor([1.0, 2.0], dtype=torch.float64)
    log_det = torch.logdet(correlation) + 2 * deviation.log().sum()
    assert 2 * marginal.factor.double().diagonal().log().sum().item() == pytest.approx(log_det.item(), abs=0.1)
    assert (marginal.log_prob(both + torch.tensor([0.0, 1.0])) < marginal.log_prob(both) - 1000).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_however_far(dtype: torch.dtype) -> None:
    y = numbers(50).to(dtype)
    far = torch.tensor([1e4, 1e20, 3e38, 1e300], dtype=torch.float64)
    log_prob = Gaussian().fit(y).log_prob(far)
    assert log_prob.isfinite().all() and (log_prob.diff() <= 0).all()
    both = torch.stack([y, y.flip(0)], dim=1)
    log_prob = Gaussian().fit(both).log_prob(torch.stack([far, -far], dim=1))
    assert log_prob.isfinite().all() and (log_prob.diff() <= 0).all()


def test_range_of_vectors() -> None:
    with pytest.raises(ValueError, match="bound the support of one number, not of vectors of 2: leave them out"):
        Gaussian(low=0).fit(torch.rand(9, 2, generator=torch.Generator().manual_seed(0)))
