"""Fitting and scoring of ten mixtures, ours in float32 beside scikit-learn's in its float64."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture as SklearnMixture
from torch import Tensor

from hidden_uncertainty import GaussianMixture
from hidden_uncertainty.density.gaussian._classes import kmeans
from hidden_uncertainty.density.gaussian._em import EMOptions, Fit, component_log_prob, fit_mixtures, maximise
from hidden_uncertainty.progress import bars

from .data import CLASSES, COMPONENTS, clusters
from .timing import alternate, compare

AGREE = 0.01  # nats a sample that two fits from one start may differ


class EM:
    """EM steps of all classes from the same k-means start.

    Both sides begin with the M-step that turns responsibilities into parameters. Ours is `fit_mixtures`; scikit-learn
    does the steps of its `fit` loop alone: through `fit` it would check the start by an eigendecomposition and do one
    more E-step for labels, and look slower than its EM is.
    """

    def __init__(self, dim: int, rows: int, steps: int, rounds: int, pause: float = 0.3) -> None:
        self.dim, self.rows, self.steps, self.rounds = dim, rows, steps, rounds
        self.pause = pause
        self.options = EMOptions("full", None, 1e-6, 0.0, steps)
        self.x, self.present, self.wide = _classes(rows, dim)
        self.start = _starts(self.x, self.present)
        self.log_start = [np.log(start[0].double().numpy() + 1e-300) for start in self.start]
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
            models[:] = [self._steps_of_sklearn(*each) for each in zip(self.wide, self.log_start, strict=True)]

        entry = compare(alternate({"ours": ours, "sklearn": theirs}, self.rounds, self.pause))
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

    def _steps_of_sklearn(self, x: np.ndarray, log_responsibility: np.ndarray) -> SklearnMixture:
        model = SklearnMixture(COMPONENTS, covariance_type="full", reg_covar=1e-6)
        model._m_step(x, log_responsibility)
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


class Init:
    """The first centres and Lloyd's iterations of all classes, one start each: what both sides' EM begins with."""

    def __init__(self, dim: int, rows: int, rounds: int, pause: float = 0.3) -> None:
        self.dim, self.rows, self.rounds, self.pause = dim, rows, rounds, pause
        self.x, self.present, self.wide = _classes(rows, dim)

    def measure(self) -> dict[str, Any]:
        """Time both sides, and how likely the data is under one Gaussian a cluster of each."""
        found: list[Tensor] = []
        expected: list[Tensor] = []

        def ours() -> None:
            found[:] = _starts(self.x, self.present)

        def theirs() -> None:
            labels = [KMeans(COMPONENTS, n_init=1, random_state=c).fit(x).labels_ for c, x in enumerate(self.wide)]
            expected[:] = [torch.nn.functional.one_hot(torch.from_numpy(own).long())[None] for own in labels]

        entry = compare(alternate({"ours": ours, "sklearn": theirs}, self.rounds, self.pause))
        return entry | {
            "log_likelihood": self._likelihood(found),
            "sklearn_log_likelihood": self._likelihood(expected),
            **{"rows": self.rows, "dim": self.dim},
        }

    def _likelihood(self, starts: list[Tensor]) -> float:
        each = []
        for x, start in zip(self.x, starts, strict=True):
            mixtures = maximise(x.double(), start.double(), EMOptions())[0]
            each.append(component_log_prob(x.double(), mixtures, "full").logsumexp(-1).mean())
        return float(torch.stack(each).mean())


def _classes(rows: int, dim: int) -> tuple[list[Tensor], list[Tensor], list[np.ndarray]]:
    """The rows of each class (1, n, d) in float32, ones for them, and the same rows (n, d) in float64."""
    z, y = clusters(rows, dim)
    z -= z.mean(0)
    x = [z[y == c][None] for c in range(CLASSES)]
    return x, [torch.ones(each.shape[:2]) for each in x], [each[0].double().numpy() for each in x]


def _starts(x: list[Tensor], present: list[Tensor]) -> list[Tensor]:
    """Our k-means of each class."""
    return [kmeans(rows, ones, COMPONENTS) for rows, ones in zip(x, present, strict=True)]


class Score:
    """log p(z | y) of rows under all classes, by the same parameters on both sides."""

    def __init__(self, dim: int, rows: int, train_rows: int, rounds: int, pause: float = 0.3) -> None:
        self.dim, self.rounds, self.pause = dim, rounds, pause
        z, y = clusters(train_rows + rows, dim, seed=1)
        self.z = z[train_rows:]
        self.density = GaussianMixture(COMPONENTS, max_iter=1, dtype="float32")
        with warnings.catch_warnings(), bars(False):
            warnings.simplefilter("ignore")  # not converged: any parameters will do
            self.density.fit(z[:train_rows], y[:train_rows])
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
        entry = compare(alternate({"ours": ours, "sklearn": theirs}, self.rounds, self.pause))
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
