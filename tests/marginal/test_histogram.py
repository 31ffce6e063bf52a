from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from hidden_uncertainty.marginal import Histogram


def two_peaks(n: int = 1000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(n, generator=generator, dtype=torch.float64)
    return torch.where(torch.rand(n, generator=generator) < 0.3, 0.2 * y - 4, y + 3)


@pytest.mark.parametrize("bins", [1, 7, 40, "auto"])
def test_as_a_counted_histogram(bins: int) -> None:
    y = two_peaks()
    marginal = Histogram(bins).fit(y)
    counts, edges = np.histogram(y, len(marginal.mass))
    reference = stats.rv_histogram((counts + 1, edges), density=False)
    at = torch.linspace(-10, 10, 403, dtype=torch.float64)
    with np.errstate(divide="ignore"):
        torch.testing.assert_close(marginal.log_prob(at), torch.as_tensor(reference.logpdf(at)))
    torch.testing.assert_close(marginal.cdf(at), torch.as_tensor(reference.cdf(at)))
    p = torch.linspace(0, 1, 101, dtype=torch.float64)
    torch.testing.assert_close(marginal.quantile(p), torch.as_tensor(reference.ppf(p)))


@pytest.mark.parametrize("n", [20, 300, 5000])
def test_number_of_bins_by_freedman_and_diaconis(n: int) -> None:
    y = two_peaks(n)
    expected = len(np.histogram_bin_edges(y, "fd")) - 1
    assert len(Histogram().fit(y).mass) == min(max(expected, 5), 256)


@pytest.mark.parametrize(
    ("y", "bins"),
    [
        (torch.tensor([0.0, 1.0]), 5),
        (torch.cat([torch.linspace(0, 1, 500), torch.tensor([1e17])]), 256),
        (torch.cat([torch.zeros(500), torch.ones(12)]), 10),  # half of the values are one: Sturges
    ],
)
def test_number_of_bins_is_bounded(y: torch.Tensor, bins: int) -> None:
    assert len(Histogram(points=512).fit(y).mass) == bins


def test_ends_are_inside_and_empty_bins_are_possible() -> None:
    y = two_peaks().float()
    marginal = Histogram(100).fit(y)
    ends = torch.stack([y.min(), y.max()])
    assert marginal.log_prob(ends).isfinite().all()
    assert marginal.log_prob(torch.tensor([-1.0])).isfinite().all()
    assert marginal.log_prob(ends + torch.tensor([-1e-3, 1e-3])).tolist() == [-math.inf, -math.inf]
    assert marginal.log_weight.isfinite().all()


def test_support_wider_than_the_values() -> None:
    y = two_peaks()
    marginal = Histogram(points=201, low=-20, high=20).fit(y)
    nowhere = (marginal.support < y.min() - 0.1) | (marginal.support > y.max() + 0.1)
    assert torch.equal(marginal.log_weight == -math.inf, nowhere)
    assert marginal.log_weight.exp().sum().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("bins", [0, 2.5, "scott", True])
def test_errors_of_bins(bins: object) -> None:
    with pytest.raises(ValueError, match="bins must be 'auto' or a whole number of at least 1, not "):
        Histogram(bins)  # type: ignore[arg-type]
