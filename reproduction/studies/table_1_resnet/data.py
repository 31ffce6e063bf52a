"""The data of table 1, right half: SVHN and CIFAR10, unknown sets, and their variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...datasets.images import Images, cifar10, flipped, noisy, resized, rotated, stl10, svhn, unit
from ...datasets.images.variants import Resampling
from ..table_1.cells import Noise
from ..table_1.rows import DEFAULT
from ..table_1.scores import Inputs

SETS = ("SVHN", "CIFAR10")
NOISE: dict[str, Noise] = {
    DEFAULT: (2.0, "deviation", False),
    "noise 0.5": (0.5, "pixel", False),
    "noise 0.65": (0.65, "pixel", False),
    "noise of 2 deviations, clipped": (2.0, "deviation", True),
}
STL10: dict[str, Resampling] = {DEFAULT: "sample", "stl10 antialiased": "antialias"}
UNFLIPPED = "hflip not applied"


@dataclass(frozen=True, eq=False)
class Colour:
    """All data of the right half, or a part of them.

    Args:
        train: training images as bytes and labels, by set.
        test: test images and labels, by set.
        photographs: STL10 at 32 × 32, by variant, in [0, 1].
        digests: of what was read.
    """

    train: Mapping[str, tuple[Tensor, Tensor]]
    test: Mapping[str, tuple[Tensor, Tensor]]
    photographs: Mapping[str, Tensor]
    digests: Mapping[str, str]


def read(*, train: int | None = None, test: int | None = None, device: torch.device | str = "cpu") -> Colour:
    """Read SVHN, CIFAR10 and the test part of STL10.

    Args:
        train: most training images per set.
        test: most test images per set.
        device: where data go.
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
        {variant: resized(drawn, 32, resampling=resampling) for variant, resampling in STL10.items()},
        {name: images.digest for name, images in whole.items()},
    )


def inputs(train: str, data: Colour) -> Inputs:
    """Known and unknown inputs for networks trained on a set: the six rows of the table, in all their variants.

    Args:
        train: the training set.
        data: all data.
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
