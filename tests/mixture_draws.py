"""Data for tests of mixtures: classes of several clusters, and predictions that are numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hidden_uncertainty.density import GaussianMixture
from hidden_uncertainty.density.gaussian._em import Covariance

COVARIANCES: tuple[Covariance, ...] = ("full", "tied", "diag", "spherical")


def draw(
    sizes: Sequence[int] = (200, 150, 260), dim: int = 4, seed: int = 0, clusters: int = 3
) -> tuple[Tensor, Tensor]:
    """Classes of given sizes, each of several clusters, their rows interleaved, in float64."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    y = y[torch.randperm(len(y), generator=generator)]
    centres = 3 * torch.randn(len(sizes), clusters, dim, generator=generator, dtype=torch.float64)
    which = torch.randint(0, clusters, (len(y),), generator=generator)
    mix = torch.eye(dim) + 0.3 * torch.randn(len(sizes), dim, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(y), 1, dim, generator=generator, dtype=torch.float64)
    return centres[y, which] + (noise @ mix[y])[:, 0], y


def draw_numbers(n: int, d: int, q: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Correlated, bent activations and predictions on scales of their own."""
    random = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(99)
    x = torch.randn(n, d, generator=random, dtype=torch.float64)
    z = (x + 0.5 * x.square()) @ torch.randn(d, d, generator=fixed, dtype=torch.float64) + 7
    y = 100 * (x.sin() @ torch.randn(d, q, generator=fixed, dtype=torch.float64)) - 40
    return z.to(dtype), (y[:, 0] if q == 1 else y).to(dtype)


def every(density: GaussianMixture, z: Tensor) -> Tensor:
    return density.log_prob(z, density.classes)
