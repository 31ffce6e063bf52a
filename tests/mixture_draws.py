"""Classes of several clusters, and their densities, for tests of mixtures."""

from __future__ import annotations

import torch
from torch import Tensor

from hidden_uncertainty.density import GaussianMixture
from hidden_uncertainty.density._em import Covariance

COVARIANCES: tuple[Covariance, ...] = ("full", "tied", "diag", "spherical")


def draw(
    sizes: tuple[int, ...] = (200, 150, 260), dim: int = 4, seed: int = 0, clusters: int = 3
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


def every(density: GaussianMixture, z: Tensor) -> Tensor:
    return density.log_prob(z, density.classes)
