"""Covariances and their factors.

A precision matrix is kept as Σ⁻¹ = W Wᵀ with W upper triangular, so that a Mahalanobis distance is ‖(x - μ) W‖².
Only Cholesky and triangular solves are used: other batched factorisations are wrong in some CPU builds of torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from ..io import expect

Shrinkage = Literal["ledoit-wolf", "oas"]
BLOCK = 64  # columns per block: narrower ones lose more in the matrix product than the skipped half saves (bench/)
ROWS = 1 << 14  # in float64 at a time: a copy of a million activations takes gigabytes
LEAF = 64  # dimensions of a covariance that is factorised as a whole
CHUNK = 1 << 21  # elements of an intermediate, small enough to stay in the cache


def gram(x: Tensor) -> Tensor:
    """XᵀX for a stack x (B, n, d), of which only the lower blocks are computed on a CPU: (B, d, d)."""
    if x.is_cuda:  # one large product beats several small ones
        return torch.bmm(x.mT, x)
    dim = x.shape[-1]
    out = x.new_empty(x.shape[0], dim, dim)
    for low, high in _blocks(dim):
        block = torch.bmm(x[:, :, low:high].mT, x[:, :, :high])
        out[:, low:high, :high] = block
        out[:, :low, low:high] = block[:, :, :low].mT
    return out


def precision_factor(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """W, upper triangular with W Wᵀ = Σ⁻¹, for covariances (..., d, d), in float64, and which of them had one.

    A covariance that has no factor gives the factor of its diagonal instead: finite, and marked False.
    """
    covariance = covariance.double()
    factor = covariance.new_zeros(covariance.shape)
    _fill_factor(covariance, factor)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    good = ((pivots > 0) & pivots.isfinite()).all(-1)
    if not bool(good.all()):
        diagonal = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=torch.finfo(torch.float64).tiny)
        factor = torch.where(good[..., None, None], factor, torch.diag_embed(diagonal.rsqrt()))
    return factor, good


def mean_square(parts: Iterable[Tensor]) -> float:
    """The mean square of all elements, in float64, which neither over- nor underflows."""
    total = count = 0.0
    for some in (some for part in parts for some in part.split(ROWS)):  # float64 makes copies
        total += float(torch.linalg.vector_norm(some, dtype=torch.float64)) ** 2
        count += some.numel()
    return total / count


def own_order(z: Tensor, y: Tensor) -> Tensor:
    """Where rows (n, d) go when sorted by y (n,), then by what they hold: sums are rounded alike however they came."""
    # Cosines of whole numbers are independent over the fractions: only rows that are the same have the same sum.
    weight = torch.arange(z.shape[1], dtype=torch.float64, device=z.device).cos()
    order = torch.cat([part.double() @ weight for part in z.split(ROWS)]).argsort(stable=True)
    return order[y[order].argsort(stable=True)]


def power_of_two(scale: float) -> float:
    """The power of two next to a positive number, by which products are exact."""
    return 2.0 ** round(math.log2(scale))


def log_det(factor: Tensor) -> Tensor:
    """log |W| of triangular factors (..., d, d)."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def check_factor(factor: Tensor) -> None:
    """Raise a ValueError unless factors (..., d, d) are upper triangular with a positive diagonal."""
    expect(factor.tril(-1) == 0, "the factor of a covariance is not triangular")
    expect(factor.diagonal(dim1=-2, dim2=-1) > 0, "the diagonal of a covariance's factor is not positive")


def shrink(
    covariance: Tensor, count: Tensor, fourth: Tensor, how: Shrinkage, intensity: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(1 - ρ) S_k + ρ μ I for covariances S_k (B, k, d, d) of B mixtures, and the intensities ρ (B,).

    Intensities that are not given, or NaN, are those of Ledoit & Wolf (2004) or, oracle-approximating, of Chen et al.
    (2010). Each is a ratio, here of averages over a mixture's components weighted by their samples; for one component
    it is scikit-learn's. One intensity per component would be unstable in EM: the smallest component is shrunk most,
    loses samples to the others, and dies. Counts, and weighted sums of ‖x - μ‖⁴, which the Ledoit-Wolf intensity needs,
    are (B, k).
    """
    dim = covariance.shape[-1]
    weight = count / count.sum(-1, keepdim=True)
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)  # (B, k)
    scale = (weight * trace).sum(-1) / dim  # μ, (B,)
    square = covariance.square().sum((-2, -1))  # ‖S‖², (B, k)
    distance = square - 2 * scale[:, None] * trace + dim * scale[:, None].square()  # ‖S - μ I‖²
    measured = (fourth / count - square) / count  # how far S itself scatters around the truth
    spread = measured if how == "ledoit-wolf" else (square + trace.square()) / (count + 1)
    rho = (weight * spread).sum(-1) / (weight * distance).sum(-1)
    rho = rho.nan_to_num(nan=1.0, posinf=1.0).clamp(0, 1)  # 0/0: S is μ I already
    rho = rho if intensity is None else torch.where(intensity.isnan(), rho, intensity)
    shrunk = (1 - rho[:, None, None, None]) * covariance
    shrunk.diagonal(dim1=-2, dim2=-1).add_((rho * scale)[:, None, None])
    return shrunk, rho


def _blocks(dim: int) -> Iterator[tuple[int, int]]:
    width = BLOCK * max(1, -(-dim // (8 * BLOCK)))  # at most 8 blocks
    return pairwise([*range(0, max(1, dim - BLOCK // 2), width), dim])


def _fill_factor(covariance: Tensor, factor: Tensor) -> None:
    """Write W into `factor`, by halves: nearly all of it is matrix products, which are several times faster.

    With Σ = [[P, Rᵀ], [R, Q]], P⁻¹ = U Uᵀ, B = R U and (Q - B Bᵀ)⁻¹ = V Vᵀ, it is W = [[U, -U Bᵀ V], [0, V]].
    """
    dim = covariance.shape[-1]
    if dim <= LEAF:
        lower, info = torch.linalg.cholesky_ex(covariance)
        eye = torch.eye(dim, dtype=covariance.dtype, device=covariance.device).expand_as(lower)
        lower = torch.where((info == 0)[..., None, None], lower, torch.nan)
        factor.copy_(torch.linalg.solve_triangular(lower.mT, eye, upper=True))
        return
    half = dim // 2
    u, v = factor[..., :half, :half], factor[..., half:, half:]
    _fill_factor(covariance[..., :half, :half], u)
    b = covariance[..., half:, :half] @ u
    _fill_factor(covariance[..., half:, half:] - b @ b.mT, v)
    factor[..., :half, half:] = u @ (b.mT @ v).neg_()
