"""Mixtures of rows that lie on disk: EM over passes of them, from a start that a part of them gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...extract.features import keys_of
from ...notes import note
from ...progress import progress_bar
from ..linalg import power_of_two
from ._classes import ClassFit, fit_classes
from ._em import FOLLOW, SLOWEST, EMOptions, Mixtures, factorise, has_digits, relative_log_prob
from .moments import Moments

START = 1 << 16  # rows that EM starts from, of all classes together
FEWEST = 20  # times the rows that a class must have: as many at least of each


class Chunks(Protocol):
    """Rows with their classes, which can be read several times, some at a time, in the same order."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


class _Progress(NamedTuple):
    """Of a class: how far log p of its rows still changes."""

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
    classes, dtype = fit.classes.tolist(), z.dtype
    chosen = dict(zip(classes, y.unique(return_counts=True)[1].tolist(), strict=True))
    active = {c: _Progress() for c in classes if chosen[c] < sizes[c]}
    if not active:
        return fit
    spreads = [z[y == c].double().var(0, correction=0).mean() * int((y == c).sum()) for c in classes]
    variance = float(torch.stack(spreads).sum()) / len(z) or 1.0
    del z, y
    unit = power_of_two(variance**0.5)
    options = options._replace(ridge=options.ridge * variance / unit**2)
    log_weight, mean, factor = fit.mixtures
    middle = mean.mean(1)  # about which each class keeps its digits
    mixtures = {
        c: Mixtures(log_weight[i][None], ((mean[i] - middle[i]) / unit).to(dtype)[None], factor[i][None] * unit)
        for i, c in enumerate(classes)
        if c in active
    }
    where = {c: i for i, c in enumerate(classes)}
    device = mean.device
    before = torch.zeros(sum(sizes.values()), dtype=torch.float32, device=device)  # log p of each row, one pass ago
    wide = dict.fromkeys(active, False)
    with progress_bar("EM over all rows", options.max_iter) as bar:
        for step in range(options.max_iter):
            going = [c for c in active if not active[c].done]
            moments = {c: Moments.empty(components, mean.shape[-1], "each", device) for c in going}
            if not moments:
                break
            changed = dict.fromkeys(moments, 0.0)
            place = 0
            for z, y in rows:
                own_before = before[place : place + len(y)]
                place += len(y)
                for c in moments:
                    which = (y == c).nonzero()[:, 0]
                    if len(which) == 0:
                        continue
                    x = ((z[which].double() - middle[where[c]]) / unit).to(torch.float64 if wide[c] else dtype)
                    own = Mixtures(*(part.to(x.dtype) for part in mixtures[c]))
                    joint, common = relative_log_prob(x[None], own, options.covariance)
                    log_norm = joint[0].logsumexp(-1, keepdim=True)
                    now = (log_norm[:, 0] + common.to(x.dtype)).float()
                    changed[c] += float((now - own_before[which]).abs().double().sum())
                    own_before[which] = now
                    weight = (joint[0] - log_norm).exp_()
                    for k in range(components):
                        some = (weight[:, k] > torch.finfo(dtype).eps ** 2).nonzero()[:, 0]
                        moments[c].add_weighted(k, x[some], weight[some, k])
            for c, sums in moments.items():
                known = active[c]
                change = changed[c] / sizes[c] if step else torch.inf
                rate = min(change / known.change, SLOWEST) if step else SLOWEST
                left = max(change, change * rate / (1 - rate))
                settled = known.settled or left < FOLLOW
                intensity = known.intensity if settled else torch.nan
                mixtures[c], intensity, coarse = _maximise(sums, options, intensity, dtype)
                wide[c] = wide[c] or coarse
                active[c] = _Progress(change, intensity, settled, left < options.tol)
            bar.advance()
    converged = fit.converged.clone()
    for c, (log_w, mu, w) in mixtures.items():
        i = where[c]
        log_weight[i], mean[i], factor[i] = log_w[0], mu[0].double() * unit + middle[i], (w[0] / unit).to(dtype)
        converged[i] = active[c].done or active[c].change < options.tol
    return fit._replace(mixtures=Mixtures(log_weight, mean, factor), converged=converged)


def _maximise(sums: Moments, options: EMOptions, intensity: float, dtype: torch.dtype) -> tuple[Mixtures, float, bool]:
    """The M-step of one class: its mixture, how far it was shrunk, and whether float32 is too coarse for its E-step."""
    central = sums.central()
    assert central.fourth is not None
    least = 10 * torch.finfo(dtype).eps
    count = central.count[None] + least
    log_weight = (count / count.sum()).log().masked_fill(count < 2 * least, -torch.inf)
    rounding = (32 * torch.finfo(torch.float64).eps * central.mean[None]).square()
    asked = count.new_tensor([intensity])
    factor, sound, found = factorise(count, central.scatter[None], central.fourth[None], options, asked, rounding)
    if not bool(sound.all()):
        raise ValueError(
            "a covariance is singular to working precision: raise ridge, set shrinkage='ledoit-wolf', or reduce the "
            "dimensions further."
        )
    # The covariance that the factor stands for is what digits are asked of.
    whole = central.scatter / count[0][:, None, None]
    coarse = dtype != torch.float64 and not bool(
        has_digits(whole, factor[0], rounding[0].float()).all() if options.covariance == "full" else True
    )
    kept = torch.float64 if coarse else dtype
    return Mixtures(log_weight.to(kept), central.mean[None].to(kept), factor.to(kept)), float(found[0]), coarse


def _start(rows: Chunks, fewest: int) -> tuple[Tensor, Tensor, dict[int, int]]:
    """Rows of each class that are chosen by content, or all where they are few; and how many rows each class has."""
    parts = [(keys_of(z), y) for z, y in rows]
    keys, y = torch.cat([key for key, _ in parts]), torch.cat([part for _, part in parts])
    classes, counts = y.unique(return_counts=True)
    most = max(fewest, START // len(classes))
    last = {int(c): keys[y == c].sort().values[:most][-1] for c in classes}
    limit = keys.new_zeros(int(classes.max()) + 1)
    for c, key in last.items():
        limit[c] = key
    chosen = []
    for z, own in rows:
        low = keys_of(z) <= limit[own]
        chosen.append((z[low], own[low]))
    note(f"EM starts from {sum(len(own) for _, own in chosen):,} of {len(y):,} rows.")
    sizes = dict(zip(classes.tolist(), counts.tolist(), strict=True))
    return torch.cat([z for z, _ in chosen]), torch.cat([own for _, own in chosen]), sizes
