"""The two matrix products that fitting and scoring spend their time in, and the factorisation between them.

A precision matrix is kept as Σ⁻¹ = W Wᵀ with W upper triangular, so that a Mahalanobis distance is ‖(x - μ) W‖². Half
of W is zero and half of a covariance is a mirror image: both products go in blocks that leave most of it out.
Only Cholesky and triangular solves are used: other batched factorisations are wrong in some CPU builds of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

BLOCK = 64  # columns a block: narrower ones lose more in the matrix product than the skipped half saves (bench/)
CHUNK = 1 << 21  # elements of an intermediate, small enough to stay in the cache


def _blocks(dim: int) -> Iterator[tuple[int, int]]:
    count = max(1, min(8, dim // (BLOCK * 3 // 4)))
    edges = [round(dim * i / count) for i in range(count + 1)]
    return pairwise(edges)


def whitened_squares(x: Tensor, factor: Tensor, bias: Tensor) -> Tensor:
    """‖x W - b‖² for every row of x and every W.

    Args:
        x: (B, n, d), or (1, n, d) to meet all B factors with the same rows.
        factor: W, upper triangular, (B, d, d).
        bias: b = μ W, (B, d).

    Returns:
        (B, n)
    """
    count, dim = bias.shape
    rows = max(64, CHUNK // (count * min(dim, BLOCK)))
    chunks = []
    for part in x.split(rows, dim=1):
        total = x.new_zeros(count, part.shape[1])
        for low, high in _blocks(dim):
            left = part[:, :, :high].expand(count, -1, -1)
            white = torch.baddbmm(bias[:, None, low:high], left, factor[:, :high, low:high], beta=-1)
            total += white.square_().sum(-1)
        chunks.append(total)
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=1)


def gram(x: Tensor) -> Tensor:
    """XᵀX for a stack x (B, n, d), of which only the upper blocks are computed: (B, d, d)."""
    dim = x.shape[-1]
    out = x.new_empty(x.shape[0], dim, dim)
    for low, high in _blocks(dim):
        block = torch.bmm(x[:, :, :high].mT, x[:, :, low:high])
        out[:, :high, low:high] = block
        out[:, low:high, :high] = block.mT
    return out


def precision_factor(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """W, upper triangular with W Wᵀ = Σ⁻¹, for covariances (..., d, d), in float64, and which of them had one.

    A covariance that has no factor gives the factor of its diagonal instead: finite, and marked False.
    """
    covariance = covariance.double()
    lower, info = torch.linalg.cholesky_ex(covariance)
    good = (info == 0) & lower.isfinite().all(-1).all(-1)
    diagonal = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=torch.finfo(torch.float64).tiny)
    lower = torch.where(good[..., None, None], lower, torch.diag_embed(diagonal.sqrt()))
    eye = torch.eye(covariance.shape[-1], dtype=torch.float64, device=covariance.device).expand_as(covariance)
    return torch.linalg.solve_triangular(lower, eye, upper=False).mT.contiguous(), good


def log_det(factor: Tensor) -> Tensor:
    """log |W| of triangular factors (..., d, d)."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def saturate(z: Tensor, dtype: torch.dtype) -> Tensor:
    """Pull rows whose squares would overflow in dtype back along their ray, so that scores stop growing there."""
    z = z.to(torch.promote_types(z.dtype, dtype))
    limit = torch.finfo(dtype).max ** 0.45
    return (z * (limit / z.abs().amax(-1, keepdim=True)).clamp(max=1)).to(dtype)
