"""Changes that move images away from what a network was trained on, in steps of any size; of any (n, C, H, W)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate images counter-clockwise about their centre; what comes from outside is zero.

    Bilinear, on the canvas as it is: corners that leave it are lost.

    Args:
        images: (n, C, H, W), floating point.
        degrees: the angle.

    Example:
        >>> image = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, None]
        >>> rotate(image, 90)[0, 0].round(decimals=4)
        tensor([[2., 4.],
                [1., 3.]])
    """
    _check(images)
    height, width = images.shape[2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # The grid's coordinates run from -1 to 1 along both sides, so that unequal sides must be undone.
    inverse = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    theta = torch.tensor(inverse, dtype=images.dtype, device=images.device).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)  # (n, H, W, 2)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def add_noise(images: Tensor, deviation: float, *, seed: int = 0) -> Tensor:
    """Add independent Gaussian noise to every pixel; the result is not clipped.

    Args:
        images: (n, C, H, W), floating point.
        deviation: standard deviation, in the images' own unit.
        seed: of the noise, which is the same on every device, and at every deviation but for its scale.

    Example:
        >>> noisy = add_noise(torch.zeros(2, 1, 64, 64), 0.5)
        >>> bool(abs(noisy.std() - 0.5) < 0.02)
        True
    """
    _check(images)
    if not deviation >= 0:
        raise ValueError(f"deviation must be zero or more, got {deviation}.")
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return images + deviation * noise.to(images)


def flip(images: Tensor, direction: Literal["horizontal", "vertical"]) -> Tensor:
    """Mirror images: left and right change places, or top and bottom.

    Args:
        images: (n, C, H, W).
        direction: `"horizontal"` or `"vertical"`.

    Example:
        >>> flip(torch.tensor([[[[1, 2], [3, 4]]]]), "horizontal")
        tensor([[[[2, 1],
                  [4, 3]]]])
    """
    if direction not in ("horizontal", "vertical"):
        raise ValueError(f"direction must be 'horizontal' or 'vertical', got {direction!r}.")
    if images.dim() != 4:
        raise ValueError(f"expected images (n, C, H, W), got {tuple(images.shape)}.")
    return images.flip(3 if direction == "horizontal" else 2)


def _check(images: Tensor) -> None:
    if images.dim() != 4 or not images.is_floating_point():
        raise ValueError(f"expected floating-point images (n, C, H, W), got {tuple(images.shape)} of {images.dtype}.")
