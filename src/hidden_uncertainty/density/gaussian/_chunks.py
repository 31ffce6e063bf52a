"""Mixtures of rows that lie on disk: EM over passes of them, from a start that a part of them gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...extract.features import keys_of
from ...notes import note
from ...progress import progress_bar
from ..linalg import power_of_two
from ._classes import ClassFit, fit_classes
from ._em import FOLLOW, SLOWEST, EMOptions, Mixtures, factorise, relative_log_prob, rounding_of
from .moments import Moments

START = 1 << 16  # rows that EM starts from, of all classes together
LEAST = 1e-14  # responsibilities below it count as none
LOST = 1e-6  # rows of a component that has lost all of them
FEWEST = 20  # times the rows that a class must have: as many at least of each


class Chunks(Protocol):
    """Rows with their classes, which can be read several times, some at a time, in the same order."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass
class _Running:
    """The mixture of a class, in a unit and about the class's middle, and how far log p of its rows still changes."""

    place: int  # among the classes
    mixtures: Mixtures  # in float64
    change: float = torch.inf
    intensity: float = torch.nan
    settled: bool = False
    done: bool = False


def fit_chunks(rows: Chunks, options: EMOptions) -> ClassFit:
    """Fit one mixture per class, as `fit_classes`, in memory that hardly depends on the number of rows.

    A class of which all rows are in the start is fitted to them. For others, EM goes on over all their rows, each step
    a pass: the E-step goes over chunks, and the M-step takes sums weighted by responsibilities.
    """
    components = options.components
    z, y, sizes = _start(rows, FEWEST * components * options.min_samples)
    fit = fit_classes(z, y, options)
    log_weight, mean, factor = fit.mixtures
    classes, counts = fit.classes.tolist(), y.unique(return_counts=True)[1].tolist()
    spreads = [float(z[y == c].double().var(0, correction=0).mean()) for c in classes]
    variance = sum(n * spread for n, spread in zip(counts, spreads, strict=True)) / len(z) or 1.0
    unit, middle = power_of_two(variance**0.5), mean.mean(1)  # about which each class keeps its digits
    centred = (mean - middle[:, None]) / unit
    running = {
        c: _Running(i, Mixtures(log_weight[i, None].double(), centred[i, None], factor[i, None].double() * unit))
        for i, c in enumerate(classes)
        if counts[i] < sizes[c]
    }
    if not running:
        return fit
    del z, y
    options = options._replace(ridge=options.ridge * variance / unit**2)
    before = torch.zeros(sum(sizes.values()), dtype=torch.float32, device=mean.device)  # log p of rows, one pass ago
    with progress_bar("EM over all rows", options.max_iter) as bar:
        for step in range(options.max_iter):
            going = {c: one for c, one in running.items() if not one.done}
            if not going:
                break
            moments = {c: Moments.empty(components, mean.shape[-1], "each", mean.device) for c in going}
            changed, start = dict.fromkeys(going, 0.0), 0
            for z, y in rows:
                last, start = before[start : start + len(y)], start + len(y)
                for c, one in going.items():
                    which = (y == c).nonzero()[:, 0]
                    if len(which) == 0:
                        continue
                    x = (z[which].double() - middle[one.place]) / unit
                    joint, common = relative_log_prob(x[None], one.mixtures, options.covariance)
                    log_norm = joint[0].logsumexp(-1, keepdim=True)
                    now = (log_norm[:, 0] + common).float()
                    changed[c] += float((now - last[which]).abs().double().sum())
                    last[which] = now
                    weight = (joint[0] - log_norm).exp_()
                    for k in range(components):
                        some = (weight[:, k] > LEAST).nonzero()[:, 0]
                        moments[c].add_weighted(k, x[some], weight[some, k])
            for c, one in going.items():
                change = changed[c] / sizes[c] if step else torch.inf
                rate = min(change / one.change, SLOWEST) if step else SLOWEST
                left = max(change, change * rate / (1 - rate))
                one.change, one.settled, one.done = change, one.settled or left < FOLLOW, left < options.tol
                _maximise(one, moments[c], options)
            bar.advance()
    for one in running.values():
        i, (log_w, mu, w) = one.place, one.mixtures
        log_weight[i], mean[i], factor[i] = log_w[0], mu[0] * unit + middle[i], w[0] / unit
        fit.converged[i] = one.done or one.change < options.tol
    return fit


def _maximise(one: _Running, moments: Moments, options: EMOptions) -> None:
    """The M-step of one class."""
    central = moments.central()
    assert central.fourth is not None
    count = central.count[None] + 10 * torch.finfo(torch.float64).eps
    log_weight = (central.count / count.sum()).log().masked_fill(central.count < LOST, -torch.inf)
    asked = count.new_tensor([one.intensity if one.settled else torch.nan])
    sums = (count, central.scatter[None], central.fourth[None])
    factor, sound, found = factorise(*sums, options, asked, rounding_of(central.mean[None]))
    if not bool(sound.all()):
        raise ValueError(
            "a covariance is singular to working precision: raise ridge, set shrinkage='ledoit-wolf', or reduce the "
            "dimensions further."
        )
    one.mixtures, one.intensity = Mixtures(log_weight[None], central.mean[None], factor), float(found[0])


def _start(rows: Chunks, fewest: int) -> tuple[Tensor, Tensor, dict[int, int]]:
    """Rows of each class that are chosen by content, or all where they are few; and how many rows each class has."""
    keys, y = map(torch.cat, zip(*((keys_of(z), y) for z, y in rows), strict=True))
    classes, counts = y.unique(return_counts=True)
    most = max(fewest, START // len(classes))
    limit = keys.new_zeros(int(classes.max()) + 1)
    for c in classes:
        limit[c] = keys[y == c].sort().values[:most][-1]
    chosen = ((z, own, keys_of(z) <= limit[own]) for z, own in rows)
    z, own = map(torch.cat, zip(*((z[low], own[low]) for z, own, low in chosen), strict=True))
    note(f"EM starts from {len(own):,} of {len(y):,} rows.")
    return z, own, dict(zip(classes.tolist(), counts.tolist(), strict=True))
