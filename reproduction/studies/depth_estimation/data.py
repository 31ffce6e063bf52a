"""The data of the depth study: rooms with their depth, and unknown images."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ...datasets.dense import Dense, DenseFiles, cityscapes, lost_and_found, nyu_v2
from ...datasets.images import flipped, noisy, unit
from ..dense_tools import on, some_of

NOISE = 0.2  # standard deviation, for pixels from 0 to 1
BLUR = 4.0  # standard deviation, in pixels
UNKNOWN = 200  # images of each kind, evenly spread
DRIVING: dict[str, Callable[..., DenseFiles]] = {
    "Cityscapes": partial(cityscapes, "val"),
    "Lost & Found": lost_and_found,
}


@dataclass(frozen=True, eq=False)
class Rooms:
    """The data of the study.

    Args:
        train: training images with depth.
        test: test images with depth.
        driving: images of streets as bytes, by set; sets that are not found are left out.
        digests: of all that was read.
        missing: sets that were left out, and why.
    """

    train: Dense
    test: Dense
    driving: dict[str, Tensor]
    digests: dict[str, str]
    missing: dict[str, str]


def read(
    device: torch.device,
    *,
    train: int | None = None,
    test: int | None = None,
    unknown: int = UNKNOWN,
    size: tuple[int, int] | None = None,
) -> Rooms:
    """Read NYU v2, and the sets of street scenes that are found, at the same size.

    Args:
        device: where data go.
        train: most training images.
        test: most test images.
        unknown: most images per set of street scenes.
        size: (H, W) to resize all images to; None keeps that of the rooms.
    """
    files = nyu_v2("train", size=size), nyu_v2("test", size=size)
    known, unseen = (on(device, some_of(part, most).load()) for part, most in zip(files, (train, test), strict=True))
    height, width = unseen.images.shape[2:]
    digests = {"NYU v2 train": known.digest, "NYU v2 test": unseen.digest}
    driving, missing = {}, {}
    for name, reader in DRIVING.items():
        try:
            streets = reader(size=(height, width))
        except FileNotFoundError:
            missing[name] = "not in the folder of data sets"
            continue
        found = some_of(streets, unknown).load()
        driving[name], digests[name] = found.images.to(device), found.digest
    return Rooms(known, unseen, driving, digests, missing)


def blurred(images: Tensor, deviation: float = BLUR) -> Tensor:
    """Blur images (n, C, H, W) with a Gaussian filter, mirrored at the edge; floating point in [0, 1].

    Example:
        >>> bool(blurred(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)).min() > 0.999)
        True
    """
    images = unit(images)
    reach = min(math.ceil(3 * deviation), *(side - 1 for side in images.shape[2:]))
    weight = (-0.5 * (torch.arange(-reach, reach + 1) / deviation).square()).exp()
    weight = (weight / weight.sum()).to(images).repeat(images.shape[1], 1, 1)  # (C, 1, k)
    images = F.pad(images, (reach, reach, reach, reach), mode="reflect")
    for kernel in (weight[..., None], weight[:, :, None]):
        images = F.conv2d(images, kernel, groups=len(kernel))
    return images.clamp(0, 1)


# Changes of test images; from bytes to floating point in [0, 1], or to bytes.
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "noise": lambda images: noisy(images, NOISE, clip=True),
    "inverted": lambda images: 255 - images,
    "upside-down": lambda images: flipped(images, "vertical"),
    "blurred": blurred,
}
