"""Class means under one covariance that all classes share, and distances to them."""

from __future__ import annotations

from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from ..checks import check_amounts
from ..linalg import ROWS, Shrinkage, check_factor, find_target, gram, precision_factor
from ._em import distances, has_digits

BUFFERS = ("center", "factor", "bias")


class PooledGaussians(nn.Module):
    r"""Gaussians with one mean per class and one covariance for all of them.

    .. math:: \Sigma = \frac 1 n \sum_i (z_i - \mu_{y_i}) (z_i - \mu_{y_i})^\top

    Args:
        shrinkage: how the covariance is shrunk towards a multiple of the identity: `"ledoit-wolf"`, `"oas"` or None.
        ridge: added to the diagonal of the covariance, as a share of its mean.

    Example:
        >>> z = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
        >>> one = PooledGaussians(shrinkage=None, ridge=0.0).fit(z, torch.zeros(4, dtype=torch.long))
        >>> squares = one(torch.tensor([[3.0, 0.5]]))    # two deviations from the mean in one, none in the other
        >>> round(squares.item(), 6)
        4.0
    """

    center: Tensor  # (d,)
    factor: Tensor  # W with Σ⁻¹ = W Wᵀ, (d, d)
    bias: Tensor  # (μ_c - center) W, (C, d)

    def __init__(self, *, shrinkage: Shrinkage | None = "ledoit-wolf", ridge: float = 1e-6) -> None:
        super().__init__()
        if shrinkage not in (None, *get_args(Shrinkage)):
            raise ValueError(f"shrinkage must be one of {get_args(Shrinkage)} or None, not {shrinkage!r}.")
        check_amounts(ridge=ridge)
        self.shrinkage, self.ridge = shrinkage, ridge
        for name in BUFFERS:
            self.register_buffer(name, None)

    def fit(self, z: Tensor, y: Tensor) -> Self:
        """Fit to activations z (n, d) and their classes y (n,), which need not be consecutive; all in float64."""
        _, y, counts = y.unique(return_inverse=True, return_counts=True)
        rows = y.argsort(stable=True).split(counts.tolist())
        mean = torch.stack([_mean(z, some) for some in rows])  # (C, d)
        center = (counts[:, None] * mean).sum(0) / len(z)
        covariance, fourth = _scatter(z, mean, y)
        covariance = (covariance / len(z))[None, None]
        if self.shrinkage is not None:
            count = fourth.new_full((1, 1), len(z))
            covariance = find_target(covariance, count, fourth.view(1, 1), self.shrinkage).shrink(covariance)
        covariance = covariance[0, 0]
        # Where rows repeat within classes, the scale of the data is that of its means.
        scale = covariance.diagonal().mean() or (mean - center).square().mean() or 1.0
        covariance.diagonal().add_(self.ridge * scale)
        factor, good = precision_factor(covariance)
        if not bool(good & has_digits(covariance, factor, fourth.new_zeros(()))):
            raise ValueError(
                f"the covariance of {len(z):,} activations of {z.shape[1]} dimensions is singular to working precision "
                f"even with ridge={self.ridge:g}: raise ridge, set shrinkage='ledoit-wolf', or reduce the dimensions."
            )
        self.center, self.factor = center, factor
        self.bias = (mean - center) @ factor
        return self

    def forward(self, z: Tensor) -> Tensor:
        """Squared Mahalanobis distances of z (n, d) to every mean, in the order of the classes: (n, C)."""
        if self.center is None:
            raise RuntimeError("these PooledGaussians are not fitted: call fit(z, y) first.")
        return distances((z - self.center)[None], self.factor[None], self.bias[None], "tied")[0]

    def config(self) -> dict[str, Any]:
        """The arguments, and the shape of what was fitted."""
        fitted = None if self.bias is None else {"classes": self.bias.shape[0], "dim": self.bias.shape[1]}
        return {"shrinkage": self.shrinkage, "ridge": self.ridge, "fitted": fitted}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The Gaussians that `config` describes, with zeros where the fitted tensors go."""
        fitted = config["fitted"]
        gaussians = cls(shrinkage=config["shrinkage"], ridge=config["ridge"])
        if fitted is not None:
            classes, dim = fitted["classes"], fitted["dim"]
            for name, shape in zip(BUFFERS, ((dim,), (dim, dim), (classes, dim)), strict=True):
                setattr(gaussians, name, torch.zeros(shape, dtype=torch.float64, device="cpu"))
        return gaussians

    def check(self) -> None:
        """Raise a ValueError where the tensors cannot be those of a fit."""
        if self.factor is not None:
            check_factor(self.factor)


def _mean(z: Tensor, rows: Tensor) -> Tensor:
    """The mean of some rows of z (n, d), in float64: (d,)."""
    return torch.stack([z[some].double().sum(0) for some in rows.split(ROWS)]).sum(0) / len(rows)


def _scatter(z: Tensor, mean: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Σ (z - μ_y)(z - μ_y)ᵀ in float64, (d, d), and Σ ‖z - μ_y‖⁴."""
    dim = z.shape[1]
    scatter, fourth = mean.new_zeros(dim, dim), mean.new_zeros(())
    for some, classes in zip(z.split(ROWS), y.split(ROWS), strict=True):
        centred = some.double() - mean[classes]
        scatter += gram(centred[None])[0]
        fourth += centred.square().sum(1).square().sum()
    return scatter, fourth
