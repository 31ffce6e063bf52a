"""The conditional of a joint mixture against scipy, through a density, in the units of its data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from torch import Tensor

from hidden_uncertainty.density.gaussian import joint
from hidden_uncertainty.density.gaussian._classes import fit_classes
from hidden_uncertainty.density.gaussian._em import Mixtures
from hidden_uncertainty.density.gaussian.joint import Conditional, JointMixture
from mixture_draws import draw_numbers as draw


class Recorded:
    """A fitted density, and its mixture over (y, z) in the units of y and z as scipy's distributions."""

    def __init__(self, q: int, covariance: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        fits = []

        def record(*args: Any, **named: Any) -> Any:
            fits.append(fit_classes(*args, **named))
            return fits[-1]

        monkeypatch.setattr(joint, "fit_classes", record)
        self.z, self.y = draw(400, 4, q)
        self.density = JointMixture(4, covariance=covariance, **options).fit(self.z, self.y)
        mixtures, directions = fits[-1].mixtures, self.density.directions
        self.weight = mixtures.log_weight[0].exp().numpy()
        back = torch.block_diag(torch.diag(self.density.y_deviation), (directions.basis * directions.deviation).mT)
        middle = torch.cat([self.density.y_center, directions.center])
        self.parts = []
        for k in range(4):
            factor = mixtures.factor[0] if covariance == "tied" else mixtures.factor[0, k]
            factor = torch.diag(factor) if covariance == "diag" else factor
            cov = back.mT.numpy() @ np.linalg.inv((factor @ factor.mT).numpy()) @ back.numpy()
            self.parts.append(((mixtures.mean[0, k] @ back + middle).numpy(), (cov + cov.T) / 2))

    def log_prob(self, x: Tensor, which: slice) -> np.ndarray:
        """log Σ_k w_k N_k of the dimensions `which` of (y, z)."""
        terms = [multivariate_normal(m[which], c[which, which]).logpdf(x.numpy()) for m, c in self.parts]
        return logsumexp(np.stack(terms), axis=0, b=self.weight[:, None])


@pytest.mark.parametrize("covariance", ["full", "tied", "diag"])
@pytest.mark.parametrize("q", [1, 2, 6])  # fewer outputs than directions, and more
def test_is_the_ratio_of_joint_and_marginal(q: int, covariance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Recorded(q, covariance, monkeypatch)
    z, support = case.z[:40], case.y[40:70].reshape(30, q)
    pairs = torch.cat([support.repeat(40, 1), z.repeat_interleave(30, 0)], dim=1)
    marginal = case.log_prob(support, slice(0, q))
    expected = case.log_prob(pairs, slice(0, q + 4)).reshape(40, 30) - marginal
    np.testing.assert_allclose(case.density.log_prob(z, support), expected, rtol=1e-8, atol=1e-8)


def test_components_that_were_not_made_are_left_out() -> None:
    random = torch.Generator().manual_seed(0)
    mean = torch.randn(1, 3, 4, generator=random, dtype=torch.float64)
    factor = torch.randn(1, 3, 4, 4, generator=random, dtype=torch.float64).triu()
    factor.diagonal(dim1=-2, dim2=-1).abs_().add_(0.5)
    log_weight = torch.tensor([[0.3, 0.7, 0.0]], dtype=torch.float64).log()
    u, y = torch.randn(5, 3, generator=random).double(), torch.randn(6, 1, generator=random).double()
    some = Conditional("full").take_apart(Mixtures(log_weight, mean, factor), 1, torch.float64)
    fewer = Mixtures(log_weight[:, :2], mean[:, :2], factor[:, :2])
    other = Conditional("full").take_apart(fewer, 1, torch.float64)
    assert len(some.y_scale) == 2
    torch.testing.assert_close(
        some.log_prob(*some.coordinates(u), some.given(y)), other.log_prob(*other.coordinates(u), other.given(y))
    )
