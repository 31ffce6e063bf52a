"""Fitting and scoring of ten mixtures, ours in float32 beside scikit-learn's in its float64."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture as SklearnMixture
from torch import Tensor

from hidden_uncertainty import GaussianMixture
from hidden_uncertainty.density._em import Fit, Options, component_log_prob, fit_mixtures
from hidden_uncertainty.density._kmeans import candidates, kmeans

from .data import CLASSES, COMPONENTS, clusters
from .timing import alternate, compare

AGREE = 0.01  # nats a sample that two fits from one start may differ


class EM:
    """EM steps of all classes from the same k-means start.

    Ours is `fit_mixtures`, which begins with the M-step that turns responsibilities into parameters. scikit-learn
    begins with those parameters and does the steps of its `fit` loop alone: through `fit` it would check the start by
    an eigendecomposition and do one more E-step for labels, and look slower than its EM is.
    """

    def __init__(self, dim: int, rows: int, steps: int, rounds: int) -> None:
        self.dim, self.rows, self.steps, self.rounds = dim, rows, steps, rounds
        z, y = clusters(rows, dim)
        z -= z.mean(0)
        self.options = Options("full", None, 1e-6, 0.0, steps)
        self.x = [z[y == c][None] for c in range(CLASSES)]
        self.present = [torch.ones(x.shape[:2]) for x in self.x]
        draws = torch.rand(CLASSES, 1, COMPONENTS, candidates(COMPONENTS), generator=torch.Generator().manual_seed(0))
        self.start = [kmeans(x, p, COMPONENTS, u) for x, p, u in zip(self.x, self.present, draws, strict=True)]
        self.wide = [x[0].double().numpy() for x in self.x]
        self.models = [_start_sklearn(x, start[0]) for x, start in zip(self.wide, self.start, strict=True)]
        self.weighted = self._count_weighted()

    def measure(self) -> dict[str, Any]:
        """Time both sides, check that they arrive at the same likelihood, and count what had to be computed."""
        fits: list[Fit] = []
        models: list[SklearnMixture] = []

        def ours() -> None:
            fits[:] = [
                fit_mixtures(*given, self.options) for given in zip(self.x, self.present, self.start, strict=True)
            ]

        def theirs() -> None:
            models[:] = [self._steps_of_sklearn(*each) for each in zip(self.models, self.wide, strict=True)]

        entry = compare(alternate({"ours": ours, "sklearn": theirs}, self.rounds))
        if not all(bool(fit.sound.all()) for fit in fits):
            raise RuntimeError("a covariance was too nearly singular for float32: the benchmark's data is at fault.")
        found = [
            float(component_log_prob(x, fit.mixtures, "full").logsumexp(-1).double().mean())
            for x, fit in zip(self.x, fits, strict=True)
        ]
        expected = [model.score(x) for x, model in zip(self.wide, models, strict=True)]
        apart = max(abs(a - b) for a, b in zip(found, expected, strict=True))
        if not apart < AGREE:
            raise RuntimeError(
                f"after {self.steps} steps at d={self.dim} a class is {apart:.4f} nats a sample from scikit-learn's "
                f"likelihood; {AGREE} is allowed. Speed means nothing before that is mended."
            )
        return entry | {
            "log_likelihood": float(np.mean(found)),
            "sklearn_log_likelihood": float(np.mean(expected)),
            "largest_difference": apart,
            "necessary_gflop": self._necessary_gflop(),
            "rows_with_weight": self.weighted,
            **{"rows": self.rows, "dim": self.dim, "steps": self.steps},
        }

    def _steps_of_sklearn(self, start: SklearnMixture, x: np.ndarray) -> SklearnMixture:
        model = copy.copy(start)
        for _ in range(self.steps):
            _, log_responsibility = model._e_step(x)
            model._m_step(x, log_responsibility)
        return model

    def _count_weighted(self) -> list[float]:
        """The share of responsibilities that are not nothing in float32, before each M-step."""
        shares, given = [], self.start
        m_step = self.options._replace(max_iter=0)
        for _ in range(self.steps + 1):
            positive = sum(int((r > torch.finfo(r.dtype).eps ** 2).sum()) for r in given)
            shares.append(positive / self.rows / COMPONENTS)
            fits = [fit_mixtures(*each, m_step) for each in zip(self.x, self.present, given, strict=True)]
            given = [component_log_prob(x, f.mixtures, "full").softmax(-1) for x, f in zip(self.x, fits, strict=True)]
        return shares

    def _necessary_gflop(self) -> float:
        """E: half a product a row and component. M: the same for rows with weight. Cholesky and inverse: d³/3 each."""
        product = self.rows * COMPONENTS * self.dim**2
        factor = CLASSES * COMPONENTS * self.dim**3 * 2 / 3
        return 1e-9 * (product * (self.steps + sum(self.weighted)) + factor * (self.steps + 1))


def _start_sklearn(x: np.ndarray, responsibility: Tensor) -> SklearnMixture:
    model = SklearnMixture(COMPONENTS, covariance_type="full", reg_covar=1e-6)
    model._m_step(x, responsibility.double().log().numpy())
    return model


class Score:
    """log p(z | y) of rows under all classes, by the same parameters on both sides."""

    def __init__(self, dim: int, rows: int, train_rows: int, rounds: int) -> None:
        self.dim, self.rounds = dim, rounds
        z, y = clusters(train_rows + rows, dim, seed=1)
        self.z = z[train_rows:]
        self.density = GaussianMixture(COMPONENTS, max_iter=1, dtype="float32")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged: any parameters will do
            self.density.fit(z[:train_rows], y[:train_rows], progress=False)
        self.wide = self.z.double().numpy()
        self.models = [_as_sklearn(self.density, c) for c in range(CLASSES)]

    def measure(self) -> dict[str, Any]:
        """Time both sides; scikit-learn's float64 is the reference for our errors."""
        found: list[Tensor] = []
        expected: list[np.ndarray] = []

        def ours() -> None:
            found[:] = [self.density.log_prob(self.z, self.density.classes)]

        def theirs() -> None:
            expected[:] = [model.score_samples(self.wide) for model in self.models]

        ours()
        entry = compare(alternate({"ours": ours, "sklearn": theirs}, self.rounds))
        reference = np.stack(expected, 1)
        error = np.abs(found[0].double().numpy() - reference)
        return entry | {
            "largest_error": float(error.max()),
            "largest_relative_error": float((error / np.maximum(np.abs(reference), self.dim)).max()),  # log p may be 0
            "necessary_gflop": 1e-9 * len(self.z) * CLASSES * COMPONENTS * self.dim**2,
            **{"rows": len(self.z), "dim": self.dim},
        }


def _as_sklearn(density: GaussianMixture, c: int) -> SklearnMixture:
    model = SklearnMixture(COMPONENTS, covariance_type="full")
    model.weights_ = density.log_weight[c].double().exp().numpy()
    model.means_ = density.mean[c].double().numpy()
    model.precisions_cholesky_ = density.factor[c].double().numpy()
    model.n_features_in_ = density.mean.shape[-1]
    return model
