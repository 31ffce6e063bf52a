"""Shrinkage of covariances towards a multiple of the identity, with the intensity computed from the data."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Shrinkage = Literal["ledoit-wolf", "oas"]


class Target(NamedTuple):
    """(1 - ρ) S_k + ρ μ I: one intensity and one scale for all components of a mixture."""

    intensity: Tensor  # ρ, (B,)
    scale: Tensor  # μ, (B,)

    def shrink(self, covariance: Tensor) -> Tensor:
        """Shrink covariances (B, k, d, d)."""
        shrunk = (1 - self.intensity[:, None, None, None]) * covariance
        shrunk.diagonal(dim1=-2, dim2=-1).add_((self.intensity * self.scale)[:, None, None])
        return shrunk


def find_target(covariance: Tensor, count: Tensor, fourth: Tensor, how: Shrinkage) -> Target:
    """How far to shrink, after Ledoit & Wolf (2004) or, oracle-approximating, Chen et al. (2010).

    Each intensity is a ratio, here of averages over a mixture's components weighted by their samples; for one component
    it is scikit-learn's. One intensity a component would be unstable in EM: the smallest component is shrunk most,
    loses samples to the others, and dies.

    Args:
        covariance: S_k, (B, k, d, d).
        count: effective number of samples behind each, (B, k).
        fourth: weighted sum of ‖x - μ‖⁴, which the Ledoit-Wolf intensity needs, (B, k).
        how: whose intensity.
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
    return Target(torch.nan_to_num(rho, nan=1.0, posinf=1.0).clamp(0, 1), scale)  # 0/0: S is μ I already
