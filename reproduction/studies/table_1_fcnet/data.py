"""The data of table 1, left half: MNIST and FashionMNIST, unknown sets, and their variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...datasets.images import Images, fashion_mnist, flipped, mnist, noisy, omniglot, rotated, unit, white_on_black
from ...datasets.images.variants import Resampling, resized
from ..table_1.cells import Noise
from ..table_1.rows import DEFAULT
from ..table_1.scores import Inputs

SETS = ("MNIST", "FashionMNIST")
HELD = 0.2  # share of the training images, for early stopping
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
# Which alphabets, how they are resized to 28 × 28, and whether they are white on black.
OMNIGLOT: dict[str, tuple[Literal["background", "evaluation"], Resampling, bool]] = {
    DEFAULT: ("evaluation", "sample", True),
    "omniglot antialiased": ("evaluation", "antialias", True),
    "omniglot by area": ("evaluation", "area", True),
    "omniglot background": ("background", "sample", True),
    "omniglot black on white": ("evaluation", "sample", False),
}


@dataclass(frozen=True, eq=False)
class Grey:
    """All data of the left half, or a part of them.

    Args:
        train: training images and labels, by set.
        test: test images and labels, by set.
        characters: OMNIGLOT at 28 × 28, by variant.
        digests: of what was read.
    """

    train: Mapping[str, tuple[Tensor, Tensor]]
    test: Mapping[str, tuple[Tensor, Tensor]]
    characters: Mapping[str, Tensor]
    digests: Mapping[str, str]


def read(*, train: int | None = None, test: int | None = None, device: torch.device | str = "cpu") -> Grey:
    """Read MNIST, FashionMNIST and OMNIGLOT.

    Args:
        train: most training images per set.
        test: most test images per set.
        device: where data go.
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
                raise  # the other is needed by one variant only

    def some(name: str, count: int | None) -> tuple[Tensor, Tensor]:
        labels = whole[name].labels
        assert labels is not None
        return unit(whole[name].images[:count]).to(device), labels[:count].to(device)

    characters = {}
    for variant, (part, resampling, inverted) in OMNIGLOT.items():
        if f"OMNIGLOT {part}" in whole:
            drawn = _spread(whole[f"OMNIGLOT {part}"].images, test).to(device)
            resize = white_on_black if inverted else resized
            characters[variant] = resize(drawn, 28, resampling=resampling)
    return Grey(
        {name: some(f"{name} train", train) for name in SETS},
        {name: some(f"{name} test", test) for name in SETS},
        characters,
        {name: images.digest for name, images in whole.items()},
    )


def _spread(images: Tensor, count: int | None) -> Tensor:
    """Some of the images, evenly spread, because neighbours are alike."""
    return images if count is None else images[:: max(1, len(images) // count)][:count]


def split(images: Tensor) -> tuple[Tensor, Tensor]:
    """The rows for training and those for early stopping, always the same.

    Example:
        >>> rows, held = split(torch.zeros(10, 1, 28, 28))
        >>> len(rows), len(held), sorted(torch.cat([rows, held]).tolist()) == list(range(10))
        (8, 2, True)
    """
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(images.device)
    held = round(HELD * len(images))
    return order[held:], order[:held]


class Scale:
    """From [0, 1] to the networks' inputs.

    Args:
        scaling: `"unit"` leaves images unchanged; `"standard"` subtracts the mean of the training pixels and divides by
            their standard deviation.
        images: for training.

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
    """Known and unknown inputs for networks trained on a set: the six rows of the table, in all their variants.

    Args:
        train: the training set.
        data: all data.
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
