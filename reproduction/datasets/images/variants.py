"""Images changed away from what a network was trained on, and images of one data set in the form of another.

Every function takes images (n, C, H, W), bytes or floating point in [0, 1], and returns floating point in that scale.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hidden_uncertainty import demo

Resampling = Literal["antialias", "area", "sample"]
_AT_ONCE = 1024  # images converted to floating point together: all of STL10 would need 4 bytes per value


def unit(images: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1]; floating point is returned unchanged.

    Example:
        >>> unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    if images.is_floating_point():
        return images
    if images.dtype != torch.uint8:
        raise ValueError(f"expected images of uint8 or floating point, got {images.dtype}.")
    return images.float() / 255


def noisy(images: Tensor, deviation: float, *, seed: int = 0, clip: bool = False) -> Tensor:
    """Add independent Gaussian noise to every pixel.

    Args:
        images: (n, C, H, W).
        deviation: standard deviation, for pixels from 0 to 1: for 80 of 255, pass 80 / 255.
        seed: of the noise.
        clip: whether to clip the result to [0, 1], as a file of bytes would.

    Example:
        >>> black = torch.zeros(2, 1, 64, 64, dtype=torch.uint8)
        >>> bool(noisy(black, 0.5).min() < 0), bool(noisy(black, 0.5, clip=True).min() < 0)
        (True, False)
    """
    result = demo.add_noise(unit(images), deviation, seed=seed)
    return result.clamp(0, 1) if clip else result


def rotated(images: Tensor, degrees: float) -> Tensor:
    """Rotate images counter-clockwise about their centre: squares by quarter turns exactly, all others bilinearly.

    Args:
        images: (n, C, H, W).
        degrees: the angle.

    Example:
        >>> rotated(torch.tensor([[[[0, 51], [102, 255]]]], dtype=torch.uint8), 90)
        tensor([[[[0.2000, 1.0000],
                  [0.0000, 0.4000]]]])
    """
    images = unit(images)
    square = images.dim() == 4 and images.shape[2] == images.shape[3]
    if square and degrees % 90 == 0:
        return images.rot90(int(degrees // 90) % 4, dims=(2, 3))
    return demo.rotate(images, degrees)


def flipped(images: Tensor, direction: Literal["horizontal", "vertical"]) -> Tensor:
    """Mirror images: swap left and right, or top and bottom.

    Args:
        images: (n, C, H, W).
        direction: `"horizontal"` or `"vertical"`.

    Example:
        >>> flipped(torch.tensor([[[[0, 51]]]], dtype=torch.uint8), "horizontal")
        tensor([[[[0.2000, 0.0000]]]])
    """
    if direction not in ("horizontal", "vertical"):
        raise ValueError(f"direction must be 'horizontal' or 'vertical', got {direction!r}.")
    if images.dim() != 4:
        raise ValueError(f"expected images (n, C, H, W), got {tuple(images.shape)}.")
    return unit(images).flip(3 if direction == "horizontal" else 2)


def resized(images: Tensor, size: int, *, resampling: Resampling = "antialias") -> Tensor:
    """Resize images to `size` × `size` pixels.

    Args:
        images: (n, C, H, W).
        size: of each side.
        resampling: `"antialias"`, a bilinear filter as wide as the step, as in pillow; `"area"`, the mean of what a new
            pixel covers; `"sample"`, bilinear at the centre of the new pixel, without antialiasing: from 96 to 32 this
            takes every third pixel, from the second.

    Example:
        >>> image = torch.arange(9, dtype=torch.float32).view(1, 1, 3, 3)
        >>> [resized(image, 1, resampling=resampling).item() for resampling in ("area", "sample")]
        [4.0, 4.0]
        >>> image[..., 0, 0] = 9.0
        >>> [resized(image, 1, resampling=resampling).item() for resampling in ("area", "sample")]
        [5.0, 4.0]
    """
    if resampling not in ("antialias", "area", "sample"):
        raise ValueError(f"resampling must be 'antialias', 'area' or 'sample', got {resampling!r}.")
    if images.dim() != 4 or not len(images):
        raise ValueError(f"expected images (n, C, H, W), got {tuple(images.shape)}.")
    mode = "area" if resampling == "area" else "bilinear"
    parts = [
        F.interpolate(unit(part), (size, size), mode=mode, antialias=resampling == "antialias")
        for part in images.split(_AT_ONCE)
    ]
    return torch.cat(parts)


def white_on_black(images: Tensor, size: int = 28, *, resampling: Resampling = "antialias") -> Tensor:
    """Invert and resize black ink on white paper: OMNIGLOT in the form of MNIST.

    Args:
        images: (n, C, H, W).
        size: of each side.
        resampling: as for `resized`.

    Example:
        >>> paper = torch.full((1, 1, 105, 105), 255, dtype=torch.uint8)
        >>> white_on_black(paper).shape, white_on_black(paper).max().item()
        (torch.Size([1, 1, 28, 28]), 0.0)
    """
    return resized((1 if images.is_floating_point() else 255) - images, size, resampling=resampling)
