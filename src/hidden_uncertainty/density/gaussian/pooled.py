"""Class means under one covariance that all classes share, and distances to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Self, get_args

import torch
from torch import Tensor

from ...stored import Stored
from ..base import check_amounts
from ..linalg import Shrinkage, check_factor
from ._classes import fit_gaussians
from ._em import EMOptions, distances
from .moments import Moments

BUFFERS = ("center", "factor", "bias")


class PooledGaussians(Stored):
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
        classes, y = y.unique(return_inverse=True)
        return self.fit_moments(Moments.of(z, y, len(classes), "pooled"))

    def fit_moments(self, moments: Moments) -> Self:
        """Fit to sums over the rows of classes, of which those without rows are left out."""
        classes = torch.arange(len(moments.count), device=moments.count.device)
        options = EMOptions("pooled", self.shrinkage, self.ridge)
        fit = fit_gaussians(replace(moments, dtype=torch.float64), classes, options)
        self.center, self.factor = fit.center, fit.mixtures.factor[0]
        self.bias = (fit.mixtures.mean[:, 0] - self.center) @ self.factor
        return self

    def forward(self, z: Tensor) -> Tensor:
        """Squared Mahalanobis distances of z (n, d) to every mean, in the order of the classes: (n, C)."""
        if self.center is None:
            raise RuntimeError("these PooledGaussians are not fitted: call fit(z, y) first.")
        return distances((z - self.center)[None], self.factor[None], self.bias[None], "tied")[0]

    def check(self) -> None:
        """Raise a ValueError where the tensors cannot be those of a fit."""
        if self.factor is not None:
            check_factor(self.factor)
