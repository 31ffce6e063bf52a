"""Mixtures of all classes: how many components each gets, which are fitted together, what small classes get."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...progress import progress_bar
from ..base import check_reach
from ..linalg import mean_square, own_order, power_of_two, shrink
from ._em import EMOptions, Fit, Mixtures, factor_shape, fit_mixtures, rounding_of, sound_factor
from .moments import Central, Moments

STACK = 1 << 28  # elements of a stack of classes at most, padded rows or covariances (2 GiB of float64)
STACK_CPU = 1 << 17  # a larger class keeps a CPU busy; small ones are up to 14 times as fast together (bench/)
STEPS = 2  # of 2-means, with which starts are as good as greedy k-means++
LLOYD = 300  # iterations at most


class ClassFit(NamedTuple):
    """Mixtures of C classes, the centre of all data, and what to tell the user about them."""

    classes: Tensor  # (C,)
    center: Tensor  # (d,)
    mixtures: Mixtures  # of C classes, padded to the same number of components; means in float64
    converged: Tensor  # (C,)
    fallbacks: list[str]


def fit_classes(z: Tensor, y: Tensor, options: EMOptions, variance: float | None = None) -> ClassFit:
    """Fit one mixture per class to rows z (n, d) with classes y (n,).

    The ridge is a share of the variance, where None is that of all rows around the means of their classes, averaged
    over dimensions; where rows repeat within classes it is that around the mean of all, and where all are the same,
    their mean square.
    """
    components, min_samples = options.components, options.min_samples
    classes, counts = y.unique(return_counts=True)
    sizes = counts.tolist()
    x = z[own_order(z, y)]
    rows = list(x.split(sizes))
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
    blank = Mixtures(
        z.new_full((len(sizes), components), -torch.inf),  # components that a class does not have weigh nothing
        z.new_zeros(len(sizes), components, z.shape[1]),
        z.new_ones(factor_shape(len(sizes), components, z.shape[1], options.covariance)),  # with a finite logarithm
    )
    out = Fit(blank, counts.double(), counts.clone(), counts < 0, counts < 0)
    small = [c for c, size in enumerate(sizes) if size < min_samples]
    with progress_bar("fitting mixtures", len(sizes)) as bar:
        for stack in _stacks(sizes, granted, z, leave_out=small):
            padded, present = _pad([rows[c] for c in stack])
            fit = _fit_stack(padded, present, kmeans(padded, present, granted[stack[0]]), options)
            _store(out, stack, fit)
            bar.advance(len(stack), likelihood=float(fit.log_likelihood.mean()) - z.shape[1] * math.log(unit))
        if small:
            pooled = Moments.of(x, y.sort().values.unique(return_inverse=True)[1], len(sizes), "pooled").central()
            few = torch.cat([rows[c] for c in small])
            which = torch.arange(len(small), device=z.device).repeat_interleave(counts[small])
            own, weight = Moments.of(few, which, len(small), "each").central(), z.new_full((len(small),), z.shape[1])
            _store(out, small, _one_each(own, pooled.covariance(options.shrinkage), weight, options, z.dtype))
            bar.advance(len(small))
    _check_sound(out.sound, classes, ridge)
    fallbacks = _fallbacks(classes, sizes, granted, options)
    log_weight, mean, factor = out.mixtures
    mixtures = Mixtures(log_weight, unit * mean.double() + middle[:, None].double(), factor.div_(unit))
    center = (counts[:, None] * middle.double()).sum(0) / len(z)
    return ClassFit(classes, center.to(z.dtype), mixtures, out.converged, fallbacks)


def fit_gaussians(moments: Moments, classes: Tensor, options: EMOptions, unit: float = 1.0) -> ClassFit:
    """Fit one Gaussian per class (C,) to sums over its rows, in a unit; classes without rows are left out.

    Covariances are full or pooled. The ridge is a share of the variance of rows around the means of their classes, as
    in `fit_classes`. A class with fewer than `min_samples` rows has its covariance averaged with the pooled one, as if
    that came with d rows more; with `pooling`, every class has, as if with this many times d rows more.
    """
    min_samples, pooling = options.min_samples, options.pooling
    central = moments.central()
    check_reach(unit * central.reach(), moments.dtype)
    ridge, options = options.ridge, options._replace(ridge=options.ridge * central.variance())
    seen = central.count > 0
    if not bool(seen.all()):
        classes, central = classes[seen], central[seen]
    count, mean = central.count, central.mean
    dim, sound = mean.shape[1], torch.ones_like(count, dtype=torch.bool)
    shape = factor_shape(len(count), 1, dim, options.covariance)
    factor = torch.empty(shape, dtype=moments.dtype, device=mean.device)
    small = count < min_samples
    if options.covariance == "pooled":
        covariance = central.covariance(options.shrinkage)
        factor[0], good = sound_factor(covariance, options.ridge, rounding_of(mean).amax(0))
        sound &= good
    else:
        weight = (small if not pooling else torch.ones_like(small)) * (pooling or 1.0) * dim
        pooled = central.covariance(options.shrinkage) if bool((weight > 0).any()) else None
        with progress_bar("fitting Gaussians", len(count)) as bar:
            for some in torch.arange(len(count), device=mean.device).split(max(1, STACK_CPU * 32 // dim**2)):
                fit = _one_each(central[some], pooled, weight[some], options, moments.dtype)
                factor[some], sound[some] = fit.mixtures.factor, fit.sound
                bar.advance(len(some))
    _check_sound(sound, classes, ridge)
    shared = bool(pooling) or options.covariance == "pooled"
    fallbacks = [] if shared else _fallbacks(classes, count.long().tolist(), [1] * len(count), options)
    mixtures = Mixtures(factor.new_zeros(len(count), 1), unit * mean[:, None], factor.div_(unit))
    center = (unit * central.middle).to(moments.dtype)
    return ClassFit(classes, center, mixtures, torch.ones_like(sound), fallbacks)


def _check_sound(sound: Tensor, classes: Tensor, ridge: float) -> None:
    if not bool(sound.all()):
        raise ValueError(
            f"the covariance of class {classes[~sound].tolist()} is singular to working precision even with "
            f"ridge={ridge:g}: raise ridge, set shrinkage='ledoit-wolf', or reduce the dimensions further."
        )


def _fallbacks(classes: Tensor, sizes: list[int], granted: list[int], options: EMOptions) -> list[str]:
    """What became of classes with too few rows."""
    components, least, found = options.components, options.min_samples, []
    for c, size, made in zip(classes.tolist(), sizes, granted, strict=True):
        if made < components or size < least:
            shrunk = ", shrunk towards the pooled covariance" if size < least else ""
            few = f"too few for {components} components of {least} samples each: fitted {made}{shrunk}"
            alone = f"fewer than min_samples={least}: shrunk towards the pooled covariance"
            found.append(f"class {c} came {size} times, {alone if components == 1 else few}")
    return found


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

    return Fit(Mixtures(*map(mend, fit.mixtures, fine.mixtures)), *map(mend, fit[1:], fine[1:]))


def _stacks(sizes: list[int], granted: list[int], z: Tensor, leave_out: list[int]) -> Iterator[list[int]]:
    """Classes of similar size, to be fitted together: a call for many small ones costs little more than for one."""
    dim, limit = z.shape[1], STACK_CPU if z.device.type == "cpu" else STACK
    order = sorted(set(range(len(sizes))) - set(leave_out), key=lambda c: (granted[c], sizes[c]))
    stack: list[int] = []
    for c in order:
        alike = stack and granted[c] == granted[stack[0]] and sizes[c] <= 1.25 * sizes[stack[0]] + 16
        fits = (len(stack) + 1) * dim * max(sizes[c], granted[c] * dim) <= limit  # its rows, or its covariances
        if stack and not (alike and fits):
            yield stack
            stack = []
        stack.append(c)
    if stack:
        yield stack


def _pad(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack classes of different size: rows (B, n, d), and 1 where there is one (B, n)."""
    if len(rows) == 1:  # without a copy
        return rows[0][None], rows[0].new_ones(1, len(rows[0]))
    present = [r.new_ones(len(r)) for r in rows]
    return pad_sequence(rows, batch_first=True), pad_sequence(present, batch_first=True)


def _one_each(own: Central, pooled: Tensor | None, weight: Tensor, options: EMOptions, dtype: torch.dtype) -> Fit:
    """One Gaussian for each of B classes, averaged with the pooled covariance (d, d), which counts for `weight` rows.

    Where that is zero, the covariance of a class is shrunk by itself.
    """
    count, mean, scatter, fourth = own.count, own.mean, own.scatter, own.fourth
    cov = scatter / count[:, None, None]
    if options.shrinkage is not None and bool((weight == 0).any()):
        assert fourth is not None
        cov = shrink(cov[:, None], count[:, None], fourth[:, None], options.shrinkage)[0][:, 0]
    if pooled is not None:
        with_all = (scatter + weight[:, None, None] * pooled) / (count + weight)[:, None, None]
        cov = torch.where(weight[:, None, None] > 0, with_all, cov)
    if options.covariance in ("full", "tied"):
        factor, good = sound_factor(cov, options.ridge, rounding_of(mean))
    else:
        variance = cov.diagonal(dim1=-2, dim2=-1) + options.ridge  # (B, d)
        variance = variance if options.covariance == "diag" else variance.mean(-1, keepdim=True)
        factor, good = variance.rsqrt(), (variance > 0).all(1)
    factor = factor.reshape(factor_shape(len(mean), 1, mean.shape[1], options.covariance)).to(dtype)
    mixtures = Mixtures(factor.new_zeros(len(mean), 1), mean[:, None].to(dtype), factor)
    unused = torch.zeros_like(count)
    return Fit(mixtures, unused, unused.long(), torch.ones_like(good), good)


def _store(whole: Fit, stack: list[int], part: Fit) -> None:
    """Put what some classes got where all classes are, with as many components or more."""
    index = torch.tensor(stack, device=whole.sound.device)
    for own, new in zip((*whole.mixtures, *whole[1:]), (*part.mixtures, *part[1:]), strict=True):
        place: tuple[Tensor | slice, ...] = (index, *(slice(size) for size in new.shape[1:]))
        own[place] = new


def kmeans(x: Tensor, present: Tensor, components: int, *, tol: float = 1e-4) -> Tensor:
    """Assign rows x (B, n, d), where present (B, n), to one of k clusters, the start of a mixture: (B, n, k), one-hot.

    Clusters are split in two, one after the other, and Lloyd's iterations follow until centres move less than a share
    `tol` of the mean variance. Nothing looks at the number of a row: the same rows in another order start alike, up to
    rounding. Distances and memberships lie in memory as (k, n): a minimum over few centres then runs over long rows.
    """
    if components == 1:
        return present[..., None]
    centres = _split(x, present, components)
    norm = x.square().sum(-1)  # (B, n)
    count = present.sum(1)  # (B,)
    mean = torch.bmm(present[:, None], x) / count[:, None, None]
    limit = tol * (_distances(x, norm, mean)[:, 0] * present).sum(1) / count / x.shape[-1]  # (B,)
    done = torch.zeros_like(limit, dtype=torch.bool)
    for _ in range(LLOYD + 1):  # the last one only assigns
        member = _nearest(x, present, centres)  # (B, k, n)
        member *= member.cumsum(1) <= 1  # of equally near centres the first
        if bool(done.all()):
            break
        size = member.sum(2)  # (B, k)
        moved = torch.bmm(member, x) / size.clamp(min=1)[..., None]
        if bool((size == 0).any()):
            moved = _fill_empty(x, present, _distances(x, norm, centres), size, moved)
        shift = (moved - centres).square().sum((1, 2))
        centres = torch.where(done[:, None, None], centres, moved)  # the others of a stack may need longer
        done |= shift <= limit
    return member.mT.contiguous()


def _split(x: Tensor, present: Tensor, components: int) -> Tensor:
    """Centres of clusters that are split off one by one, first those whose split lowers the inertia most: (B, k, d).

    A cluster is split at its mean, across the direction in which it is long, and a few steps of 2-means follow. That
    direction comes from the row that lies farthest from the mean, by a step of power iteration.
    """
    stack = torch.arange(len(x), device=x.device)[:, None]
    norm = x.square().sum(-1)
    member = x.new_zeros(len(x), components, x.shape[1])  # (B, k, n)
    member[:, 0] = present
    half = torch.zeros_like(member)  # of each cluster: where it would be split
    centres = x.new_zeros(len(x), components, x.shape[2])
    centres[:, :1] = torch.bmm(member[:, :1], x) / present.sum(1)[:, None, None]
    halves = torch.stack([centres, centres])  # of each cluster: the centres it would be split into
    lowered = torch.zeros_like(centres[..., 0])  # by how much that lowers the inertia
    new = torch.zeros_like(stack)  # which clusters are: the first, then the two halves of the one that was split
    for made in range(1, components):
        own, middle = member[stack, new], centres[stack, new]  # (B, 1 or 2, n), (B, 1 or 2, d)
        size = own.sum(2, keepdim=True)
        axis = x[stack, (_distances(x, norm, middle) * own).argmax(2)] - middle
        along = _along(x, own, middle, axis)
        axis = torch.bmm(along, x) - along.sum(2, keepdim=True) * middle
        between = middle
        for _ in range(1 + STEPS):
            right = own * (_along(x, own, between, axis) > 0)
            some = right.sum(2, keepdim=True)
            rest = (size - some).clamp(min=1)
            one = torch.where(some > 0, torch.bmm(right, x) / some.clamp(min=1), middle)
            other = middle + (middle - one) * some / rest
            between, axis = (one + other) / 2, one - other
        half[stack, new], halves[0, stack, new], halves[1, stack, new] = right, one, other
        lowered[stack, new] = (axis.square().sum(2, keepdim=True) * some * rest / size.clamp(min=1))[..., 0]
        best = lowered.argmax(1, keepdim=True)  # (B, 1)
        member[:, made] = half[stack, best][:, 0]
        member[stack, best] -= half[stack, best]
        centres[:, made], centres[stack, best] = halves[0, stack, best][:, 0], halves[1, stack, best]
        new = torch.cat([best, torch.full_like(best, made)], dim=1)
    return centres


def _along(x: Tensor, own: Tensor, middle: Tensor, axis: Tensor) -> Tensor:
    """How far rows lie from the middle along an axis (B, p, d), to scale, 0 for rows not their own: (B, p, n)."""
    axis = axis / axis.abs().amax(2, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.baddbmm(-(middle * axis).sum(2, keepdim=True), axis, x.mT) * own


def _distances(x: Tensor, norm: Tensor, centres: Tensor) -> Tensor:
    """Squared distances (B, k, n) between rows (B, n, d), of squared norms (B, n), and centres (B, k, d)."""
    rest = torch.baddbmm(centres.square().sum(-1, keepdim=True), centres, x.mT, alpha=-2)
    return rest.add_(norm[:, None]).clamp_(min=0)


def _nearest(x: Tensor, present: Tensor, centres: Tensor) -> Tensor:
    """1 where no centre is nearer to a row, 0 elsewhere (B, k, n). ‖x‖² is the same for all of them and left out."""
    half = 0.5 * centres.square().sum(-1, keepdim=True)
    rest = torch.baddbmm(half, centres, x.mT, alpha=-1)
    farther = rest.gt_(rest.amin(1, keepdim=True))  # false where distances overflow: such a row is near to all
    return farther.lt_(present[:, None])


def _fill_empty(x: Tensor, present: Tensor, distance: Tensor, size: Tensor, centres: Tensor) -> Tensor:
    """Move each centre that lost all its rows to one of the rows farthest from their own centre."""
    centres = centres.clone()
    far = (distance.amin(1) * present).argsort(dim=1, descending=True)
    for b, k in (size == 0).nonzero().tolist():
        rank = int((size[b, :k] == 0).sum())
        centres[b, k] = x[b, far[b, rank]]
    return centres
