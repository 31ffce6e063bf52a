"""The data and the sizes of the segmentation study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...datasets.dense import cityscapes, lost_and_found
from ...datasets.dense.base import IGNORE
from ...training.dense import DenseRecipe
from ..dense_tools import on, shrunk, some_of

TRAIN, UNKNOWN = "Cityscapes", "Lost & Found"
LARGE = "images at twice the size"  # a variant
# Epistemic uncertainty: what the paper found best on the images that are the test images here, with another network.
FITTED: Mapping[str, Any] = {
    "components": 2,
    "covariance": "tied",
    "max_iter": 1000,
    "ridge": 1e-4,
    "shrinkage": None,
}
# Aleatoric uncertainty: as in the paper, to keep entropies from underflowing.
UNDERFIT: Mapping[str, Any] = {
    "components": 1,
    "covariance": "tied",
    "max_iter": 50,
    "ridge": 0.1,
    "shrinkage": None,
}


@dataclass(frozen=True)
class Plan:
    """Sizes of everything.

    Args:
        size: (height, width) of the networks' inputs; masks of unknown objects are twice as large.
        train: most images for training and for densities.
        val: most images to find mistakes in.
        unknown: most images to find objects in.
        recipe: of training.
        encoder: multiple of the encoder's channels, with random weights; None takes the one trained on ImageNet.
        width: channels of pyramid and decoder: the dimensions of the density.
        per_class: most pixels drawn per class and image.
        reservoir: most pixels that densities are fitted to.
        references: how many of these are searched for neighbours.
        bits: of the bins in which scores are counted.
        repeats: of every timing.
    """

    size: tuple[int, int] = (256, 512)
    train: int | None = None
    val: int | None = None
    unknown: int | None = None
    recipe: DenseRecipe = field(default_factory=lambda: DenseRecipe(epochs=30, scale=(0.5, 2.0), colour=0.2))
    encoder: float | None = None
    width: int = 256
    per_class: int = 500
    reservoir: int = 100_000
    references: int = 10_000
    bits: int = 22
    repeats: int = 5


FULL = Plan()
QUICK = Plan(
    size=(128, 256),
    train=80,
    val=10,
    unknown=5,
    recipe=DenseRecipe(epochs=6, batch_size=4, learning_rate=3e-3),
    encoder=0.25,
    width=32,
    per_class=100,
    reservoir=10_000,
    references=1000,
    bits=18,
    repeats=1,
)


@dataclass(frozen=True, eq=False)
class Parts:
    """The data, on the device.

    Args:
        images: for training, bytes (n, 3, H, W).
        labels: of these, (n, H, W).
        val_images: to find mistakes in.
        val_labels: of these.
        unknown_images: with unknown objects, twice as large.
        masks: of these: 0 is known, 1 an object, 255 ignored.
        digests: of the data.
    """

    images: Tensor
    labels: Tensor
    val_images: Tensor
    val_labels: Tensor
    unknown_images: Tensor
    masks: Tensor
    digests: Mapping[str, str]

    def unknown(self, variant: str) -> Tensor:
        """Images with unknown objects for a network: at the scale of its training, or at twice that."""
        if variant == LARGE:
            return self.unknown_images
        return shrunk(self.unknown_images, (self.images.shape[2], self.images.shape[3]))


def read(plan: Plan, device: torch.device) -> Parts:
    """Read both sets; all files are found before any is read.

    Args:
        plan: how many images, and their size.
        device: where data go.
    """
    large = (2 * plan.size[0], 2 * plan.size[1])
    files = (
        some_of(cityscapes("train", size=plan.size), plan.train),
        some_of(cityscapes("val", size=plan.size), plan.val),
        some_of(lost_and_found(size=large), plan.unknown),
    )
    train, val, unknown = (on(device, each.load()) for each in files)
    for data, name in ((train, f"{TRAIN} train"), (val, f"{TRAIN} val"), (unknown, UNKNOWN)):
        there = data.targets[data.targets != IGNORE].unique()
        if len(there) < 2:
            raise ValueError(
                f"{name} has pixels of {len(there)} classes in {len(data)} images, expected at least 2. "
                f"Check the labels, where {IGNORE} is ignored."
            )
    digests = {f"{TRAIN} train": train.digest, f"{TRAIN} val": val.digest, UNKNOWN: unknown.digest}
    return Parts(train.images, train.targets, val.images, val.targets, unknown.images, unknown.targets, digests)
