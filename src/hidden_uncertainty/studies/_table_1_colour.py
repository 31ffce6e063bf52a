"""The colour half of table 1: SVHN and CIFAR10, what is unknown to networks trained on them, and its readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..datasets.images import Images, cifar10, flipped, noisy, resized, rotated, stl10, svhn, unit
from ..datasets.images.variants import Method
from ._table_1_cells import Noise
from ._table_1_scores import Inputs
from .table_1 import DEFAULT

SETS = ("SVHN", "CIFAR10")
NOISE: dict[str, Noise] = {
    DEFAULT: (2.0, "deviation", False),
    "noise 0.5": (0.5, "pixel", False),
    "noise 0.65": (0.65, "pixel", False),
    "noise of 2 deviations, clipped": (2.0, "deviation", True),
}
STL10: dict[str, Method] = {DEFAULT: "sample", "stl10 antialiased": "antialias"}
UNFLIPPED = "hflip not applied"


@dataclass(frozen=True, eq=False)
class Colour:
    """All data of the colour half, cut down where little is asked for.

    Args:
        train: images as bytes and labels to train on, by set.
        test: likewise.
        photographs: STL10 at 32 × 32, by its reading, in [0, 1].
        digests: of what was read.
    """

    train: Mapping[str, tuple[Tensor, Tensor]]
    test: Mapping[str, tuple[Tensor, Tensor]]
    photographs: Mapping[str, Tensor]
    digests: Mapping[str, str]


def read(*, train: int | None = None, test: int | None = None, device: torch.device | str = "cpu") -> Colour:
    """Read SVHN, CIFAR10 and the test part of STL10.

    Args:
        train: how many images to train on, at most.
        test: how many of each kind to test with, at most.
        device: where to.
    """
    whole: dict[str, Images] = {}
    for name, reader in (("SVHN", svhn), ("CIFAR10", cifar10)):
        for part in ("train", "test"):
            whole[f"{name} {part}"] = reader(part)
    whole["STL10 test"] = stl10("test")

    def some(name: str, count: int | None) -> tuple[Tensor, Tensor]:
        labels = whole[name].labels
        assert labels is not None
        return whole[name].images[:count].to(device), labels[:count].to(device)

    drawn = whole["STL10 test"].images[:test].to(device)
    return Colour(
        {name: some(f"{name} train", train) for name in SETS},
        {name: some(f"{name} test", test) for name in SETS},
        {variant: resized(drawn, 32, method=method) for variant, method in STL10.items()},
        {name: images.digest for name, images in whole.items()},
    )


def inputs(train: str, data: Colour) -> Inputs:
    """What networks trained on a set are asked about: the six rows of the table, in all their readings.

    Args:
        train: the set.
        data: all of it.
    """
    known, labels = unit(data.test[train][0]), data.test[train][1]
    other = next(name for name in SETS if name != train)
    unknown = {
        (other, DEFAULT): unit(data.test[other][0]),
        ("rotated", DEFAULT): rotated(known, 90),
        ("hflip", DEFAULT): flipped(known, "horizontal"),
        ("hflip", UNFLIPPED): known,
        ("vflip", DEFAULT): flipped(known, "vertical"),
    }
    unknown |= {("STL10", variant): images for variant, images in data.photographs.items()}
    units = {"pixel": 1.0, "deviation": float(unit(data.train[train][0]).std())}
    for variant, (level, of, clip) in NOISE.items():
        unknown["noise", variant] = noisy(known, level * units[of], clip=clip)
    return Inputs(known, labels, unknown)
