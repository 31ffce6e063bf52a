"""Mixtures of all classes: how many components each gets, which are fitted together, what small classes get."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...progress import progress_bar
from ..linalg import Shrinkage, find_target, gram, mean_square, own_order, power_of_two, precision_factor
from ._em import Covariance, EMOptions, Fit, Mixtures, factor_shape, fit_mixtures
from ._kmeans import kmeans

STACK = 1 << 28  # elements of a stack of classes at most, padded rows or covariances (2 GiB of float64)
STACK_CPU = 1 << 17  # a larger class keeps a CPU busy; small ones are up to 14 times as fast together (bench/)


class ClassFit(NamedTuple):
    """Mixtures of C classes, the centre of all data, and what to tell the user about them."""

    classes: Tensor  # (C,)
    center: Tensor  # (d,)
    mixtures: Mixtures  # of C classes, padded to the same number of components; means in float64
    converged: Tensor  # (C,)
    fallbacks: list[str]


def fit_classes(
    z: Tensor,
    y: Tensor,
    components: int,
    options: EMOptions,
    *,
    restarts: int,
    min_samples: int,
    seed: int,
    variance: float | None = None,
    pooling: float = 0.0,
) -> ClassFit:
    """Fit one mixture per class to rows z (n, d) with classes y (n,).

    Args:
        z: rows.
        y: their classes.
        components: per class.
        options: of EM; the ridge is a share of `variance`.
        restarts: starts tried.
        min_samples: rows that a class must have for each component.
        seed: of the directions in which all starts but the first split clusters.
        variance: None is that of all rows around the means of their classes, averaged over dimensions; where rows
            repeat within classes it is that around the mean of all, and where all are the same, their mean square.
        pooling: where it is not zero, the covariance of each class is averaged with the pooled one, as if that came
            with this many times d rows more.
    """
    classes, counts = y.unique(return_counts=True)
    sizes = counts.tolist()
    rows = list(z[own_order(z, y)].split(sizes))
    middle = torch.stack([r.mean(0, dtype=torch.float64).to(z.dtype) for r in rows])  # (C, d)
    for r, m in zip(rows, middle, strict=True):
        r -= m  # classes may lie far apart: centred on its own middle, each keeps its digits
    if variance is None:
        variance = _variance(z, rows)
    # In units that are about a deviation, no square over- or underflows; by a power of two, no digit changes.
    unit = power_of_two(variance**0.5)
    for r in rows:
        r /= unit
    ridge, options = options.ridge, options._replace(ridge=options.ridge * variance / unit**2)
    granted = [max(1, min(components, size // min_samples)) for size in sizes]
    random = torch.Generator().manual_seed(seed)
    starts: list[Tensor | None] = [None]  # more restarts include the fewer
    for _ in range(restarts - 1):
        starts.append(torch.randn(components, z.shape[1], generator=random, dtype=torch.float64, device="cpu").to(z))
    out = _Buffers(len(sizes), components, z.shape[1], options.covariance, z)
    one_for_all = options.covariance == "pooled"
    small = [c for c, size in enumerate(sizes) if size < min_samples or pooling or one_for_all]
    with progress_bar("fitting mixtures", len(sizes)) as bar:
        for stack in _stacks(sizes, granted, z, leave_out=small):
            x, present = _pad([rows[c] for c in stack])
            k = granted[stack[0]]
            best: Fit | None = None
            for directions in starts if k > 1 else starts[:1]:
                fit = _fit_stack(x, present, kmeans(x, present, k, directions), options)
                best = fit if best is None else _better(best, fit, options.tol)
            assert best is not None
            out.store(stack, best)
            bar.advance(len(stack), likelihood=float(best.log_likelihood.mean()) - z.shape[1] * math.log(unit))
        if small:
            scatter, pooled = _pooled(rows, options.shrinkage, keep=() if one_for_all else small)
            for c in small:
                if not one_for_all or c == small[0]:
                    fit = _borrow(rows[c], scatter.pop(c, None), pooled, (pooling or 1.0) * z.shape[1], options)
                else:  # the same covariance around another mean
                    mean = rows[c].mean(0, dtype=torch.float64).to(z.dtype)[None, None]
                    fit = fit._replace(mixtures=fit.mixtures._replace(mean=mean))
                out.store([c], fit)
                bar.advance()
    names = classes.tolist()
    if not bool(out.sound.all()):
        bad = [names[c] for c in (~out.sound).nonzero()[:, 0].tolist()]
        raise ValueError(
            f"the covariance of class {bad} is singular to working precision even with ridge={ridge:g}: "
            "raise ridge, set shrinkage='ledoit-wolf', or reduce the dimensions further."
        )
    fallbacks = [
        f"class {names[c]} came {size} times, {_fallback(size, granted[c], components, min_samples)}"
        for c, size in enumerate(sizes)
        if (granted[c] < components or size < min_samples) and not (pooling or one_for_all)
    ]
    log_weight, mean, factor = out.mixtures
    mixtures = Mixtures(log_weight, unit * mean.double() + middle[:, None].double(), factor.div_(unit))
    center = (counts[:, None] * middle.double()).sum(0) / len(z)
    return ClassFit(classes, center.to(z.dtype), mixtures, out.converged, fallbacks)


def _fallback(size: int, granted: int, components: int, min_samples: int) -> str:
    """What became of a class with too few rows."""
    if components == 1:
        return f"fewer than min_samples={min_samples}: shrunk towards the pooled covariance"
    shrunk = ", shrunk towards the pooled covariance" if size < min_samples else ""
    return f"too few for {components} components of {min_samples} samples each: fitted {granted}{shrunk}"


def _variance(z: Tensor, rows: list[Tensor]) -> float:
    """The mean variance within classes, given rows and centred rows; or what else tells the scale of the data."""
    square = mean_square([z])
    rounding = (32 * torch.finfo(z.dtype).eps) ** 2 * square  # what the variance of a constant may come out as
    within = mean_square(rows)
    if within > rounding:
        return within
    across = mean_square([z - z.mean(0)])
    return across if across > rounding else square or 1.0


def _fit_stack(x: Tensor, present: Tensor, start: Tensor, options: EMOptions) -> Fit:
    """EM in the features' precision, and again in float64 for classes where that was too coarse."""
    fit = fit_mixtures(x, present, start, options)
    coarse = (~fit.sound).nonzero()[:, 0]
    if x.dtype == torch.float64 or len(coarse) == 0:
        return fit
    fine = fit_mixtures(x[coarse].double(), present[coarse].double(), start[coarse].double(), options)

    def mend(old: Tensor, new: Tensor) -> Tensor:
        return old.index_copy(0, coarse, new.to(old.dtype))

    return _combine(mend, fit, fine)


def _better(one: Fit, other: Fit, margin: float) -> Fit:
    """Class by class, the likelier of two fits; the first where rounding and stopping, rather than data, decide."""
    which = other.sound & ((other.log_likelihood > one.log_likelihood + margin) | ~one.sound)

    def pick(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(which.view(-1, *[1] * (new.dim() - 1)), new, old)

    return _combine(pick, one, other)


def _combine(how: Callable[[Tensor, Tensor], Tensor], one: Fit, other: Fit) -> Fit:
    """One fit from two, field by field."""
    mixtures = Mixtures(*map(how, one.mixtures, other.mixtures))
    return Fit(mixtures, *map(how, one[1:], other[1:]))


def _stacks(sizes: list[int], granted: list[int], z: Tensor, leave_out: list[int]) -> Iterator[list[int]]:
    """Classes of similar size, to be fitted together: a call for many small ones costs little more than for one."""
    dim = z.shape[1]
    limit = STACK_CPU if z.device.type == "cpu" else STACK
    order = sorted(set(range(len(sizes))) - set(leave_out), key=lambda c: (granted[c], sizes[c]))
    stack: list[int] = []
    for c in order:
        alike = stack and granted[c] == granted[stack[0]] and sizes[c] <= 1.25 * sizes[stack[0]] + 16
        largest = dim * max(sizes[c], granted[c] * dim)  # its rows, or its covariances
        fits = (len(stack) + 1) * largest <= limit
        if stack and not (alike and fits):
            yield stack
            stack = []
        stack.append(c)
    if stack:
        yield stack


def _pad(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack classes of different size: rows (B, n, d), and 1 where there is one (B, n)."""
    if len(rows) == 1:
        return rows[0][None], rows[0].new_ones(1, len(rows[0]))
    x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    size = torch.tensor([len(r) for r in rows], device=x.device)
    return x, (torch.arange(x.shape[1], device=x.device) < size[:, None]).to(x.dtype)


def _pooled(rows: list[Tensor], shrinkage: Shrinkage | None, keep: Collection[int]) -> tuple[dict[int, Tensor], Tensor]:
    """Σ x xᵀ of centred rows of some classes, and the covariance within all of them, (d, d), in float64."""
    kept: dict[int, Tensor] = {}
    total = torch.zeros(rows[0].shape[1], rows[0].shape[1], dtype=torch.float64, device=rows[0].device)
    fourth = torch.zeros((), dtype=torch.float64, device=total.device)
    count = sum(len(r) for r in rows)
    for c, r in enumerate(rows):
        centred = r.double() - r.double().mean(0)
        scatter = gram(centred[None])[0]
        total += scatter
        fourth += centred.square().sum(1).square().sum()
        if c in keep:
            kept[c] = scatter
    total /= count
    if shrinkage is None:
        return kept, total
    total = total[None, None]
    target = find_target(total, total.new_full((1, 1), count), fourth[None, None], shrinkage)
    return kept, target.shrink(total)[0, 0]


def _borrow(x: Tensor, scatter: Tensor | None, pooled: Tensor, weight: float, options: EMOptions) -> Fit:
    """One Gaussian for a class.

    Args:
        x: its rows, (n, d).
        scatter: Σ x xᵀ of its centred rows, (d, d); None leaves it out.
        pooled: the covariance of all classes.
        weight: how many rows that counts for.
        options: the form of the covariance, and what is added to it.
    """
    n, dim = x.shape
    mean = x.double().mean(0)[None, None]  # (1, 1, d)
    cov = (pooled.clone() if scatter is None else (scatter + weight * pooled) / (n + weight))[None]
    cov.diagonal(dim1=-2, dim2=-1).add_(options.ridge)
    if options.covariance in ("full", "tied", "pooled"):
        factor, good = precision_factor(cov)
    else:
        variance = cov.diagonal(dim1=-2, dim2=-1)  # (1, d)
        variance = variance if options.covariance == "diag" else variance.mean(-1, keepdim=True)
        factor, good = variance.rsqrt(), (variance > 0).all(1)
    factor = factor.reshape(factor_shape(1, 1, dim, options.covariance))
    mixtures = Mixtures(x.new_zeros(1, 1), mean.to(x.dtype), factor.to(x.dtype))
    unused = torch.zeros(1, device=x.device)
    return Fit(mixtures, unused.double(), unused.long(), torch.ones_like(good), good)


class _Buffers:
    """Parameters of all classes, filled stack by stack; components that a class does not have weigh nothing."""

    def __init__(self, classes: int, components: int, dim: int, covariance: Covariance, like: Tensor) -> None:
        self.covariance = covariance
        self.mixtures = Mixtures(
            like.new_full((classes, components), -torch.inf),
            like.new_zeros(classes, components, dim),
            # Ones, so that the logarithm of an unused factor is finite.
            like.new_ones(factor_shape(classes, components, dim, covariance)),
        )
        self.converged = torch.zeros(classes, dtype=torch.bool, device=like.device)
        self.sound = torch.zeros(classes, dtype=torch.bool, device=like.device)

    def store(self, stack: list[int], fit: Fit) -> None:
        index = torch.tensor(stack, device=self.sound.device)
        log_weight, mean, factor = fit.mixtures
        k = log_weight.shape[1]
        self.mixtures.log_weight[index, :k] = log_weight
        self.mixtures.mean[index, :k] = mean
        if self.covariance == "pooled":
            self.mixtures.factor.copy_(factor)
        elif self.covariance == "tied":
            self.mixtures.factor[index] = factor
        else:
            self.mixtures.factor[index, :k] = factor
        self.converged[index] = fit.converged
        self.sound[index] = fit.sound
