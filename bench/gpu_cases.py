"""What is measured on a GPU: fits, scores and principal components, each with the least it would have to do."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture
from hidden_uncertainty.baselines import Mahalanobis
from hidden_uncertainty.density.gaussian import _classes, _packed
from hidden_uncertainty.density.gaussian._classes import kmeans
from hidden_uncertainty.density.gaussian._em import EMOptions, Fit, component_log_prob, fit_mixtures
from hidden_uncertainty.precision import precise
from hidden_uncertainty.progress import bars
from hidden_uncertainty.reduce.pca import StreamingPCA

from . import ood
from .data import CLASSES, COMPONENTS
from .gpu_data import ManyClasses, clusters, signals
from .gpu_timing import Device, Work

Entry = dict[str, Any]
CHECKED = 64  # rows whose scores are computed again in float64
BATCH = 1 << 16  # rows of a stream at a time


class Handing(nn.Module):
    """A network whose hidden layer is its input, and whose first numbers are scores of classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden, self.classes = nn.Identity(), classes

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x)[:, : self.classes]


def em(device: Device, *, name: str, dim: int, rows: int, steps: int, sklearn_seconds: float = 0.0) -> Iterator[Entry]:
    """EM steps of ten classes from one k-means start, all classes side by side.

    `sklearn_seconds` is how long scikit-learn may take for the same on this machine's CPU; 0 leaves it out.
    """
    x, present, start = _stacked(device, dim, rows)
    options = EMOptions("full", None, 1e-6, 0.0, steps)
    weighted = _rows_with_weight(x, present, start, options)
    products = rows * COMPONENTS * dim**2 * (steps + sum(weighted))  # half a product a row, component and step
    factors = CLASSES * COMPONENTS * dim**3 * 2 / 3 * (steps + 1)
    work = Work(products, factors, 4.0 * rows * dim * (2 * steps + 1))
    fits: list[Fit] = []

    @precise
    def run() -> None:
        fits[:] = [fit_mixtures(x, present, start, options)]

    entry = device.measure(name, run, work, rounds=5)
    if not bool(fits[0].sound.all()):
        raise RuntimeError("a covariance was too nearly singular for float32: the benchmark's data is at fault.")
    wide = fit_mixtures(x.double(), present.double(), start.double(), options)
    found, expected = _likelihoods(x, fits[0]), _likelihoods(x.double(), wide)
    entry |= {
        "log_likelihood": float(found.mean()),
        "largest_difference_to_float64": float((found - expected).abs().max()),
        "rows_with_weight": weighted,
        **{"rows": rows, "dim": dim, "steps": steps},
    }
    if sklearn_seconds:
        entry["beside"] = {"scikit-learn on the CPU": _sklearn(x, start, steps, sklearn_seconds)}
    yield entry


def fit(device: Device, *, name: str, dim: int, rows: int, max_iter: int = 300) -> Iterator[Entry]:
    """A whole fit with its start, as a user calls it: with the defaults, and with the paper's setting."""
    z, y = clusters(CLASSES, COMPONENTS, rows, dim, device.torch)
    init = median(_start_seconds(device, dim, rows))
    mixture = partial(GaussianMixture, COMPONENTS, max_iter=max_iter)
    densities = {"": mixture(), "-no-shrinkage": mixture(shrinkage=None)}
    for suffix, density in densities.items():
        run = partial(_fit_silently, density, z, y)
        with _seen_fits() as fits:
            run()
        steps = sum(int(fit.iterations.sum()) for fit in fits) / CLASSES  # of a class
        starts = sum(len(fit.iterations) for fit in fits) / CLASSES  # above 1 where float32 was too coarse for some
        # Whatever the responsibilities are, an M-step multiplies every row at least once.
        products = rows * dim**2 * (COMPONENTS * steps + steps + starts)
        factors = CLASSES * COMPONENTS * dim**3 * 2 / 3 * (steps + starts)
        work = Work(products, factors, 4.0 * rows * dim * (2 * steps + 1))
        yield device.measure(name + suffix, run, work, rounds=5) | {
            "steps": steps,
            "starts": starts,
            "start_seconds": init,
            **{"rows": rows, "dim": dim},
        }


def score(device: Device, *, name: str, dim: int, rows: int, train_rows: int, tried_rows: int = 0) -> Iterator[Entry]:
    """log p(z | y) of rows under ten classes of five components, on the device from start to end."""
    z, y = clusters(CLASSES, COMPONENTS, train_rows + rows, dim, device.torch, seed=1)
    density = GaussianMixture(COMPONENTS, max_iter=1)
    _fit_silently(density, z[:train_rows], y[:train_rows])
    z = z[train_rows:].clone()
    entry = _score(device, density, z, name, rounds=5)
    if tried_rows:
        entry["tried"] = _tried(device, density, z[:tried_rows])
    yield entry | {"rows": rows, "dim": dim}


def pca(device: Device, *, name: str, rows: int, dim: int, keep: int) -> Iterator[Entry]:
    """Principal components of data that is on the device, beside torch's own randomised ones."""
    x = signals(rows, dim, device.torch)
    found: list[tuple[Tensor, Tensor]] = []

    def ours() -> None:
        pca = StreamingPCA(dim, keep)
        while pca.passes_left:
            pca.update(x)
            pca.end_pass()
        result = pca.components
        found[:] = [(result.mean, result.basis)]

    @precise
    def theirs() -> None:
        beside[:] = [(x.mean(0), torch.pca_lowrank(x, keep, niter=2)[2])]

    beside: list[tuple[Tensor, Tensor]] = []
    plan = StreamingPCA(dim, keep)
    # In every pass X times a sketch, and its transpose times that; for up to 2,048 dimensions one scatter matrix.
    sketch = Work(plan.passes * 4.0 * rows * dim * plan.sketch, rows * plan.sketch**2, plan.passes * 4.0 * rows * dim)
    entry = device.measure(name, ours, Work(0, rows * dim**2, 4.0 * rows * dim) if plan.exact else sketch, rounds=3)
    entry["captured"] = _captured(x, *found[0])
    seconds = device.seconds(theirs, 1)  # what it calls is warm by ours
    entry["beside"] = {"torch.pca_lowrank": {"seconds": seconds[0], "captured": _captured(x, *beside[0])}}
    yield entry | {"rows": rows, "dim": dim, "keep": keep, "passes": plan.passes}


def many(
    device: Device, *, name: str, classes: int, dim: int, rows: int, scored: int, profiled: int, rounds: int = 2
) -> Iterator[Entry]:
    """One full Gaussian a class, then one covariance for all classes, fitted and scored."""
    data = ManyClasses(classes, dim, device.torch)
    z, y = data.draw(rows)
    unseen, label = data.draw(scored)
    size = {"rows": rows, "dim": dim, "classes": classes}
    fewer = slice(0, rows // 20)  # a twentieth of the classes, as large as all are: what is profiled
    few = y[fewer] % max(1, classes // 20)

    fitted: list[Any] = []

    def full() -> None:
        fitted.clear()  # a second one beside it would count as memory of the fit
        density = GaussianMixture(1)
        _fit_silently(density, z, y)
        fitted.append(density)

    work = Work(float(rows) * dim**2, classes * dim**3 * 2 / 3, 4.0 * rows * dim + 4.0 * classes * dim**2)
    part = partial(_fit_silently, GaussianMixture(1), z[fewer], few)
    fit_entry = device.measure(f"{name}-full-fit", full, work, rounds=rounds, part=part) | {
        **size,
        **{f"{kept}_gb": 1e-9 * getattr(fitted[0], kept).nbytes for kept in ("factor", "packed")},
    }
    score_entry = _score(device, fitted[0], unseen, f"{name}-full-score", rounds=rounds, profiled=profiled)
    likeliest = fitted[0].log_prob(unseen[:profiled], fitted[0].classes).argmax(1)
    score_entry |= size | {"scored": scored, "accuracy": float((likeliest == label[:profiled]).double().mean())}
    fitted.clear()  # theirs takes most of a GPU's memory
    for entry, found in zip((fit_entry, score_entry), _pytorch_ood(device, z, y, unseen), strict=True):
        yield entry | {"beside": {"pytorch-ood's GMM, in float64": found}}

    pooled: dict[str, Any] = {"covariance": "pooled", "dtype": "float64"}

    def tied() -> None:
        fitted.clear()
        fitted.append(GaussianMixture(**pooled).fit(z, y))

    work = Work(0.0, float(rows) * dim**2 + dim**3 * 2 / 3, 4.0 * rows * dim)
    some = partial(GaussianMixture(**pooled).fit, z[fewer], few)
    yield device.measure(f"{name}-tied-fit", tied, work, rounds=rounds, part=some) | size
    batches = list(zip(z.split(BATCH), y.split(BATCH), strict=True))

    def streamed() -> None:
        network, options = Handing(classes), {"condition": "label", "max_dim": None, "progress": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Mahalanobis(network, "hidden", task="classification", **options).fit(batches)

    # What a stream must do is the same; it need not hold all rows, nor copies of them.
    yield device.measure(f"{name}-streamed-fit", streamed, work, rounds=rounds) | {**size, "batch": BATCH}
    work = Work(0.0, scored * dim * (dim + 2.0 * classes), 4.0 * scored * dim + 8.0 * scored * classes)
    nearest = fitted[0].log_prob(unseen[:profiled], fitted[0].classes).argmax(1)
    yield device.measure(
        f"{name}-tied-score", partial(fitted[0].log_prob, unseen, fitted[0].classes), work, rounds=rounds
    ) | {
        **size,
        "scored": scored,
        "accuracy": float((nearest == label[:profiled]).double().mean()),
    }


@precise
def _stacked(device: Device, dim: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of each class (C, n, d) around their middle, ones for them (C, n), and the k-means start (C, n, k)."""
    z, y = clusters(CLASSES, COMPONENTS, rows, dim, device.torch)
    order = y.argsort(stable=True)
    x = z[order].unflatten(0, (CLASSES, rows // CLASSES))
    x = x - x.mean(1, keepdim=True)
    present = torch.ones(x.shape[:2], device=device.torch)
    return x, present, kmeans(x, present, COMPONENTS)


def _start_seconds(device: Device, dim: int, rows: int) -> list[float]:
    x, present, _ = _stacked(device, dim, rows)
    return device.seconds(partial(kmeans, x, present, COMPONENTS), 4)[1:]


def _rows_with_weight(x: Tensor, present: Tensor, start: Tensor, options: EMOptions) -> list[float]:
    """The share of responsibilities that are not nothing in float32, before each M-step."""
    shares, given = [], start
    for _ in range(options.max_iter + 1):
        shares.append(float((given > torch.finfo(given.dtype).eps ** 2).double().mean()))
        mixtures = fit_mixtures(x, present, given, options._replace(max_iter=0)).mixtures
        given = component_log_prob(x, mixtures, "full").softmax(-1)
    return shares


def _likelihoods(x: Tensor, fit: Fit) -> Tensor:
    return component_log_prob(x, fit.mixtures, "full").logsumexp(-1).double().mean(1)  # (C,)


def _sklearn(x: Tensor, start: Tensor, steps: int, limit: float) -> Entry:
    """Scikit-learn's steps from the same start, class after class, unless it takes too long."""
    try:
        from sklearn.mixture import GaussianMixture as SklearnMixture
    except ImportError:
        return {"note": "scikit-learn is not on this machine."}
    begin, spent = time.perf_counter(), 0.0
    found: list[float] = []
    for rows, given in zip(x.double().cpu().numpy(), start.double().cpu().numpy(), strict=True):
        if time.perf_counter() - begin > limit:
            return {"note": f"stopped after {len(found)} of {len(x)} classes, at {limit:g} s."}
        model, log_responsibility = SklearnMixture(COMPONENTS), np.log(given + 1e-300)
        before = time.perf_counter()
        model._m_step(rows, log_responsibility)
        for _ in range(steps):
            _, log_responsibility = model._e_step(rows)
            model._m_step(rows, log_responsibility)
        spent += time.perf_counter() - before
        found.append(model.score(rows))
    return {"seconds": spent, "log_likelihood": float(np.mean(found)), "precision": "float64"}


def _pytorch_ood(device: Device, z: Tensor, y: Tensor, unseen: Tensor, batch: int = 256) -> tuple[Entry, Entry]:
    """A fit and a score of one full Gaussian a class by another hand: one round each."""
    try:
        detector = ood.detectors().GMM(None, reg=1e-6)
        fit = device.seconds(partial(detector.fit_features, z, y), 1)[0]
        # All classes times all dimensions of a batch lie in memory at once.
        score = device.seconds(lambda: [detector.predict_features(some) for some in unseen.split(batch)], 1)[0]
    except (ImportError, RuntimeError, ValueError) as error:  # no memory left is one
        note = {"note": str(error).splitlines()[0]}
        return note, note
    return {"seconds": fit}, {"seconds": score}


def _fit_silently(density: GaussianMixture, z: Tensor, y: Tensor) -> None:
    with warnings.catch_warnings(), bars(False):
        warnings.simplefilter("ignore")  # not converged: told by the number of steps
        density.fit(z, y)


@contextmanager
def _seen_fits() -> Iterator[list[Fit]]:
    """What EM gave to those that asked for it meanwhile."""
    seen: list[Fit] = []

    def spy(*given: Any) -> Fit:
        seen.append(fit_mixtures(*given))
        return seen[-1]

    with patch.object(_classes, "fit_mixtures", spy):
        yield seen


def _score(
    device: Device, density: GaussianMixture, z: Tensor, name: str, *, rounds: int, profiled: int | None = None
) -> Entry:
    classes, components, dim = density.mean.shape
    gaussians = classes * components
    moved = 4.0 * (z.numel() + gaussians * dim * (dim + 1) / 2 + len(z) * classes)
    work = Work(float(len(z)) * gaussians * dim**2, 0.0, moved)
    run = partial(density.log_prob, z, density.classes)
    part = partial(density.log_prob, z[:profiled], density.classes)
    return device.measure(name, run, work, rounds=rounds, part=part) | {
        "gaussians": gaussians,
        "largest_relative_error": _error(density, z[:CHECKED]),
    }


def _error(density: GaussianMixture, z: Tensor) -> float:
    """Of scores in float32, against the same Gaussians in float64, as a share of |log p| or d (log p may be 0)."""
    some = density.classes[: max(1, 256 // density.mean.shape[1])]
    found = density.log_prob(z, some).double()
    expected = torch.empty_like(found)
    for c in range(len(some)):
        centred = z.double() - density.mean[c].double()[:, None]  # (k, n, d)
        squares = torch.bmm(centred, density.factor[c].double()).square().sum(-1)
        expected[:, c] = (density.log_scale[c].double()[:, None] - 0.5 * squares).logsumexp(0)
    return float(((found - expected).abs() / expected.abs().clamp(min=z.shape[1])).max())


def _tried(device: Device, density: GaussianMixture, z: Tensor) -> list[Entry]:
    """Seconds of scoring with other widths of a block and other sizes of what is multiplied at a time."""
    found = []
    for width in (16, 32, 64, 128):
        with patch.object(_packed, "WIDTHS", (width,)):
            density._pack()
        for chunk in (1 << 22, 1 << 24, 1 << 26):
            with patch.dict(_packed.CHUNK, other=chunk):
                seconds = device.seconds(partial(density.log_prob, z, density.classes), 4)[1:]
            found.append({"width": width, "chunk": chunk, "rows": len(z), "seconds": min(seconds)})
    density._pack()
    return found


@precise
def _captured(x: Tensor, mean: Tensor, basis: Tensor) -> float:
    """The share of the variance of the rows that lies within the basis."""
    inside = total = 0.0
    for part in x.split(4096):
        centred = part - mean
        inside += float((centred @ basis).double().square().sum())
        total += float(centred.double().square().sum())
    return inside / total
