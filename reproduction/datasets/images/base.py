"""Images of a data set, held in memory as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hidden_uncertainty.notes import note

_noted: set[tuple[str, str]] = set()


@dataclass(frozen=True, eq=False)
class Images:
    """Images with their labels, where there are any.

    Args:
        images: (n, C, H, W), uint8.
        labels: (n,), long; None where the data set, or this copy of it, has none.
        digest: sha256 of the pixels, then of the labels, for result files.
        official: whether the files are the published ones, by their checksums.

    Example:
        >>> some = Images(torch.full((5, 1, 8, 8), 51, dtype=torch.uint8), torch.arange(5), digest="", official=False)
        >>> len(some), some.floats()[0, 0, 0, 0]
        (5, tensor(0.2000))
    """

    images: Tensor
    labels: Tensor | None
    digest: str
    official: bool

    def __post_init__(self) -> None:
        shape, labels = tuple(self.images.shape), self.labels
        if len(shape) != 4 or self.images.dtype != torch.uint8:
            raise ValueError(f"expected images (n, C, H, W) of uint8, got {shape} of {self.images.dtype}.")
        if labels is not None and (labels.shape != self.images.shape[:1] or labels.dtype != torch.long):
            raise ValueError(f"expected {shape[0]} labels of int64, got {tuple(labels.shape)} of {labels.dtype}.")

    def __len__(self) -> int:
        return len(self.images)

    def floats(self) -> Tensor:
        """The images as float32 in [0, 1]: four times the memory."""
        return self.images.float() / 255


def build(
    name: str, folder: Path, images: np.ndarray, labels: np.ndarray | None, *, classes: int, different: list[str]
) -> Images:
    """Check images and labels that were read from a folder; logs once that they are not the published ones.

    Args:
        name: of the data set.
        folder: that it was read from.
        images: (n, C, H, W), uint8.
        labels: (n,) in 0 … classes - 1.
        classes: how many there are.
        different: what is not as published.
    """
    if not len(images):
        raise ValueError(f"{name} in {str(folder)!r} holds no images.")
    if labels is not None:
        if len(labels) != len(images):
            raise ValueError(f"{name} in {str(folder)!r} has {len(images)} images, but {len(labels)} labels.")
        wrong = labels[(labels < 0) | (labels >= classes)]
        if len(wrong):
            raise ValueError(
                f"{name} in {str(folder)!r} has labels outside its {classes} classes: {len(wrong)}, first {wrong[0]}."
            )
    pixels = np.require(images, requirements=("C", "W"))
    numbers = None if labels is None else np.require(labels, np.int64, requirements=("C", "W"))
    total = sha256(pixels.data)
    if numbers is not None:
        total.update(numbers.data)
    if different and (name, str(folder)) not in _noted:
        _noted.add((name, str(folder)))
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        note(
            f"{name} in {str(folder)!r} is not known to be the published copy: {', '.join(different[:3])}{more}. "
            "It is read all the same, and results hold its digest."
        )
    return Images(
        torch.from_numpy(pixels),
        None if numbers is None else torch.from_numpy(numbers),
        digest=total.hexdigest(),
        official=not different,
    )
