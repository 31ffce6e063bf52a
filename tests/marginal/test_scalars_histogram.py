from __future__ import annotations

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
    bars = stats.rv_histogram((counts + 1, edges), density=False)
    tail = 1 / (len(y) + len(counts) + 2)
    below = stats.expon(scale=y.std(correction=0).item())  # how far

    at = torch.linspace(-20, 20, 403, dtype=torch.float64)
    density = (1 - 2 * tail) * bars.pdf(at) + tail * (below.pdf(edges[0] - at) + below.pdf(at - edges[-1]))
    torch.testing.assert_close(marginal.log_prob(at).exp(), torch.as_tensor(density))
    mass = (1 - 2 * tail) * bars.cdf(at) + tail * (below.sf(edges[0] - at) + below.cdf(at - edges[-1]))
    torch.testing.assert_close(marginal.cdf(at), torch.as_tensor(mass))


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


def test_no_value_is_impossible() -> None:
    y = two_peaks().float()
    marginal = Histogram(100).fit(y)
    at = torch.cat([y.min() - torch.logspace(30, -3, 20), torch.tensor([-1.0]), y.max() + torch.logspace(-3, 30, 20)])
    log_prob = marginal.log_prob(at)
    assert log_prob.isfinite().all()
    assert (log_prob[:20].diff() >= 0).all() and (log_prob[-20:].diff() <= 0).all()


@pytest.mark.parametrize("bins", [0, 2.5, "scott", True])
def test_errors_of_bins(bins: object) -> None:
    with pytest.raises(ValueError, match="bins must be 'auto' or a whole number of at least 1, not "):
        Histogram(bins)  # type: ignore[arg-type]
