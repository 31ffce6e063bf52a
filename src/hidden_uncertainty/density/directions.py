"""The directions in which activations vary, and a Gaussian for those in which they hardly do."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from ..io import expect
from ..notes import note
from ..precision import precise, saturate
from .linalg import gram

BUFFERS = ("center", "basis", "deviation", "residual_deviation", "log_scale")


class Directions(nn.Module):
    r"""Whitened coordinates of activations that may lie on a thin manifold, and a Gaussian for what lies off it.

    .. math:: \log p(z) = \log p_u(u) + \text{rest}, \qquad u = \Lambda^{-1/2} B^\top (z - m)

    B holds the eigenvectors of the covariance whose eigenvalue is above `tolerance` times the largest. Each is scaled
    by the larger of its deviations on the fitted rows and on the holdout, because with few rows the smallest
    eigenvalues are far too small for new ones. The directions dropped share one isotropic Gaussian, as wide as the
    holdout is there. `rest` is its log-density plus log |∂u/∂z|: a dead unit that wakes up is surprising.
    """

    center: Tensor  # m, (d,)
    basis: Tensor  # B, orthonormal columns, (d, kept)
    deviation: Tensor  # Λ^½, (kept,)
    residual_deviation: Tensor  # τ, of each direction dropped, ()
    log_scale: Tensor  # log |Λ^-½| - (d - kept)(log τ + ½ log 2π), ()

    def __init__(self) -> None:
        super().__init__()
        self.dead = 0  # constant units among what was fitted to
        for name in BUFFERS:
            self.register_buffer(name, None)

    @property
    def dim(self) -> int | None:
        """How many dimensions there are; None before a fit."""
        return None if self.basis is None else len(self.basis)

    @property
    def kept(self) -> int:
        """How many directions vary."""
        return self.basis.shape[1]

    @precise
    def fit(self, z: Tensor, *, holdout: Tensor, tolerance: float = 1e-8) -> Self:
        """Find the directions of finite z (n, d), of which rows of the holdout, a mask (n,), check the scales.

        Directions whose variance is at most `tolerance` times the largest are dropped.
        """
        z = z.detach()
        dtype = z.dtype if z.dtype == torch.float64 else torch.float32
        fitted, checked = z[~holdout].double(), z[holdout].double()
        first = fitted[0].clone()
        constant = (fitted == first).all(0)
        if bool(constant.all()):
            raise ValueError(f"all {len(fitted)} rows of z are the same: choose another layer.")
        center = torch.where(constant, first, fitted.mean(0))  # a mean of equal numbers may be off in the last digit
        # Far from zero, rounding the centre matters in a thin direction: the holdout shows by how much.
        fitted, checked = fitted.sub_(center), checked.sub_(center.to(dtype))
        values, vectors = torch.linalg.eigh(gram(fitted[None])[0] / len(fitted))
        floor = tolerance * values[-1]
        basis = vectors[:, values > floor].flip(1)  # the widest first
        on_basis = checked @ basis
        residual = checked - on_basis @ basis.mT
        variance = torch.maximum(values[values > floor].flip(0), on_basis.square().mean(0))
        self.dead, dropped = int(constant.sum()), z.shape[1] - basis.shape[1]
        spread = torch.maximum(floor, residual.square().sum(1).mean() / max(dropped, 1)).sqrt()
        log_scale = -0.5 * variance.log().sum() - dropped * (spread.log() + 0.5 * math.log(2 * math.pi))
        found = (center, basis.contiguous(), variance.sqrt(), spread, log_scale)
        for name, value in zip(BUFFERS, found, strict=True):
            setattr(self, name, value.to(dtype))
        if dropped:
            collinear = dropped - self.dead
            note(f"{self.kept} of {self.dim} directions kept: {self.dead} never vary, {collinear} collinear with them")
        return self

    @precise
    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates u (n, kept), and the log-density of the rest with log |∂u/∂z|, (n,). Finite for finite z."""
        dtype = self.center.dtype
        x = saturate(z, dtype) - self.center
        on_basis = x @ self.basis
        # Squared as a vector: ‖x‖² - ‖Bᵀx‖² would have no digits left where it matters.
        residual = x - on_basis @ self.basis.mT if self.kept < len(self.basis) else torch.zeros_like(x)
        big = torch.finfo(dtype).max
        squares = (residual / self.residual_deviation).square().sum(1).clamp(max=big / 8)
        return saturate((on_basis / self.deviation).clamp(-big, big), dtype), self.log_scale - 0.5 * squares

    def check(self) -> None:
        """Raise a ValueError where the tensors cannot be those of a fit."""
        if self.center is None:
            return
        expect((self.basis.double().norm(dim=0) - 1).abs() < 1e-3, "a direction has not the length one")
        deviation, spread = self.deviation.double(), self.residual_deviation.double()
        expect(torch.cat([deviation, spread[None]]) > 0, "a deviation is not positive")
        dropped = len(self.basis) - self.kept
        logs = torch.cat([deviation, spread.expand(dropped)]).log()
        scale = -logs.sum() - dropped * 0.5 * math.log(2 * math.pi)
        close = (self.log_scale - scale).abs() <= 1e-3 * (1 + logs.abs().sum())
        expect(close, "log_scale is not that of the deviations")


def draw_holdout(n: int, share: float, seed: int, device: torch.device | str) -> Tensor:
    """Draw about a share of n rows, at least 1 and at most n - 2, of 3 or more: True for rows of the holdout, (n,)."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed), device="cpu")
    mask = torch.zeros(n, dtype=torch.bool, device="cpu")
    mask[order[: max(1, min(round(share * n), n - 2))]] = True
    return mask.to(device)
