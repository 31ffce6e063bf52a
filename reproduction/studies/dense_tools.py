"""What studies of networks that predict per pixel share: batches, exact convolutions, warnings, timing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..datasets.dense import Dense, DenseFiles
from ..training.share import wait

# Pixels per batch. On a GPU, ten samples of 19 classes each with all intermediate results take 4 GB; on a CPU, large
# intermediate results are slower than small ones.
PIXELS, PIXELS_ON_CPU = 1 << 19, 1 << 15


def some_of(files: DenseFiles, count: int | None) -> DenseFiles:
    """All of the files, or at most this many, evenly spread."""
    if count is None or count >= len(files):
        return files
    return files.some([i * len(files) // count for i in range(count)])


def on(device: torch.device, data: Dense) -> Dense:
    """The same images and targets on a device."""
    return Dense(data.images.to(device), data.targets.to(device), data.digest)


def batches(images: Tensor, *others: Tensor, pixels: int | None = None) -> list[tuple[Tensor, ...]]:
    """Batches of images (n, 3, H, W) and what belongs to them, of at most so many pixels but at least one image.

    Example:
        >>> [len(part) for part, _ in batches(torch.zeros(5, 3, 4, 4), torch.zeros(5), pixels=40)]
        [2, 2, 1]
    """
    pixels = pixels or (PIXELS_ON_CPU if images.device.type == "cpu" else PIXELS)
    size = max(1, pixels // (images.shape[2] * images.shape[3]))
    return list(zip(*(each.split(size) for each in (images, *others)), strict=True))


def resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize maps (n, h, w), bilinearly.

    Example:
        >>> resized(torch.tensor([[[0.0, 1.0]]]), (1, 4))
        tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
    """
    if maps.shape[1:] == size:
        return maps
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def shrunk(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images (n, 3, H, W) of bytes, with antialiasing."""
    if images.shape[2:] == size:
        return images
    parts = [
        F.interpolate(part.float(), size=size, mode="bilinear", align_corners=False, antialias=True)
        for (part,) in batches(images, pixels=1 << 22)
    ]
    return torch.cat(parts).round().clamp(0, 255).byte()


@contextmanager
def exact() -> Iterator[None]:
    """Compute convolutions in float32: the rounding of TF32 matters for densities of many dimensions."""
    # `flags` switches cuDNN off unless it is told not to.
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
        yield


@contextmanager
def collected(texts: list[str]) -> Iterator[None]:
    """Put warnings into a list instead."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts += [str(warning.message) for warning in caught]


def milliseconds_per_megapixel(call: Callable[[Tensor], Any], images: Tensor, repeats: int) -> float:
    """Time of a call per million pixels of images (n, 3, H, W): the median, after one call that is not timed.

    Args:
        call: what is timed, until the device is done.
        images: on the device.
        repeats: number of timed calls.
    """
    seconds = []
    for _ in range(repeats + 1):
        wait(images.device)
        start = time.perf_counter()
        call(images)
        wait(images.device)
        seconds.append(time.perf_counter() - start)
    return 1e9 * median(seconds[1:]) / (len(images) * images.shape[2] * images.shape[3])
