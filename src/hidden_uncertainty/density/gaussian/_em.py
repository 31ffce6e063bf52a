"""Expectation-maximisation for a stack of Gaussian mixtures, one per class, all with the same number of components.

Everything here is a pure function of tensors with a leading stack dimension B. Steps and stopping are those of
scikit-learn's `GaussianMixture`, so that from the same start both arrive at the same parameters.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..linalg import CHUNK, Shrinkage, Target, find_target, gram, log_det, precision_factor
from ._packed import pack, packed_squares

MANY = 16  # means under one covariance, from which on their distances are one product

Covariance = Literal["full", "tied", "diag", "spherical"]


class EMOptions(NamedTuple):
    """The form of a mixture's covariances and when EM stops, as in `GaussianMixture`."""

    covariance: Covariance = "full"
    shrinkage: Shrinkage | None = None
    ridge: float = 1e-6
    tol: float = 1e-3
    max_iter: int = 100


class Mixtures(NamedTuple):
    """B mixtures of k Gaussians in d dimensions."""

    log_weight: Tensor  # (B, k)
    mean: Tensor  # (B, k, d)
    factor: Tensor  # W with Σ⁻¹ = W Wᵀ: full (B, k, d, d), tied (B, d, d); 1/σ: diag (B, k, d), spherical (B, k)


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
        "diag": (classes, components, dim),
        "spherical": (classes, components),
    }
    return shapes[covariance]


def log_scale(mixtures: Mixtures, covariance: Covariance) -> Tensor:
    """log w_k + log |W_k| - d/2 log 2π, a component's log-density without its distance: (B, k)."""
    log_weight, mean, factor = mixtures
    dim = mean.shape[-1]
    if covariance == "full":
        determinant = log_det(factor)
    elif covariance == "tied":
        determinant = log_det(factor)[:, None]
    elif covariance == "diag":
        determinant = factor.log().sum(-1)
    else:
        determinant = dim * factor.log()
    return log_weight + determinant - 0.5 * dim * math.log(2 * math.pi)


def whiten_means(mean: Tensor, factor: Tensor, covariance: Covariance) -> Tensor:
    """μ_k W_k, so that distances need no mean: (B, k, d)."""
    if covariance == "full":
        return (mean[..., None, :] @ factor)[..., 0, :]
    if covariance == "tied":
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
        return torch.cat([_to_means(part @ factor, bias) for part in x.split(rows, dim=1)], dim=1)
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
    bias = whiten_means(mixtures.mean, mixtures.factor, covariance)
    return log_scale(mixtures, covariance)[:, None] - 0.5 * distances(x, mixtures.factor, bias, covariance)


def maximise(
    x: Tensor, responsibility: Tensor, options: EMOptions, target: Target | None = None
) -> tuple[Mixtures, Tensor, Target | None]:
    """The M-step: mixtures from responsibilities (B, n, k).

    Returns:
        The mixtures, which of them are numerically sound (B,), and what their covariances were shrunk towards: the
        target given, else the one that `options` asks for.
    """
    least = 10 * torch.finfo(x.dtype).eps
    count = responsibility.sum(1) + least  # (B, k)
    mean = torch.bmm(responsibility.mT, x) / count[..., None]
    # A component that lost all its rows would come back as a spike at the origin, which is the middle of its class.
    log_weight = (count / count.sum(-1, keepdim=True)).log().masked_fill(count < 2 * least, -torch.inf)
    rounding = (32 * torch.finfo(x.dtype).eps * mean).square()  # what the variance of a constant may come out as
    if options.covariance in ("diag", "spherical"):
        variance = torch.stack([_variance(x, responsibility[..., k], mean[:, k]) for k in range(mean.shape[1])], dim=1)
        variance = variance / count[..., None] + options.ridge
        if options.covariance == "spherical":
            variance, rounding = variance.mean(-1), rounding.mean(-1)
        sound = ((variance > rounding) & variance.isfinite()).flatten(1).all(1)
        return Mixtures(log_weight, mean, variance.rsqrt()), sound, None
    shrink = target is None and options.shrinkage is not None
    cov, fourth = _scatter(x, responsibility, mean, with_fourth=shrink)
    if options.covariance == "tied":  # a mixture with one covariance, (B, 1, d, d)
        cov, fourth, count = (total.sum(1, keepdim=True) for total in (cov, fourth, count))
        rounding = rounding.amax(1, keepdim=True)
    cov /= count[..., None, None]
    if shrink and options.shrinkage is not None:
        target = find_target(cov, count.double(), fourth, options.shrinkage)
    if target is not None:
        cov = target.shrink(cov)
    cov.diagonal(dim1=-2, dim2=-1).add_(options.ridge)
    factor, good = precision_factor(cov)
    sound = (good & has_digits(cov, factor, rounding)).all(1)
    if options.covariance == "tied":
        factor = factor[:, 0]
    return Mixtures(log_weight, mean, factor.to(x.dtype)), sound, target


def _variance(x: Tensor, weight: Tensor, mean: Tensor) -> Tensor:
    return torch.bmm(weight[:, None], (x - mean[:, None]).square())[:, 0]  # (B, d)


def _scatter(x: Tensor, responsibility: Tensor, mean: Tensor, *, with_fourth: bool) -> tuple[Tensor, Tensor]:
    """Σ w (x - μ)(x - μ)ᵀ of each component in float64, (B, k, d, d), and Σ w ‖x - μ‖⁴, (B, k), or zeros."""
    stack, components, dim = mean.shape
    scatter = mean.new_empty(stack, components, dim, dim, dtype=torch.float64)
    fourth = mean.new_zeros(stack, components, dtype=torch.float64)
    for k in range(components):
        rows, weight = _with_weight(x, responsibility[..., k])
        centred = rows - mean[:, k, None]
        if with_fourth:
            norm = centred.square().sum(-1, dtype=torch.float64)  # whose square may be beyond float32
            fourth[:, k] = (weight * norm.square()).sum(1)
        centred *= weight.sqrt()[..., None]
        scatter[:, k] = gram(centred)
    return scatter, fourth


def _with_weight(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and their weights, without those that weigh nothing where that saves time."""
    if x.shape[0] == 1 and x.device.type == "cpu":
        rows = (weight[0] > torch.finfo(x.dtype).eps ** 2).nonzero()[:, 0]
        if len(rows) < 0.7 * x.shape[1]:
            return x[:, rows], weight[:, rows]
    return x, weight


def has_digits(cov: Tensor, factor: Tensor, rounding: Tensor) -> Tensor:
    """Whether the variance that each feature adds to those before it is clear of rounding."""
    pivot = factor.diagonal(dim1=-2, dim2=-1).pow(-2)
    products = 32 * torch.finfo(rounding.dtype).eps * cov.diagonal(dim1=-2, dim2=-1)
    return (pivot > products + rounding).all(-1)


def fit_mixtures(x: Tensor, present: Tensor, responsibility: Tensor, options: EMOptions) -> Fit:
    """Run EM from responsibilities until each mixture's mean log-likelihood changes by less than tol.

    The target of shrinkage is found at the start and kept, so that EM has one fixed point.

    Args:
        x: (B, n, d), padded to the same n.
        present: 1 for a row, 0 for padding, (B, n).
        responsibility: the start, (B, n, k).
        options: form and regularisation of the covariances, and when to stop.
    """
    size = present.sum(1)
    alone = responsibility.shape[-1] == 1
    if alone:
        responsibility = present[..., None]
    mixtures, sound, target = maximise(x, responsibility, options)
    likelihood = torch.full_like(size, -torch.inf, dtype=torch.float64)
    iterations = torch.zeros_like(size, dtype=torch.long)
    converged = torch.zeros_like(sound)
    for _ in range(options.max_iter):
        joint = component_log_prob(x, mixtures, options.covariance)
        log_norm = joint.logsumexp(-1, keepdim=True)  # (B, n, 1)
        found = (log_norm[..., 0] * present).sum(1, dtype=torch.float64) / size
        if alone:  # one Gaussian is responsible for all rows: another M-step would repeat the first
            return Fit(mixtures, found, iterations + 1, torch.ones_like(converged), sound)
        responsibility = (joint - log_norm).exp_() * present[..., None]
        better, well, _ = maximise(x, responsibility, options, target)
        go_on = ~converged
        mixtures = Mixtures(*(_choose(go_on, new, old) for new, old in zip(better, mixtures, strict=True)))
        sound = sound & (well | ~go_on)
        iterations += go_on
        converged = converged | (go_on & ((found - likelihood).abs() < options.tol))
        likelihood = torch.where(go_on, found, likelihood)
        if bool(converged.all()):
            break
    return Fit(mixtures, likelihood, iterations, converged, sound)


def _choose(which: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows of the stack from `new` where `which`, else from `old`."""
    if which.shape[0] == 1:  # a class alone in its stack always goes on
        return new
    return torch.where(which.view(-1, *[1] * (new.dim() - 1)), new, old)
