"""Expectation-maximisation for a stack of Gaussian mixtures, one per class, all with the same number of components.

Everything here is a pure function of tensors with a leading stack dimension B. Without shrinkage, steps are those of
scikit-learn's `GaussianMixture`, so that from the same start both arrive at the same parameters.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..linalg import CHUNK, Shrinkage, gram, precision_factor, shrink
from ._packed import pack, packed_squares

MANY = 16  # means under one covariance, from which on their distances are one product
FOLLOW = 0.1  # nats that log p would still change by, below which shrinkage stays as it is
SLOWEST = 0.98  # each change is taken to be at most this share of the one before, or the rest would have no end
INFLATION = 1e4  # of a variance over what the other features leave of it: log p in float32 is off by 1e-6 of this

Covariance = Literal["full", "tied", "diag", "spherical", "pooled"]


class EMOptions(NamedTuple):
    """The form of a mixture's covariances, when EM stops and how it starts, as in `GaussianMixture`."""

    covariance: Covariance = "full"
    shrinkage: Shrinkage | None = None
    ridge: float = 1e-6  # added to variances as it is; `fit_classes` takes a share of the data's variance
    tol: float = 1e-2
    max_iter: int = 300
    components: int = 1
    min_samples: int = 10
    pooling: float = 0.0


class Mixtures(NamedTuple):
    """B mixtures of k Gaussians in d dimensions."""

    log_weight: Tensor  # (B, k)
    mean: Tensor  # (B, k, d)
    # W with Σ⁻¹ = W Wᵀ: full (B, k, d, d), tied (B, d, d), pooled (1, d, d); 1/σ: diag (B, k, d), spherical (B, k)
    factor: Tensor


class Fit(NamedTuple):
    """What EM arrived at, and how."""

    mixtures: Mixtures
    log_likelihood: Tensor  # mean over samples, before the last step, as scikit-learn's lower bound: (B,)
    iterations: Tensor  # (B,)
    converged: Tensor  # (B,)
    sound: Tensor  # every covariance along the way had a factor with digits to spare: (B,)


def factor_shape(classes: int, components: int, dim: int, covariance: Covariance) -> tuple[int, ...]:
    """The shape of `Mixtures.factor`."""
    shapes: dict[str, tuple[int, ...]] = {
        "full": (classes, components, dim, dim),
        "tied": (classes, dim, dim),
        "pooled": (1, dim, dim),
        "diag": (classes, components, dim),
        "spherical": (classes, components),
    }
    return shapes[covariance]


def log_scale(mixtures: Mixtures, covariance: Covariance) -> Tensor:
    """log w_k + log |W_k| - d/2 log 2π, a component's log-density without its distance, in float64: (B, k)."""
    log_weight, mean, factor = mixtures
    dim = mean.shape[-1]
    if covariance in ("full", "tied", "pooled"):
        factor = factor.diagonal(dim1=-2, dim2=-1)
    determinant = factor.double().log()
    determinant = dim * determinant if covariance == "spherical" else determinant.sum(-1)
    if covariance in ("tied", "pooled"):
        determinant = determinant[:, None]
    return log_weight + determinant - 0.5 * dim * math.log(2 * math.pi)


def whiten_means(mean: Tensor, factor: Tensor, covariance: Covariance) -> Tensor:
    """μ_k W_k, so that distances need no mean: (B, k, d)."""
    if covariance == "full":
        return (mean[..., None, :] @ factor)[..., 0, :]
    if covariance in ("tied", "pooled"):
        return mean @ factor
    return mean * (factor if covariance == "diag" else factor[..., None])


def distances(x: Tensor, factor: Tensor, bias: Tensor, covariance: Covariance) -> Tensor:
    """Squared Mahalanobis ‖x W_k - b_k‖² of rows x (B, n, d): (B, n, k).

    Where covariances are not full, x may be (1, n, d), shared by all mixtures.
    """
    if covariance == "full":
        return packed_squares(x, pack(factor, bias))
    if covariance == "tied":
        rows = max(64, 4 * CHUNK // bias[:, 0].numel())
        parts = [x] if torch.compiler.is_compiling() else x.split(rows, dim=1)  # a graph has no loops
        return torch.cat([_to_means(part @ factor, bias) for part in parts], dim=1)
    inverse = (factor if covariance == "diag" else factor[..., None].expand_as(bias)).double()
    wide, shift = x.double(), bias.double()  # float64, as three products nearly cancel
    squares = wide.square() @ inverse.square().mT - 2 * wide @ (inverse * shift).mT + shift.square().sum(-1)[:, None]
    return squares.clamp(min=0).to(x.dtype)


def _to_means(white: Tensor, bias: Tensor) -> Tensor:
    """‖x - b_k‖² of whitened rows (B, n, d) to whitened means (B, k, d): (B, n, k)."""
    if bias.shape[1] < MANY:
        return torch.stack([(white - bias[:, k, None]).square().sum(-1) for k in range(bias.shape[1])], dim=-1)
    wide, shift = white.double(), bias.double()  # one product for many classes; float64, as it nearly cancels
    squares = wide.square().sum(-1, keepdim=True) - 2 * wide @ shift.mT + shift.square().sum(-1)[:, None]
    return squares.clamp(min=0).to(white.dtype)


def component_log_prob(x: Tensor, mixtures: Mixtures, covariance: Covariance) -> Tensor:
    """log w_k + log N(x | μ_k, Σ_k) for rows x (B, n, d): (B, n, k)."""
    rest, common = relative_log_prob(x, mixtures, covariance)
    return rest + common.to(x.dtype)[:, None, None]


def relative_log_prob(x: Tensor, mixtures: Mixtures, covariance: Covariance) -> tuple[Tensor, Tensor]:
    """What `component_log_prob` gives, (B, n, k), less what the components have in common, in float64, (B,).

    In many dimensions the common part is so large that float32 would round away what a step of EM gains.
    """
    bias = whiten_means(mixtures.mean, mixtures.factor, covariance)
    scale = log_scale(mixtures, covariance)
    common = scale.amax(1)
    squares = distances(x, mixtures.factor, bias, covariance)
    return (scale - common[:, None]).to(x.dtype)[:, None] - 0.5 * squares, common


def rounding_of(mean: Tensor) -> Tensor:
    """What the variance of a constant may come out as."""
    return (32 * torch.finfo(mean.dtype).eps * mean).square()


def maximise(
    x: Tensor, responsibility: Tensor, options: EMOptions, keep: Tensor | None = None
) -> tuple[Mixtures, Tensor, Tensor]:
    """The M-step: mixtures of rows (B, n, d), which of them are sound, and how far they were shrunk, (B,).

    Responsibilities are (B, n, k). What is to `keep` is the intensity of shrinkage, (B,); NaN, or None for all, finds
    the one that the rows ask for.
    """
    intensity = keep if keep is not None else x.new_full((len(x),), torch.nan, dtype=torch.float64)
    least = 10 * torch.finfo(x.dtype).eps
    count = responsibility.sum(1) + least  # (B, k)
    mean = torch.bmm(responsibility.mT, x) / count[..., None]
    # A component that lost all its rows would come back as a spike at the origin, which is the middle of its class.
    log_weight = (count / count.sum(-1, keepdim=True)).log().masked_fill(count < 2 * least, -torch.inf)
    rounding = rounding_of(mean)
    if options.covariance in ("diag", "spherical"):
        away = ((x - mean[:, k, None]).square() for k in range(mean.shape[1]))
        squares = [responsibility[:, None, :, k] @ square for k, square in enumerate(away)]  # (B, 1, d)
        variance = torch.cat(squares, dim=1) / count[..., None] + options.ridge
        if options.covariance == "spherical":
            variance, rounding = variance.mean(-1), rounding.mean(-1)
        sound = ((variance > rounding) & variance.isfinite()).flatten(1).all(1)
        return Mixtures(log_weight, mean, variance.rsqrt()), sound, intensity
    scatter = _scatter(x, responsibility, mean, with_fourth=options.shrinkage is not None)
    factor, sound, intensity = factorise(count, *scatter, options, intensity, rounding)
    return Mixtures(log_weight, mean, factor.to(x.dtype)), sound, intensity


def factorise(
    count: Tensor, scatter: Tensor, fourth: Tensor, options: EMOptions, intensity: Tensor, rounding: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Factors of full or tied covariances of B mixtures, which of these are sound, and how far they were shrunk, (B,).

    Of each component: counts (B, k), Σ w (x - μ)(x - μ)ᵀ in float64 (B, k, d, d), Σ w ‖x - μ‖⁴ (B, k), and the rounding
    of variances in the precision in which rows were summed (B, k, d). Intensities of NaN are found from the rows.
    """
    if options.covariance == "tied":  # a mixture with one covariance, (B, 1, d, d)
        scatter, fourth, count = (total.sum(1, keepdim=True) for total in (scatter, fourth, count))
        rounding = rounding.amax(1, keepdim=True)
    cov = scatter / count[..., None, None]
    if options.shrinkage is not None:
        cov, intensity = shrink(cov, count.double(), fourth, options.shrinkage, intensity)
    factor, sound = sound_factor(cov, options.ridge, rounding)
    return factor[:, 0] if options.covariance == "tied" else factor, sound.all(1), intensity


def _scatter(x: Tensor, responsibility: Tensor, mean: Tensor, *, with_fourth: bool) -> tuple[Tensor, Tensor]:
    """Σ w (x - μ)(x - μ)ᵀ of each component in float64, (B, k, d, d), and Σ w ‖x - μ‖⁴, (B, k), or zeros."""
    stack, components, dim = mean.shape
    scatter = mean.new_empty(stack, components, dim, dim, dtype=torch.float64)
    fourth = mean.new_zeros(stack, components, dtype=torch.float64)
    for k in range(components):
        weight = responsibility[..., k]
        centred = x - mean[:, k, None]
        centred *= weight.sqrt()[..., None]
        if with_fourth:
            norm = torch.linalg.vector_norm(centred, dim=-1).double()
            fourth[:, k] = (norm.square().square() / weight.clamp(min=torch.finfo(weight.dtype).tiny)).sum(1)
        scatter[:, k] = gram(centred)
    return scatter, fourth


def sound_factor(cov: Tensor, ridge: float, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of covariances (..., d, d), to which the ridge is added in place, and which of them are sound.

    Those are sound where the variance that each feature adds to those before it, and to all others, is clear of
    rounding. The latter is 1 / (Σ⁻¹)_jj. There is nothing finer than float64, so that it is asked of float32 alone.
    Rounding is that of the covariance's diagonal, in the precision in which it was computed.
    """
    variance = cov.diagonal(dim1=-2, dim2=-1).add_(ridge)
    factor, good = precision_factor(cov)
    pivot = factor.diagonal(dim1=-2, dim2=-1).pow(-2)
    good = good & (pivot > 32 * torch.finfo(rounding.dtype).eps * variance + rounding).all(-1)
    if rounding.dtype == torch.float64:
        return factor, good
    return factor, good & (factor.square().sum(-1) * variance < INFLATION).all(-1)


def fit_mixtures(x: Tensor, present: Tensor, responsibility: Tensor, options: EMOptions) -> Fit:
    """Run EM from responsibilities until log p of a mixture's rows would change by less than tol, on average.

    How far it would still change is extrapolated from the last two changes, as if they went on in proportion: where EM
    is slow, many small steps add up. Changes of rows do not cancel, as they do in the likelihood, which is no measure
    where covariances are shrunk: there it may fall, and stands still where it turns.

    The intensity of shrinkage follows what EM finds until log p would change by less than `FOLLOW`, and stays from then
    on. Followed to the end it might drift: wider components ask for more of it, which makes them wider.

    Rows x (B, n, d) are padded to the same n, where `present` (B, n) is 0; responsibilities are (B, n, k).
    """
    size = present.sum(1)
    alone = responsibility.shape[-1] == 1
    if alone:
        responsibility = present[..., None]
    mixtures, sound, intensity = maximise(x, responsibility, options)
    likelihood = torch.zeros_like(size, dtype=torch.float64)
    before, change = torch.zeros_like(present), torch.full_like(size, torch.inf)
    rounding = x.shape[-1] * torch.finfo(x.dtype).eps  # smaller changes are those of rounding
    iterations = torch.zeros_like(size, dtype=torch.long)
    converged, settled = torch.zeros_like(sound), torch.zeros_like(sound)
    for step in range(options.max_iter):
        joint, common = relative_log_prob(x, mixtures, options.covariance)
        log_norm = joint.logsumexp(-1, keepdim=True)  # (B, n, 1)
        found = (log_norm[..., 0] * present).sum(1, dtype=torch.float64) / size + common
        if alone:  # one Gaussian is responsible for all rows: another M-step would repeat the first
            return Fit(mixtures, found, iterations + 1, torch.ones_like(converged), sound)
        now = log_norm[..., 0] + common.to(x.dtype)[:, None]
        last, change = change, ((now - before).abs() * present).sum(1) / size if step else change
        rate = (change / last).clamp(max=SLOWEST)
        left = torch.maximum(change, change * rate / (1 - rate))
        go_on = ~converged
        converged = converged | (left < options.tol) | (change < rounding)
        settled = settled | (left < FOLLOW)
        responsibility = (joint - log_norm).exp_() * present[..., None]
        better, well, intensity = maximise(x, responsibility, options, intensity.masked_fill(~settled, torch.nan))
        mixtures = Mixtures(*(_choose(go_on, new, old) for new, old in zip(better, mixtures, strict=True)))
        sound = sound & (well | ~go_on)
        iterations += go_on
        likelihood = torch.where(go_on, found, likelihood)
        before = now
        if bool((converged | ~sound).all()):  # what is not sound is fitted again, or refused
            break
    # Nearly singular classes creep on: where a step moves rows by less than tol, nobody needs to be told.
    return Fit(mixtures, likelihood, iterations, converged | (change < options.tol), sound)


def _choose(which: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows of the stack from `new` where `which`, else from `old`."""
    if which.shape[0] == 1:  # a class alone in its stack always goes on
        return new
    return torch.where(which.view(-1, *[1] * (new.dim() - 1)), new, old)
