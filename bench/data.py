"""Data drawn to look like hidden activations, the same on every machine with the same torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CLASSES, COMPONENTS = 10, 5


def clusters(rows: int, dim: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ten classes of five overlapping Gaussians each: z (n, d) and y (n,), in random order.

    Classes have their own axes, along which the variance falls off like 1/i: a condition of some hundreds. Within a
    class, components lie about three standard deviations apart and differ in shape, so that responsibilities are soft
    at d=100; at d=512 they are hard, as those of a thousand samples in 512 dimensions always are.
    """
    random = torch.Generator().manual_seed(seed)
    scale = (1.0 + torch.arange(dim)).rsqrt()  # (d,)
    y = torch.arange(rows) % CLASSES
    component = torch.randint(COMPONENTS, (rows,), generator=random)
    z = torch.randn(rows, dim, generator=random)
    for c in range(CLASSES):
        axes = torch.linalg.qr(torch.randn(dim, dim, generator=random)).Q
        centre = 2 * torch.randn(dim, generator=random) * scale
        for k in range(COMPONENTS):
            offset = torch.randn(dim, generator=random)
            offset *= 2 / offset.norm()
            shape = (0.15 * torch.randn(dim, generator=random)).exp()
            mine = (y == c) & (component == k)
            z[mine] = centre + ((z[mine] * shape + offset) * scale) @ axes
    order = torch.randperm(rows, generator=random)
    return z[order], y[order]


def signals(rows: int, dim: int, *, seed: int = 0, batch: int = 256) -> Iterator[Tensor]:
    """Batches (n, D) of smooth signals: full rank, the variance of frequency f falling off like 1/f^1.5.

    A batch depends on its position and the seed alone, so that every pass brings the same rows.
    """
    amplitude = (1.0 + torch.arange(dim // 2 + 1)) ** -0.75
    for start in range(0, rows, batch):
        random = torch.Generator().manual_seed(seed + start)
        waves = torch.rand(min(batch, rows - start), len(amplitude), 2, generator=random) - 0.5  # cheaper than normal
        yield torch.fft.irfft(torch.view_as_complex(waves) * amplitude, n=dim, norm="ortho") + 1
