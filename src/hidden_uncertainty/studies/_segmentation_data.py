"""What the segmentation study reads, and how large everything in it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..datasets.dense import cityscapes, lost_and_found
from ..datasets.dense.base import IGNORE
from ..nets.dense import DenseRecipe
from ._dense_tools import on, shrunk, some_of

TRAIN, UNKNOWN = "Cityscapes", "Lost & Found"
LARGE = "images at twice the size"  # what is different in the variant
# Epistemic uncertainty: as the paper found best on the images that are tested on here, with another network.
FITTED: Mapping[str, Any] = {
    "components": 2,
    "covariance": "tied",
    "max_iter": 1000,
    "ridge": 1e-4,
    "shrinkage": None,
}
# Aleatoric uncertainty: as the paper has it, to keep entropies from underflowing.
UNDERFIT: Mapping[str, Any] = {
    "components": 1,
    "covariance": "tied",
    "max_iter": 50,
    "ridge": 0.1,
    "shrinkage": None,
}


@dataclass(frozen=True)
class Plan:
    """How large everything is.

    Args:
        size: (height, width) that networks see; masks of unknown objects are twice as large.
        train: images to train on and to fit to, at most.
        val: images to find mistakes in, at most.
        unknown: images to find objects in, at most.
        recipe: how networks are trained.
        encoder: multiple of the encoder's channels, with random weights; None takes the one learned on ImageNet.
        width: channels of pyramid and decoder: the dimensions of the density.
        per_class: pixels drawn of a class and an image, at most.
        reservoir: pixels that densities are fitted to, at most.
        references: of these, so many are searched for neighbours.
        bits: of the bins that scores are counted in.
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
    """What was read, on the device.

    Args:
        images: to train on, bytes (n, 3, H, W).
        labels: of these, (n, H, W).
        val_images: to find mistakes in.
        val_labels: of these.
        unknown_images: with unknown objects, twice as large.
        masks: of these: 0 is known, 1 an object, 255 neither.
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
        """Images with unknown objects as a network sees them: at the scale it was trained at, or at twice that."""
        if variant == LARGE:
            return self.unknown_images
        return shrunk(self.unknown_images, (self.images.shape[2], self.images.shape[3]))


def read(plan: Plan, device: torch.device, *, progress: bool | None) -> Parts:
    """Read both sets; their files are sought before any is read.

    Args:
        plan: how much of them, and at what size.
        device: where to.
        progress: show bars; None shows them on a terminal.
    """
    large = (2 * plan.size[0], 2 * plan.size[1])
    files = (
        some_of(cityscapes("train", size=plan.size), plan.train),
        some_of(cityscapes("val", size=plan.size), plan.val),
        some_of(lost_and_found(size=large), plan.unknown),
    )
    train, val, unknown = (on(device, each.load(progress=progress)) for each in files)
    for data, name in ((train, f"{TRAIN} train"), (val, f"{TRAIN} val"), (unknown, UNKNOWN)):
        there = data.targets[data.targets != IGNORE].unique()
        if len(there) < 2:
            raise ValueError(
                f"{name} has pixels of {len(there)} classes in {len(data)} images, expected at least 2: there would be "
                f"nothing to tell apart. Check the labels, where {IGNORE} is ignored."
            )
    digests = {f"{TRAIN} train": train.digest, f"{TRAIN} val": val.digest, UNKNOWN: unknown.digest}
    return Parts(train.images, train.targets, val.images, val.targets, unknown.images, unknown.targets, digests)
