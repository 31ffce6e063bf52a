"""One point of the growth curves: a fit and its scores in a process of their own, timed, with the memory they took."""

from __future__ import annotations

import ctypes
import gc
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture as SklearnMixture
from torch import Tensor

from hidden_uncertainty import GaussianMixture
from hidden_uncertainty.progress import bars

from . import ood
from .timing import use_threads

STEPS = 3  # of EM, for everyone
RIDGE = 1e-3  # so that 2,048 dimensions of 2,000 rows have a factor
APART = 4.0  # deviations between two components of a class
Size = dict[str, int]
Sides = tuple[Callable[[], Any], Callable[[Any], Any]]  # fit, and score what was fitted


def draw(rows: int, dim: int, classes: int, components: int) -> tuple[Tensor, Tensor]:
    """Classes of as many components as will be fitted: z (n, d) and y (n,). Nothing large is made beside z."""
    random = torch.Generator().manual_seed(0)
    means = torch.randn(classes * components, dim, generator=random) * (APART / (2 * dim) ** 0.5)
    y = torch.arange(rows) % classes
    which = y * components + torch.randint(components, (rows,), generator=random)
    z = torch.randn(rows, dim, generator=random)
    some = max(1, (1 << 18) // dim)
    for part, own in zip(z.split(some), which.split(some), strict=True):
        part += means[own]
    return z, y


def _ours(z: Tensor, y: Tensor, components: int) -> Sides:
    tol = 0.0 if components > 1 else 1e-3  # one Gaussian is done after one step, and stops by itself

    def fit() -> GaussianMixture:
        density = GaussianMixture(components, shrinkage=None, ridge=RIDGE, tol=tol, max_iter=STEPS)
        with bars(False):
            return density.fit(z, y)

    return fit, lambda density: density.log_prob(z, density.classes)


def _ours_one(z: Tensor, y: Tensor, components: int) -> Sides:
    return _ours(z, y, 1)


def _sklearn(z: Tensor, y: Tensor, components: int) -> Sides:
    wide = z.double().numpy()
    rows = [wide[y.numpy() == c] for c in range(int(y.max()) + 1)]
    tol = 0.0 if components > 1 else 1e-3

    def fit() -> list[SklearnMixture]:
        options = {"reg_covar": RIDGE, "tol": tol, "max_iter": STEPS, "random_state": 0}
        return [SklearnMixture(components, **options).fit(own) for own in rows]

    return fit, lambda models: np.stack([model.score_samples(wide) for model in models], 1)


def _pytorch_ood(z: Tensor, y: Tensor, components: int) -> Sides:
    gmm = ood.detectors().GMM

    return lambda: gmm(None, reg=RIDGE).fit_features(z, y), lambda detector: detector.predict_features(z)


METHODS: dict[str, Callable[[Tensor, Tensor, int], Sides]] = {
    "ours": _ours,
    "scikit-learn": _sklearn,
    "ours, one Gaussian": _ours_one,
    "pytorch-ood, one Gaussian": _pytorch_ood,
}


def measure(method: str, size: Size, patience: float) -> dict[str, Any]:
    """Seconds of fitting and scoring, and MB beyond the data; rounds are repeated for as long as there is patience."""
    with warnings.catch_warnings(), use_threads(1), torch.no_grad():
        warnings.simplefilter("ignore")  # none converges in three steps
        fit, score = METHODS[method](*draw(400, 4, 2, 2), 2)
        score(fit())  # code is read from disk now, and counts for nobody
        fit, score = METHODS[method](*draw(**size), size["components"])
        before, begin = settled_mb(), time.perf_counter()
        fits: list[float] = []
        scores: list[float] = []
        memory: dict[str, float] = {}
        while not fits or (len(fits) < 3 and time.perf_counter() - begin < patience):
            start = time.perf_counter()
            fitted = fit()
            fits.append(time.perf_counter() - start)
            memory.setdefault("fit_mb", memory_mb("VmHWM") - before)
            start = time.perf_counter()
            score(fitted)
            scores.append(time.perf_counter() - start)
            memory.setdefault("score_mb", memory_mb("VmHWM") - before)
            del fitted
    rounds = {"fit_rounds": fits, "score_rounds": scores}
    return {"fit_seconds": median(fits), "score_seconds": median(scores), **memory, **rounds}


def work(method: str, size: Size, patience: float, answer: Connection) -> None:
    """`measure`, as a process of its own; a peer that cannot be imported is an answer too."""
    try:
        answer.send(measure(method, size, patience))
    except ImportError as error:
        answer.send({"missing": str(error)})
    finally:
        answer.close()


def settled_mb() -> float:
    """Give back what was freed, or a fit would get it for nothing; forget the peak so far; the MB held now. (Linux.)"""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mb("VmRSS")


def memory_mb(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6
