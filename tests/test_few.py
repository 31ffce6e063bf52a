"""A single input takes other ways than many: they must lead to the same numbers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Reduce
from hidden_uncertainty.density import mixture
from hidden_uncertainty.density._em import Covariance
from mixture_draws import COVARIANCES, draw

DTYPES = (torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
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


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.body, self.last = nn.Linear(6, 24, dtype=dtype), nn.Linear(24, 3, dtype=dtype)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=dtype) / 3

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.relu(self.body(x)))
        return scores


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "reduce",
    [Reduce(max_dim=None), Reduce(max_dim=3), Reduce(max_dim=3, residual=True), Reduce("project", max_dim=3)],
    ids=["whole", "components", "with residual", "projected"],
)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_one_input_scores_as_among_many(covariance: Covariance, reduce: Reduce, dtype: torch.dtype) -> None:
    x = torch.randn(900, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    options: dict[str, Any] = {"reduce": reduce, "task": "classification"}
    detector = LatentDensity(Net(dtype), "body", GaussianMixture(2, covariance=covariance, max_iter=5), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged: any mixture will do
        detector.fit(x[:600].split(200), calibration=x[600:800].split(200))
    rows = torch.cat([x[800:], 1e4 * x[800:805]])
    assert len(rows) > mixture.FEW
    together, apart = detector(rows), [detector(row[None]) for row in rows[::7]]
    tolerance = 1e-9 if dtype == torch.float64 and reduce.max_dim is None else 1e-4  # projections are float32
    for name in ("prediction", "epistemic", "aleatoric", "log_aleatoric"):
        found = torch.cat([getattr(u, name) for u in apart])
        torch.testing.assert_close(found, getattr(together, name)[::7], rtol=tolerance, atol=tolerance, msg=name)
    found = torch.cat([u.p_value for u in apart if u.p_value is not None])
    assert together.p_value is not None
    assert (found - together.p_value[::7]).abs().max() <= 1.01 / 201  # rounding may pass one calibration score
    residuals = [u.layers["body"].residual for u in apart]
    if reduce.max_dim is not None:
        wanted = together.layers["body"].residual
        assert wanted is not None
        torch.testing.assert_close(
            torch.cat([r for r in residuals if r is not None]), wanted[::7], rtol=tolerance, atol=tolerance
        )
    else:
        assert residuals == [None] * len(apart)
