"""Fifty drawn problems, each fitted by scikit-learn's mixture too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture as Reference
from torch import Tensor

from hidden_uncertainty.density import GaussianMixture
from hidden_uncertainty.density.gaussian._em import Covariance, EMOptions, fit_mixtures, maximise
from mixture_draws import COVARIANCES, draw


def problems(count: int) -> Iterator[tuple[Tensor, int, Covariance]]:
    """Rows (n, d), how many components to fit, and their covariance."""
    random = np.random.default_rng(0)
    for seed in range(count):
        n, dim, clusters, components = (int(random.integers(*ends)) for ends in ((60, 200), (1, 6), (1, 5), (1, 5)))
        yield draw((n,), dim, seed, clusters)[0], components, COVARIANCES[seed % 4]


def reference(x: Tensor, components: int, covariance: Covariance, **options: Any) -> Reference:
    ridge = 1e-6 * float((x - x.mean(0)).square().mean())
    model = Reference(components, covariance_type=covariance, reg_covar=ridge, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x.numpy())


def test_from_the_same_start_the_same_parameters() -> None:
    for x, components, covariance in problems(50):
        ridge = 1e-6 * float((x - x.mean(0)).square().mean())
        random = torch.Generator().manual_seed(len(x))
        start = torch.randn(1, len(x), components, generator=random, dtype=torch.float64).softmax(-1)
        options = EMOptions(covariance, ridge=ridge, tol=0, max_iter=20)
        first = maximise(x[None], start, options)[0]
        factor = first.factor[0].numpy()
        precision = factor @ factor.swapaxes(-1, -2) if covariance in ("full", "tied") else factor**2
        weight, mean = first.log_weight[0].exp().numpy(), first.mean[0].numpy()
        begin = {"weights_init": weight, "means_init": mean, "precisions_init": precision}
        peer = reference(x, components, covariance, tol=0, max_iter=20, **begin)
        found = fit_mixtures(x[None], torch.ones_like(x[None, :, 0]), start, options)
        np.testing.assert_allclose(found.mixtures.log_weight[0].exp().numpy(), peer.weights_, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.mixtures.mean[0].numpy(), peer.means_, rtol=1e-6, atol=1e-6)
        factor = found.mixtures.factor[0].numpy()
        precision = factor @ factor.swapaxes(-1, -2) if covariance in ("full", "tied") else factor**2
        np.testing.assert_allclose(precision, peer.precisions_, rtol=1e-5, atol=1e-6)


def test_as_likely_in_the_end() -> None:
    """Starts differ, so that now one and now the other ends in a better optimum: as likely on average."""
    gains = []
    for x, components, covariance in problems(50):
        y = torch.zeros(len(x), dtype=torch.long)
        density = GaussianMixture(components, covariance=covariance, shrinkage=None, max_iter=1000).fit(x, y)
        peer = reference(x, components, covariance, tol=1e-6, max_iter=1000, random_state=0)
        gains.append(float(density.log_prob(x, density.classes).mean()) - peer.score(x.numpy()))
    gain = np.array(gains)
    assert gain.mean() > -0.01
    assert (gain > -1e-3).mean() >= 0.8
