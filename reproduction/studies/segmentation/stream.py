"""Metrics of any number of pixels, counted in a stream in constant memory: detection, and confusion of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, distributed

from hidden_uncertainty.metrics.detection import Values, by_name, positives_to_catch

_CHUNK = 1 << 20  # pixels counted at once: an update then needs about 40 MB besides its input
_SIZE = (1 << 63) - 1  # all bits of a float64 but its sign
_FINE = (1023 - 128) << 52, (1023 + 64) << 52  # sizes in narrow bins: the bits of 2**-128 and 2**64


class Bounded(float):
    """A number with the lowest and the highest value that the exact one can have.

    Example:
        >>> area = Bounded(0.91, low=0.909, high=0.911)
        >>> round(100 * area, 1), area.low, area.high
        (91.0, 0.909, 0.911)
    """

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> Self:
        """A float that also knows its bounds."""
        number = super().__new__(cls, value)
        number.low, number.high = low, high
        return number

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]  # for copies
        return float(self), self.low, self.high


class PixelDetection:
    r"""AUROC, average precision, FPR at a TPR and the precision-recall curve of a stream of pixels.

    Pixels are counted in bins of scores: those that share the sign, the exponent and the leading bits of the mantissa.
    A bin is `2**(9 - bits)` as wide as the scores in it are large (1/8192 by default) if their size lies between 3e-39
    and 1.8e19, and 32 times as wide beyond. There are :math:`2^{bits}` bins of 32 bytes each (128 MiB by default).

    Metrics are those of the functions of the same names, with the scores of a bin taken in random order; whatever the
    order is, the exact value lies between `.low` and `.high`, up to rounding. A bin of equal scores is known to be a
    tie and counts as one, so the metrics are exact where there are few distinct scores.

    Args:
        bits: from 10 to 28; one more halves the bins and doubles the memory.
        device: where the counts live; by default that of the first scores. On a GPU no update waits for it.

    Example:
        >>> meter = PixelDetection()
        >>> for scores, mask in [([[0.1, 0.2]], [[0, 0]]), ([[0.3, 0.3, 0.9]], [[0, 1, 1]])]:
        ...     meter.update(scores, torch.tensor(mask) == 1)
        >>> meter.auroc, meter.auroc.low, meter.fpr_at_tpr(0.95)
        (0.9166666666666666, 0.9166666666666666, 0.3333333333333333)
    """

    def __init__(self, bits: int = 22, *, device: torch.device | str | None = None) -> None:
        if not 10 <= bits <= 28:
            raise ValueError(f"bits must be from 10 to 28, got {bits}.")
        self.bits = bits
        self._state: _State | None = None if device is None else _State.empty(bits, torch.device(device))

    @by_name()
    def update(self, scores: Values, positive: Values, *, valid: Values | None = None) -> None:
        """Count pixels.

        NaN in the scores of a valid pixel is a ValueError: at once on the CPU, when a metric is read on a GPU.

        Args:
            scores: higher when more uncertain, any shape; infinite ones are legal.
            positive: whether a pixel is to be detected, booleans of the same shape.
            valid: whether it counts at all, booleans of the same shape; all do by default.
        """
        values = _readable(scores).detach()
        shape = values.shape
        if self._state is None:
            # Apple's GPUs have no float64.
            device = values.device if values.device.type != "mps" else torch.device("cpu")
            self._state = _State.empty(self.bits, device)
        state = self._state
        device = state.counts.device
        values = values.to(device).flatten()
        found = _booleans(positive, "positive", shape, device)
        counted = None if valid is None else _booleans(valid, "valid", shape, device)

        missing = (values.isnan() if counted is None else values.isnan() & counted).sum()
        if device.type == "cpu":
            _refuse(int(missing))
        state.missing.add_(missing)
        for start in range(0, len(values), _CHUNK):
            part = slice(start, start + _CHUNK)
            self._count(state, values[part], found[part], None if counted is None else counted[part])

    @property
    def auroc(self) -> Bounded:
        """Area under the ROC curve, as `metrics.auroc`."""
        bins = self._bins()
        twice = _dot(bins.negatives, 2 * bins.tp - bins.positives)
        unsure = _dot(bins.negatives * bins.mixed, bins.positives)
        pairs = 2 * int(bins.negatives.sum()) * int(bins.positives.sum())
        return Bounded(twice / pairs, (twice - unsure) / pairs, (twice + unsure) / pairs)

    @property
    def average_precision(self) -> Bounded:
        """Area under the precision-recall curve, as `metrics.average_precision`."""
        bins = self._bins()
        # At worst the first positive of a bin is alone behind all its negatives; at best all are tied before them.
        least = torch.where(bins.mixed, bins.tp - bins.positives + 1, bins.tp)
        fewest = torch.where(bins.mixed, bins.fp - bins.negatives, bins.fp)

        def area(tp: Tensor, fp: Tensor) -> float:
            precision = tp.double() / (tp + fp).clamp(min=1)
            return float((bins.positives * precision).sum() / bins.positives.sum())

        middle = area((least + bins.tp) / 2, (fewest + bins.fp) / 2)
        return Bounded(middle, low=area(least, bins.fp), high=area(bins.tp, fewest))

    def fpr_at_tpr(self, tpr: float = 0.95) -> Bounded:
        """Share of negatives caught where `tpr` of the positives are, as `metrics.fpr_at_tpr`."""
        bins = self._bins()
        caught = positives_to_catch(int(bins.tp[-1]), tpr)
        at = int(torch.searchsorted(bins.tp, caught))
        inside = int(bins.negatives[at]) if bins.mixed[at] else 0
        total, above, positives = int(bins.fp[-1]), int(bins.fp[at]) - inside, int(bins.positives[at])
        share = (caught - int(bins.tp[at]) + positives) / (positives + 1)
        return Bounded((above + share * inside) / total, low=above / total, high=(above + inside) / total)

    def precision_recall(self) -> tuple[Tensor, Tensor]:
        """Recall and precision as the threshold falls, one point per bin that holds pixels; float64 vectors.

        The points are exact; those between scores of a bin are left out. The last has recall 1, and the share of
        positives as precision.
        """
        bins = self._bins()
        return bins.tp.double() / bins.tp[-1], bins.tp.double() / (bins.tp + bins.fp)

    def merge(self, other: PixelDetection) -> Self:
        """Add the pixels that another meter of the same `bits`, on any device, has counted; it does not change."""
        if other.bits != self.bits:
            raise ValueError(f"meters of {self.bits} and {other.bits} bits cannot be merged: use the same bits.")
        if other._state is not None:
            if self._state is None:
                self._state = _State.empty(self.bits, other._state.counts.device)
            mine, theirs = self._state, _State(*(part.to(self._state.counts.device) for part in other._state))
            mine.counts.add_(theirs.counts)
            torch.minimum(mine.lowest, theirs.lowest, out=mine.lowest)
            torch.maximum(mine.highest, theirs.highest, out=mine.highest)
            mine.missing.add_(theirs.missing)
        return self

    def all_reduce(self) -> Self:
        """Merge the meters of all processes of `torch.distributed`; every one then holds the pixels of all."""
        if self._state is None:
            raise RuntimeError("this process has counted nothing: build its meter with PixelDetection(device=...).")
        distributed.all_reduce(self._state.counts)
        distributed.all_reduce(self._state.missing)
        distributed.all_reduce(self._state.lowest, distributed.ReduceOp.MIN)
        distributed.all_reduce(self._state.highest, distributed.ReduceOp.MAX)
        return self

    def _count(self, state: _State, scores: Tensor, positive: Tensor, valid: Tensor | None) -> None:
        exact = scores.double() + 0.0  # adding 0 makes -0 and 0 equal
        # The bits of a float, read as an integer, order the floats of one sign: the exponent, then the mantissa.
        size = exact.view(torch.int64) & _SIZE
        shift = 61 - self.bits  # leaves bits - 9 of the mantissa: 192 narrow exponents and 1,856 / 32 wide ones fit
        inside = (size.clamp(*_FINE) - _FINE[0]) >> shift
        beyond = (size.clamp(max=_FINE[0]) >> (shift + 5)) + ((size - _FINE[1]).clamp_(min=0) >> (shift + 5))
        keys = inside.add_(beyond)
        bins = torch.where(exact < 0, ~keys, keys).add_(1 << (self.bits - 1))  # (n,)
        if valid is not None:
            bins = torch.where(valid, bins, 1 << self.bits)
        slots = bins + positive * state.counts.shape[1]
        state.counts.view(-1).index_add_(0, slots, torch.ones_like(slots[:1]).expand_as(slots))
        state.lowest.scatter_reduce_(0, bins, exact, "amin")
        state.highest.scatter_reduce_(0, bins, exact, "amax")

    def _bins(self) -> _Bins:
        state = self._state
        if state is not None:
            _refuse(int(state.missing))
        count = [0, 0] if state is None else state.counts[:, :-1].sum(1).tolist()
        if state is None or not all(count):
            raise ValueError(f"both kinds of pixels are needed, got {count[0]:,} negatives and {count[1]:,} positives.")
        filled = state.counts[:, :-1].sum(0).nonzero().flatten().flip(0)  # highest scores first
        negatives, positives = state.counts[:, filled]
        mixed = state.lowest[filled] != state.highest[filled]
        return _Bins(negatives, positives, negatives.cumsum(0), positives.cumsum(0), mixed)


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
        """Add the pixels that another matrix of as many classes, on any device, has counted; it does not change."""
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


class _State(NamedTuple):
    """What was counted; the last column takes the pixels that do not count."""

    counts: Tensor  # (2, bins + 1), negatives and positives
    lowest: Tensor  # (bins + 1,), scores
    highest: Tensor  # (bins + 1,)
    missing: Tensor  # (), how many were NaN

    @classmethod
    def empty(cls, bits: int, device: torch.device) -> Self:
        size = (1 << bits) + 1
        with torch.inference_mode(False):  # otherwise no update outside that mode could change them
            lowest = torch.full((size,), torch.inf, dtype=torch.float64, device=device)
            counts = torch.zeros(2, size, dtype=torch.int64, device=device)
            return cls(counts, lowest, -lowest, torch.zeros((), dtype=torch.int64, device=device))


class _Bins(NamedTuple):
    """The bins that hold pixels, highest scores first."""

    negatives: Tensor
    positives: Tensor
    fp: Tensor  # negatives in a bin and in all before
    tp: Tensor
    mixed: Tensor  # whether there is more than one score


def _dot(a: Tensor, b: Tensor) -> int:
    """Σ a b of counts, exactly: for ten billion pixels it has more than 64 bits."""
    return (int((a * (b >> 20)).sum()) << 20) + int((a * (b & 0xFFFFF)).sum())


def _readable(values: Values) -> Tensor:
    # A copy: torch warns of read-only arrays and refuses negative strides, and would take Python's floats as float32.
    return values if isinstance(values, Tensor) else torch.as_tensor(np.array(values), device="cpu")


def _booleans(values: Values, name: str, shape: torch.Size, device: torch.device) -> Tensor:
    answers = _readable(values)
    if answers.dtype != torch.bool:
        raise TypeError(f"{name} must be booleans, got {answers.dtype}: pass mask == 1, for example.")
    if answers.shape != shape:
        raise ValueError(f"{name} must have the shape of scores {tuple(shape)}, got {tuple(answers.shape)}.")
    return answers.to(device).flatten()


def _refuse(missing: int) -> None:
    if missing:
        raise ValueError(f"scores hold {missing} NaN, which cannot be ranked: leave those pixels out with valid.")


def _classes(values: Values, name: str) -> Tensor:
    classes = _readable(values)
    if classes.is_floating_point() or classes.is_complex():
        raise TypeError(f"{name} must hold classes as integers, got {classes.dtype}: pass scores.argmax(1).")
    return classes.long()
