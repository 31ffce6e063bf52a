"""Data drawn where it is used, the same every time on the same kind of device."""

from __future__ import annotations

import torch
from torch import Tensor

PART = 1 << 27  # elements that are drawn at a time, beyond those kept


def clusters(
    classes: int, components: int, rows: int, dim: int, device: torch.device, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Classes of overlapping Gaussians: z (n, d) and y (n,), as `bench.data` draws ten of five.

    Classes have their own axes, along which the variance falls off like 1/i; components of a class lie about three
    standard deviations apart and differ in shape.
    """
    random = torch.Generator(device).manual_seed(seed)
    scale = (1.0 + torch.arange(dim, device=device)).rsqrt()  # (d,)
    each = -(-rows // classes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, device=device)

    axes = torch.linalg.qr(normal(classes, dim, dim)).Q
    offset = normal(classes, components, dim)
    offset *= 2 / offset.norm(dim=-1, keepdim=True)
    shape = (0.15 * normal(classes, components, dim)).exp()
    component = torch.randint(components, (classes, each), generator=random, device=device)
    own = torch.arange(classes, device=device)[:, None]
    z = (normal(classes, each, dim) * shape[own, component] + offset[own, component]) * scale
    z = torch.bmm(z, axes) + 2 * (normal(classes, 1, dim) * scale)  # (C, n, d)
    order = torch.randperm(classes * each, generator=random, device=device)[:rows]
    return z.flatten(0, 1)[order], own.expand(classes, each).flatten()[order]


def signals(rows: int, dim: int, device: torch.device, *, seed: int = 0) -> Tensor:
    """Smooth signals (n, D): full rank, the variance of frequency f falling off like 1/f^1.5, as `bench.data` has."""
    random = torch.Generator(device).manual_seed(seed)
    amplitude = (1.0 + torch.arange(dim // 2 + 1, device=device)) ** -0.75
    x = torch.empty(rows, dim, device=device)
    for part in x.split(max(1, PART // dim)):
        waves = torch.rand(len(part), len(amplitude), 2, generator=random, device=device) - 0.5
        part.copy_(torch.fft.irfft(torch.view_as_complex(waves) * amplitude, n=dim, norm="ortho") + 1)
    return x


class ManyClasses:
    """Features as a large classifier has them: a mean a class, correlated noise around it."""

    def __init__(self, classes: int, dim: int, device: torch.device, *, seed: int = 0) -> None:
        self.random = torch.Generator(device).manual_seed(seed)
        self.device = device
        self.axes = torch.linalg.qr(self._normal(dim, dim)).Q
        self.scale = 3 * (1.0 + torch.arange(dim, device=device)).rsqrt()  # (d,)
        self.means = 0.1 * self._normal(classes, dim)

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """z (n, d) and y (n,), as many rows of every class, one after the other."""
        y = torch.arange(rows, device=self.device) % len(self.means)
        z = torch.empty(rows, self.means.shape[1], device=self.device)
        some = max(1, PART // z.shape[1])
        for part, classes in zip(z.split(some), y.split(some), strict=True):
            noise = self._normal(*part.shape) * self.scale
            part.copy_(torch.addmm(self.means[classes], noise, self.axes))
        return z, y

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random, device=self.device)
