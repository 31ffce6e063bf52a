"""The data of the paper's figures of layers: rotated digits and noisy house numbers, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...datasets.images import mnist, noisy, rotated, svhn
from ..table_1.rows import DEFAULT
from ..table_1.scores import Inputs


@dataclass(frozen=True)
class Shift:
    """A change of images in steps; the first step changes nothing.

    Args:
        kind: of the change.
        amounts: degrees, or the standard deviation of the noise for pixels from 0 to 255.

    Example:
        >>> Shift("rotation", (0, 20)).names, Shift("noise", (0, 10)).names
        (['rotated 0°', 'rotated 20°'], ['noise 0', 'noise 10'])
    """

    kind: Literal["rotation", "noise"]
    amounts: Sequence[int]

    @property
    def names(self) -> list[str]:
        """The steps' names in rows of results."""
        return [f"rotated {amount}°" if self.kind == "rotation" else f"noise {amount}" for amount in self.amounts]

    def __call__(self, images: Tensor, amount: float) -> Tensor:
        """Images (n, C, H, W) in [0, 1] after one step. Noise is not clipped, and differs only in its scale."""
        return rotated(images, amount) if self.kind == "rotation" else noisy(images, amount / 255)

    def inputs(self, images: Tensor, labels: Tensor) -> Inputs:
        """Unchanged images as known, and images after each later step as unknown."""
        steps = list(zip(self.names, self.amounts, strict=True))[1:]
        return Inputs(images, labels, {(name, DEFAULT): self(images, amount) for name, amount in steps})


SHIFTS = {"MNIST": Shift("rotation", range(0, 181, 20)), "SVHN": Shift("noise", range(0, 81, 10))}


class Part(NamedTuple):
    """One data set, or a part of it: bytes, labels, and digests of what was read."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    digests: dict[str, str]


def read(train: str, device: torch.device, *, count: int | None = None, test: int | None = None) -> Part:
    """Read MNIST or SVHN.

    Args:
        train: its name.
        device: where data go.
        count: most training images.
        test: most test images.
    """
    reader = {"MNIST": mnist, "SVHN": svhn}[train]
    known, unseen = reader("train"), reader("test")
    assert known.labels is not None and unseen.labels is not None
    return Part(
        known.images[:count].to(device),
        known.labels[:count].to(device),
        unseen.images[:test].to(device),
        unseen.labels[:test].to(device),
        {f"{train} train": known.digest, f"{train} test": unseen.digest},
    )
