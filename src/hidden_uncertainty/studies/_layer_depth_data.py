"""The data of the paper's depth figures: digits turned and house numbers under noise, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..datasets.images import mnist, noisy, rotated, svhn
from ._table_1_scores import Inputs
from .table_1 import DEFAULT


@dataclass(frozen=True)
class Shift:
    """A change of images in steps, from none on.

    Args:
        kind: what is done to them.
        amounts: degrees, or the deviation of the noise where pixels go from 0 to 255.

    Example:
        >>> Shift("rotation", (0, 20)).names, Shift("noise", (0, 10)).names
        (['rotated 0°', 'rotated 20°'], ['noise 0', 'noise 10'])
    """

    kind: Literal["rotation", "noise"]
    amounts: Sequence[int]

    @property
    def names(self) -> list[str]:
        """Of the steps, in the rows of results."""
        return [f"rotated {amount}°" if self.kind == "rotation" else f"noise {amount}" for amount in self.amounts]

    def __call__(self, images: Tensor, amount: float) -> Tensor:
        """Images (n, C, H, W) in [0, 1] after one step; noise is not clipped, and the same but for its scale."""
        return rotated(images, amount) if self.kind == "rotation" else noisy(images, amount / 255)

    def inputs(self, images: Tensor, labels: Tensor) -> Inputs:
        """Images as they are, and after each step but the first, which changes nothing."""
        steps = list(zip(self.names, self.amounts, strict=True))[1:]
        return Inputs(images, labels, {(name, DEFAULT): self(images, amount) for name, amount in steps})


SHIFTS = {"MNIST": Shift("rotation", range(0, 181, 20)), "SVHN": Shift("noise", range(0, 81, 10))}


class Part(NamedTuple):
    """One data set, cut down where little is asked for: bytes, labels, and digests of what was read."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    digests: dict[str, str]


def read(train: str, device: torch.device, *, count: int | None = None, test: int | None = None) -> Part:
    """Read MNIST or SVHN.

    Args:
        train: which.
        device: where to.
        count: how many images to train on, at most.
        test: how many to test with, at most.
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
