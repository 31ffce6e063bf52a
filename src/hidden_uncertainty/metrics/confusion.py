"""Which classes are predicted for which labels, counted in a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ._values import Values, by_name


class Confusion:
    r"""A confusion matrix counted in a stream, with mean intersection over union and accuracy.

    .. math:: \text{IoU}_c = \frac{\#\{\hat y = c \wedge y = c\}}{\#\{\hat y = c \vee y = c\}}

    Classes that are neither in the labels nor predicted have no IoU and are left out of the mean.

    Args:
        classes: how many there are, numbered from 0.
        ignore: label, or labels, whose pixels do not count; None counts all.

    Example:
        >>> confusion = Confusion(3)
        >>> confusion.update(prediction=[[0, 0], [1, 1]], label=[[0, 1], [1, 255]])
        >>> confusion.matrix.tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
        >>> confusion.mean_iou, round(confusion.accuracy, 3)
        (0.5, 0.667)
    """

    def __init__(self, classes: int, *, ignore: int | Sequence[int] | None = 255) -> None:
        if classes < 1:
            raise ValueError(f"classes must be at least 1, got {classes}.")
        self.classes = classes
        self.ignore = () if ignore is None else (ignore,) if isinstance(ignore, int) else tuple(ignore)
        # One count per pair of label and prediction; the last counts pixels with a class out of range.
        self._counts = torch.zeros(classes**2 + 1, dtype=torch.int64, device="cpu")

    @by_name("scikit-learn's order is (y_true, y_pred): the label first.")
    def update(self, *, prediction: Values, label: Values) -> None:
        """Count pixels, on the device of the predictions; on a GPU without waiting for it.

        A class out of range is a ValueError: at once on the CPU, when a number is read on a GPU.

        Args:
            prediction: classes, any shape.
            label: of the same shape.
        """
        found, true = _classes(prediction, "prediction"), _classes(label, "label")
        if found.shape != true.shape:
            shapes = f"{tuple(found.shape)} and {tuple(true.shape)}"
            raise ValueError(f"prediction and label must have the same shape, got {shapes}: give one class per pixel.")
        true = true.to(found.device)
        inside = (found >= 0) & (found < self.classes) & (true >= 0) & (true < self.classes)
        pairs = torch.where(inside, true * self.classes + found, self.classes**2).flatten()
        valid = torch.ones_like(inside)
        for value in self.ignore:
            valid &= true != value
        if found.device.type == "cpu":
            self._refuse(int((valid & ~inside).sum()))
        self._counts = self._counts.to(found.device).index_add(0, pairs, valid.flatten().long())

    @property
    def matrix(self) -> Tensor:
        """How many pixels there are per label (rows) and prediction (columns); int64."""
        counts = self._counts.clone()
        self._refuse(int(counts[-1]))
        return counts[:-1].view(self.classes, self.classes)

    @property
    def iou(self) -> Tensor:
        """Intersection over union per class, float64; NaN for a class that is neither in the labels nor predicted."""
        matrix = self._some()
        hits = matrix.diagonal()
        return hits.double() / (matrix.sum(0) + matrix.sum(1) - hits)

    @property
    def mean_iou(self) -> float:
        """Mean of `iou` over the classes that have one."""
        return float(self.iou.nanmean())

    @property
    def accuracy(self) -> float:
        """Share of pixels whose prediction is their label."""
        matrix = self._some()
        return int(matrix.trace()) / int(matrix.sum())

    def merge(self, other: Confusion) -> Self:
        """Add the pixels that another matrix has counted; the other does not change.

        Args:
            other: with as many classes, on any device.
        """
        if other.classes != self.classes:
            raise ValueError(f"{self.classes} and {other.classes} classes cannot be merged: use the same number.")
        self._counts = self._counts + other._counts.to(self._counts.device)
        return self

    def _some(self) -> Tensor:
        matrix = self.matrix
        if not matrix.any():
            raise ValueError("no pixel was counted: update with labels that are not all ignored.")
        return matrix

    def _refuse(self, outside: int) -> None:
        if outside:
            skipped = f"; ignored labels are {list(self.ignore)}" if self.ignore else ""
            raise ValueError(f"{outside:,} pixels have a class outside 0 to {self.classes - 1}{skipped}.")


def _classes(values: Values, name: str) -> Tensor:
    # A copy: torch warns of read-only arrays and refuses negative strides.
    values = np.array(values) if isinstance(values, np.ndarray) else values
    classes = values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    if classes.is_floating_point() or classes.is_complex():
        raise TypeError(f"{name} must hold classes as integers, got {classes.dtype}: pass scores.argmax(1).")
    return classes.long()
