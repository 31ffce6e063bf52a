"""Random views of images and of their targets per pixel, computed on the device of the images."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORE = 255  # the class of pixels without one


def augment(
    images: Tensor,
    targets: Tensor,
    *,
    crop: tuple[int, int] | None,
    scale: tuple[float, float],
    flip: bool,
    colour: float,
    distances: bool,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Cut a window of each image at a random place and scale, mirror half of them, change their colours.

    This takes a few operations on the whole batch, without synchronising with the host.

    Args:
        images: (n, 3, H, W) in [0, 1].
        targets: (n, h, w), classes as uint8 or numbers; they cover the images, whatever their own size.
        crop: (height, width) of the windows in pixels of images; None keeps theirs.
        scale: lowest and highest zoom; above 1, things become larger. Outside of the image, windows are grey and
            targets 255 or NaN.
        flip: swap left and right with probability one half.
        colour: contrast, brightness and each colour change by up to this share.
        distances: targets are distances: what appears twice as large is half as far.
        generator: on the device of the images.
    """
    (count, _, height, width), device = images.shape, images.device
    size = crop or (height, width)
    draw = torch.rand(4, count, device=device, generator=generator)
    zoom = scale[0] * (scale[1] / scale[0]) ** draw[0]  # uniform in its logarithm: halved as often as doubled
    across, down = size[1] / width / zoom, size[0] / height / zoom  # the window, as shares of the image
    right, below = (2 * draw[1] - 1) * (1 - across).abs(), (2 * draw[2] - 1) * (1 - down).abs()
    if flip:
        across = torch.where(draw[3] < 0.5, -across, across)
    zero = torch.zeros_like(zoom)
    theta = torch.stack([across, zero, right, zero, down, below], 1).view(count, 2, 3)
    if colour > 0:
        images = _recolour(images, colour, generator)
    # Shifted by grey, so that the zeros outside are grey.
    views = _sample(images - 0.5, theta, size, "bilinear")[0] + 0.5
    small = round(targets.shape[1] * size[0] / height), round(targets.shape[2] * size[1] / width)
    seen, outside = _sample(targets[:, None].float(), theta, small, "nearest")
    seen = seen[:, 0] / zoom.view(-1, 1, 1) if distances else seen[:, 0]
    return views, seen.masked_fill(outside, torch.nan if targets.is_floating_point() else IGNORE).to(targets.dtype)


def _sample(
    x: Tensor, theta: Tensor, size: tuple[int, int], mode: Literal["bilinear", "nearest"]
) -> tuple[Tensor, Tensor]:
    """Windows of x (n, c, h, w), and which of their pixels are outside of it, (n, height, width)."""
    grid = F.affine_grid(theta, [len(x), x.shape[1], *size], align_corners=False)
    padding = "zeros" if mode == "bilinear" else "border"
    sampled = F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=False)
    return sampled, (grid.abs() > 1).any(-1)


def _recolour(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    draw = torch.rand(len(images), 5, 1, 1, device=images.device, generator=generator)
    contrast, gain = (1 + share * (2 * draw - 1)).split((1, 4), 1)
    mean = images.mean((1, 2, 3), keepdim=True)
    return (((images - mean) * contrast + mean) * gain[:, :1] * gain[:, 1:]).clamp(0, 1)
