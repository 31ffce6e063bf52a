"""The grey half of table 1: MNIST and FashionMNIST, what is unknown to networks trained on them, and its readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..datasets.images import Images, fashion_mnist, flipped, mnist, noisy, omniglot, rotated, unit, white_on_black
from ..datasets.images.variants import Method, resized
from ._table_1_cells import Noise
from ._table_1_scores import Inputs
from .table_1 import DEFAULT

SETS = ("MNIST", "FashionMNIST")
HELD = 0.2  # of the training images, to stop by
Scaling = Literal["unit", "standard"]

NOISE: dict[str, Noise] = {
    DEFAULT: (2.0, "deviation", False),
    "noise 0.5": (0.5, "pixel", False),
    "noise 0.55": (0.55, "pixel", False),
    "noise 0.6": (0.6, "pixel", False),
    "noise 0.65": (0.65, "pixel", False),
    "noise 0.7": (0.7, "pixel", False),
    "noise of 2 deviations, clipped": (2.0, "deviation", True),
}
# Which alphabets, how they are brought to 28 × 28, and whether white on black.
OMNIGLOT: dict[str, tuple[Literal["background", "evaluation"], Method, bool]] = {
    DEFAULT: ("evaluation", "sample", True),
    "omniglot antialiased": ("evaluation", "antialias", True),
    "omniglot by area": ("evaluation", "area", True),
    "omniglot background": ("background", "sample", True),
    "omniglot black on white": ("evaluation", "sample", False),
}


@dataclass(frozen=True, eq=False)
class Grey:
    """All data of the grey half, cut down where little is asked for.

    Args:
        train: images and labels to train on, by set.
        test: likewise.
        characters: OMNIGLOT at 28 × 28, by its reading.
        digests: of what was read.
    """

    train: Mapping[str, tuple[Tensor, Tensor]]
    test: Mapping[str, tuple[Tensor, Tensor]]
    characters: Mapping[str, Tensor]
    digests: Mapping[str, str]


def read(*, train: int | None = None, test: int | None = None, device: torch.device | str = "cpu") -> Grey:
    """Read MNIST, FashionMNIST and OMNIGLOT.

    Args:
        train: how many images to train on, at most.
        test: how many of each kind to test with, at most.
        device: where to.
    """
    readers = {"MNIST": mnist, "FashionMNIST": fashion_mnist}
    whole: dict[str, Images] = {}
    for name, reader in readers.items():
        for part in ("train", "test"):
            whole[f"{name} {part}"] = reader(part)
    for part in ("background", "evaluation"):
        try:
            whole[f"OMNIGLOT {part}"] = omniglot(part)  # type: ignore[arg-type]
        except FileNotFoundError:
            if part == "evaluation":
                raise  # the other is one reading of many

    def some(name: str, count: int | None) -> tuple[Tensor, Tensor]:
        labels = whole[name].labels
        assert labels is not None
        return unit(whole[name].images[:count]).to(device), labels[:count].to(device)

    characters = {}
    for variant, (part, method, inverted) in OMNIGLOT.items():
        if f"OMNIGLOT {part}" in whole:
            drawn = _spread(whole[f"OMNIGLOT {part}"].images, test).to(device)
            resize = white_on_black if inverted else resized
            characters[variant] = resize(drawn, 28, method=method)
    return Grey(
        {name: some(f"{name} train", train) for name in SETS},
        {name: some(f"{name} test", test) for name in SETS},
        characters,
        {name: images.digest for name, images in whole.items()},
    )


def _spread(images: Tensor, count: int | None) -> Tensor:
    """Some of the images, from all over, as neighbours are alike."""
    return images if count is None else images[:: max(1, len(images) // count)][:count]


def split(images: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows are trained on and which are held to stop by, always the same ones.

    Example:
        >>> rows, held = split(torch.zeros(10, 1, 28, 28))
        >>> len(rows), len(held), sorted(torch.cat([rows, held]).tolist()) == list(range(10))
        (8, 2, True)
    """
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(images.device)
    held = round(HELD * len(images))
    return order[held:], order[:held]


class Scale:
    """From [0, 1] to what networks see.

    Args:
        scaling: `"unit"` leaves images as they are; `"standard"` takes off the mean of the training pixels and divides
            by their deviation.
        images: to be trained on.

    Example:
        >>> scale = Scale("standard", torch.tensor([0.0, 1.0]))
        >>> scale(torch.tensor([0.5]))
        tensor([0.])
    """

    def __init__(self, scaling: Scaling, images: Tensor) -> None:
        standard = scaling == "standard"
        self.mean: Tensor | float = images.mean() if standard else 0.0
        self.std: Tensor | float = images.std() if standard else 1.0

    def __call__(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W), scaled."""
        return (images - self.mean) / self.std


def inputs(train: str, data: Grey, scale: Scale) -> Inputs:
    """What networks trained on a set are asked about: the six rows of the table, in all their readings.

    Args:
        train: the set.
        data: all of it.
        scale: of the networks.
    """
    known, labels = data.test[train]
    other = next(name for name in SETS if name != train)
    unknown = {
        (other, DEFAULT): data.test[other][0],
        ("rotated", DEFAULT): rotated(known, 90),
        ("hflip", DEFAULT): flipped(known, "horizontal"),
        ("vflip", DEFAULT): flipped(known, "vertical"),
    }
    unknown |= {("OMNIGLOT", variant): images for variant, images in data.characters.items()}
    units = {"pixel": 1.0, "deviation": float(data.train[train][0].std())}
    for variant, (level, of, clip) in NOISE.items():
        unknown["noise", variant] = noisy(known, level * units[of], clip=clip)
    return Inputs(scale(known), labels, {key: scale(images) for key, images in unknown.items()})
