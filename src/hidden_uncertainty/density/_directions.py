"""The directions in which activations vary, and a Gaussian for those in which they hardly do."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from .._precision import full_precision
from ._linalg import gram, saturate

BUFFERS = ("center", "basis", "deviation", "residual_deviation", "log_scale")


class Directions(nn.Module):
    r"""Whitened coordinates of activations that may lie on a thin manifold, and a Gaussian for what lies off it.

    .. math:: \log p(z) = \log p_u(u) + \text{rest}, \qquad u = \Lambda^{-1/2} B^\top (z - m)

    B holds the eigenvectors of the covariance whose eigenvalue is above `tolerance` times the largest. Eigenvectors
    come from the rows that are not held out; each is scaled by the larger of its deviations on those and on the
    held-out rows, for with few rows the smallest eigenvalues are far too small for new ones. The directions dropped
    share one isotropic Gaussian, as wide as the held-out rows are there. `rest` is its log-density and log |∂u/∂z|: so
    this is a proper density over all d dimensions, in which a dead unit that wakes up is surprising.

    Example:
        >>> t = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        >>> z = torch.cat([t, t.sum(1, keepdim=True), torch.zeros(200, 1)], dim=1)      # (n, 4)
        >>> directions = Directions().fit(z, held_out=hold_out(200, 0.1, seed=0, device=z.device))
        >>> u, rest = directions(z)                                                     # (n, 2), (n,)
        >>> directions.describe()
        '2 of 4 directions kept: 1 dead, 1 collinear with them'
    """

    center: Tensor  # m, (d,)
    basis: Tensor  # B, orthonormal columns, (d, kept)
    deviation: Tensor  # Λ^½, (kept,)
    residual_deviation: Tensor  # τ, of each direction dropped, ()
    log_scale: Tensor  # log |Λ^-½| - (d - kept)(log τ + ½ log 2π), ()

    def __init__(self) -> None:
        super().__init__()
        self.dim = self.kept = self.dead = 0
        for name in BUFFERS:
            self.register_buffer(name, None)

    @property
    def collinear(self) -> int:
        """Directions dropped although no coordinate of theirs is dead: combinations of those kept."""
        return self.dim - self.dead - self.kept

    def fit(self, z: Tensor, *, held_out: Tensor, tolerance: float = 1e-8) -> Self:
        """Find the directions of z (n, d).

        Args:
            z: activations, finite.
            held_out: rows that check the scales, True or False, (n,); at least one, and not the last two.
            tolerance: variance, as a share of the largest, at which a direction is too thin to be kept.
        """
        z = z.detach()
        dtype = z.dtype if z.dtype == torch.float64 else torch.float32
        fitted, unseen = z[~held_out].double(), z[held_out].double()
        if len(fitted) < 2 or len(unseen) < 1:
            raise ValueError(f"expected 2 rows to fit and 1 held out at least, not {len(fitted)} and {len(unseen)}.")
        first = fitted[0].clone()
        constant = (fitted == first).all(0)
        if bool(constant.all()):
            raise ValueError(f"all {len(fitted)} rows of z are the same: there is nothing to fit.")
        center = torch.where(constant, first, fitted.mean(0))  # a mean of equal numbers may be off in the last digit
        # Far from zero, what rounding takes from the centre is much for a thin direction: held-out rows show it.
        fitted, unseen = fitted.sub_(center), unseen.sub_(center.to(dtype))
        with full_precision(z.device):
            values, vectors = torch.linalg.eigh(gram(fitted[None])[0] / len(fitted))
            floor = tolerance * values[-1]
            basis = vectors[:, values > floor].flip(1)  # the widest first
            on_basis = unseen @ basis
            residual = unseen - on_basis @ basis.mT
        variance = torch.maximum(values[values > floor].flip(0), on_basis.square().mean(0))
        self.dim, self.kept, self.dead = z.shape[1], basis.shape[1], int(constant.sum())
        dropped = self.dim - self.kept
        spread = torch.maximum(floor, residual.square().sum(1).mean() / max(dropped, 1)).sqrt()
        log_scale = -0.5 * variance.log().sum() - dropped * (spread.log() + 0.5 * math.log(2 * math.pi))
        found = (center, basis.contiguous(), variance.sqrt(), spread, log_scale)
        for name, value in zip(BUFFERS, found, strict=True):
            setattr(self, name, value.to(dtype))
        return self

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates u (n, kept), and the log-density of the rest with log |∂u/∂z|, (n,). Finite for finite z."""
        dtype = self.center.dtype
        x = saturate(z, dtype) - self.center
        with full_precision(x.device):
            on_basis = x @ self.basis
            # Squared as a vector: ‖x‖² - ‖Bᵀx‖² would have no digits left where it matters.
            residual = x - on_basis @ self.basis.mT if self.kept < self.dim else torch.zeros_like(x)
        big = torch.finfo(dtype).max
        squares = (residual / self.residual_deviation).square().sum(1).clamp(max=big / 8)
        return saturate((on_basis / self.deviation).clamp(-big, big), dtype), self.log_scale - 0.5 * squares

    def describe(self) -> str | None:
        """What was dropped, in a line; None when nothing was."""
        if self.kept == self.dim:
            return None
        parts = [f"{self.dead} dead"] if self.dead else []
        if self.collinear:
            parts.append(f"{self.collinear} collinear with them")
        return f"{self.kept} of {self.dim} directions kept: {', '.join(parts)}"

    def config(self) -> dict[str, Any]:
        """The shapes of what was fitted."""
        dtype = None if self.center is None else str(self.center.dtype).removeprefix("torch.")
        return {"dim": self.dim, "kept": self.kept, "dead": self.dead, "dtype": dtype}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The directions that `config` describes, with zeros where the fitted tensors go."""
        directions = cls()
        directions.dim, directions.kept, directions.dead = config["dim"], config["kept"], config["dead"]
        if config["dtype"] is not None:
            shapes = ((directions.dim,), (directions.dim, directions.kept), (directions.kept,), (), ())
            for name, shape in zip(BUFFERS, shapes, strict=True):
                setattr(directions, name, torch.zeros(shape, dtype=getattr(torch, config["dtype"]), device="cpu"))
        return directions


def hold_out(n: int, share: float, seed: int, device: torch.device | str) -> Tensor:
    """Mark about a share of n rows, drawn by seed, at least 1 and at most n - 2: True where held out, (n,).

    Example:
        >>> hold_out(50, 0.1, seed=0, device="cpu").sum()
        tensor(5)
    """
    if n < 3:
        raise ValueError(f"a density needs at least 3 samples, one of them to check the others' scales, not {n}.")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed), device="cpu")
    mask = torch.zeros(n, dtype=torch.bool, device="cpu")
    mask[order[: max(1, min(round(share * n), n - 2))]] = True
    return mask.to(device)
