"""A few rows take another way than many: it must lead to the same numbers."""

from __future__ import annotations

import pytest
import torch

from hidden_uncertainty import GaussianMixture
from hidden_uncertainty.density.gaussian import mixture
from hidden_uncertainty.density.gaussian._em import Covariance
from mixture_draws import COVARIANCES, draw


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("sizes", [(200, 150, 260), (200,)], ids=["three classes", "one class"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_few_rows_of_a_mixture_score_as_many(
    covariance: Covariance,
    sizes: tuple[int, ...],
    components: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z, y = draw(sizes, dim=20)
    z = z.to(dtype)
    density = GaussianMixture(components, covariance=covariance, max_iter=1000, tol=1e-2).fit(z, y)
    assert (density.wide is not None) == (covariance in ("full", "tied"))
    far = torch.cat([z[:20], 1e3 * z[:4], 1e30 * z[:4]])
    together = density.log_prob(far, density.classes)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-11
    for some in (1, 3, mixture.FEW):
        apart = torch.cat([density.log_prob(rows, density.classes) for rows in far.split(some)])
        torch.testing.assert_close(apart, together, rtol=tolerance, atol=20 * tolerance)
        one = density.log_prob(far[:some], density.classes[-1:])
        torch.testing.assert_close(one, together[:some, -1:], rtol=tolerance, atol=20 * tolerance)
    monkeypatch.setattr(mixture, "WHOLE", 0)
    density._pack()
    assert density.wide is None
    torch.testing.assert_close(
        density.log_prob(far[:1], density.classes), together[:1], rtol=tolerance, atol=20 * tolerance
    )
