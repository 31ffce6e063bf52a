"""Gaussians whose classes share their covariances, against scipy and scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.covariance import OAS, LedoitWolf
from torch import Tensor

from hidden_uncertainty.density import GaussianMixture

DIM, SCALES = 6, (1e-8, 1.0, 1e8)


def drawn(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 30 + [1] * 200 + [4] * 70)
    mix = torch.randn(3, DIM, DIM, generator=generator, dtype=torch.float64)
    rows = torch.randn(len(y), 1, DIM, generator=generator, dtype=torch.float64)
    z = (rows @ mix[y.clamp(max=2)])[:, 0] + 3 * y[:, None]
    return scale * z, y


def apart(z: Tensor, y: Tensor) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    means = {c: z[y == c].mean(0) for c in y.unique().tolist()}
    return means, {c: z[y == c] - mean for c, mean in means.items()}


@pytest.mark.parametrize(("shrinkage", "reference"), [("auto", OAS), ("oas", OAS), ("ledoit-wolf", LedoitWolf)])
@pytest.mark.parametrize("scale", SCALES)
def test_one_covariance_for_all_classes(scale: float, shrinkage: Any, reference: Any) -> None:
    z, y = drawn(scale)
    means, centred = apart(z, y)
    covariance = torch.from_numpy(reference(assume_centered=True).fit(torch.cat([*centred.values()])).covariance_)
    density = GaussianMixture(covariance="pooled", shrinkage=shrinkage, ridge=0.0).fit(z, y)
    wanted = [multivariate_normal(means[c] / scale, covariance / scale**2).logpdf(z / scale) for c in means]
    found = density.log_prob(z, density.classes)
    unit = DIM * math.log(scale)  # scipy takes small covariances for singular
    torch.testing.assert_close(found + unit, torch.from_numpy(np.stack(wanted, axis=1)), rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(density.log_prob(z, torch.tensor([4])), found[:, 2:], rtol=1e-12, atol=1e-12)
    assert density.factor.shape == (1, DIM, DIM)


@pytest.mark.parametrize("scale", SCALES)
def test_covariances_that_borrow_from_all_classes(scale: float) -> None:
    z, y = drawn(scale)
    means, centred = apart(z, y)
    scatter = {c: rows.T @ rows for c, rows in centred.items()}
    pooled = sum(scatter.values()) / len(z)
    density = GaussianMixture(pooling=10, shrinkage=None, ridge=0.0).fit(z, y)
    found = density.log_prob(z, density.classes)
    for column, c in enumerate(means):
        covariance = (scatter[c] + 10 * DIM * pooled) / (len(centred[c]) + 10 * DIM)
        wanted = torch.distributions.MultivariateNormal(means[c], covariance).log_prob(z)
        torch.testing.assert_close(found[:, column], wanted, rtol=1e-9, atol=1e-8)


def test_small_classes_need_no_warning() -> None:
    z, y = drawn()
    few = torch.cat([torch.arange(3), torch.arange(30, len(y))])  # warnings are errors
    for density in (GaussianMixture(covariance="pooled"), GaussianMixture(pooling=10)):
        assert density.fit(z[few], y[few]).log_prob(z, density.classes).isfinite().all()


def test_a_thousand_classes_share_one_factor() -> None:
    z = torch.randn(4000, 8, generator=torch.Generator().manual_seed(0))
    density = GaussianMixture(covariance="pooled").fit(z, torch.arange(4000) % 1000)
    assert sum(buffer.numel() for buffer in density.buffers()) < 30_000
    assert density.log_prob(z[:5], density.classes).shape == (5, 1000)
