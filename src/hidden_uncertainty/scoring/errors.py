"""How far off predictions are, in which units; and what is known where the network gave no usable numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..extract import Reading
from ..model.tasks import Condition, match_labels
from ..notes import warn
from ..uncertainty import LayerScores

Spread = Literal["variance", "expected_error"]  # what errors and intervals are in units of


def has_errors(reading: Reading) -> bool:
    """Whether numbers are predicted, and their labels are known."""
    value, label = reading.prediction.value, reading.label
    return value.is_floating_point() and label is not None and label.numel() == value.numel()


def spread_of(reading: Reading, scores: LayerScores, condition: Condition) -> Spread | None:
    """What tells best how far off a prediction is: the network itself, then a density that was given labels.

    A density that was given predictions says nothing about errors, but has a unit for each of several outputs.
    """
    if reading.prediction.variance is not None:
        return "variance"
    several = scores.expected_error is not None and scores.expected_error.dim() == 2
    return "expected_error" if scores.expected_error is not None and (several or condition == "label") else None


def unit_of(spread: Spread | None, reading: Reading, scores: LayerScores) -> Tensor | None:
    """What errors are in units of, above zero; None are the output's own."""
    variance = reading.prediction.variance
    unit = scores.expected_error if spread == "expected_error" else None
    if spread == "variance" and variance is not None:
        unit = variance.sqrt()
    return None if unit is None else unit.clamp(min=torch.finfo(unit.dtype).tiny)


def error_of(reading: Reading, unit: Tensor | None) -> Tensor:
    """How far off predictions are, in units; the largest of several outputs. NaN where the label is not finite."""
    value = reading.prediction.value
    label, limits = match_labels(reading.label, value), torch.finfo(value.dtype)
    error = (label - value).abs()
    if unit is not None:
        error = error / unit.to(error)
    error = torch.where(label.isfinite(), error.clamp(max=limits.max), math.nan)
    return error.amax(1) if error.dim() == 2 else error


def labels_of(reading: Reading) -> Tensor | None:
    """The classes (n,) that whole inputs have, where each is known, and is one that the network can predict."""
    (value, classes, *_), label = reading.prediction, reading.label
    if value.is_floating_point() or value.dim() != 1 or label is None or label.numel() != value.numel():
        return None
    label = label.reshape(value.shape).to(value.device)
    whole = label.long()
    known = (whole == label) & (whole >= 0) & (whole < (classes or 0))
    return whole if bool(known.all()) else None


def mistakes_of(reading: Reading, label: Tensor | None) -> Tensor | None:
    """How far off predictions for whole inputs are, in the output's unit; for classes, whether they are wrong."""
    if label is not None:
        return label != reading.prediction.value
    return error_of(reading, None) if has_errors(reading) and reading.prediction.value.dim() != 3 else None


def filled(values: Tensor, where: Tensor | None, value: float) -> Tensor:
    """The values, with another where a mask of inputs or pixels says so."""
    if where is None:
        return values
    mask = where.to(values.device)
    return values.masked_fill(mask.reshape(mask.shape + (1,) * (values.dim() - mask.dim())), value)


def without(scores: LayerScores, where: Tensor) -> LayerScores:
    """The scores, with a surprise of inf and nothing else known where a mask says so."""
    known = {item.name: getattr(scores, item.name) for item in fields(scores)}
    none: dict[str, Any] = {
        name: filled(value, where, math.nan) for name, value in known.items() if isinstance(value, Tensor)
    }
    return replace(scores, **{**none, "epistemic": filled(scores.epistemic, where, math.inf)})


def refuse_unusable(reading: Reading) -> None:
    """Raise where the network gave NaN or infinity for something to calibrate with."""
    wrong = reading.unusable
    if wrong is not None and bool(wrong.any()):
        raise ValueError(f"{_unusable(int(wrong.sum()), reading)} to calibrate with: {_HELP}")


def counted(readings: Iterable[Reading]) -> Iterator[Reading]:
    """The readings as they come, and one warning after all of them if the network gave NaN or infinity for some."""
    wrong = total = 0
    for reading in readings:
        wrong += 0 if reading.unusable is None else int(reading.unusable.sum())
        total += _rows(reading)
        yield reading
    if wrong:
        warn(f"{_unusable(wrong, reading, total)}, which counts as surprising: {_HELP}")


_HELP = "look for it in the inputs, or for an overflow in the network's precision."


def _rows(reading: Reading) -> int:
    value = reading.prediction.value
    return value.numel() if value.dim() == 3 else len(value)


def _unusable(wrong: int, reading: Reading, total: int | None = None) -> str:
    rows = "pixels" if reading.prediction.value.dim() == 3 else "inputs"
    return f"the network gave NaN or infinity for {wrong:,} of {_rows(reading) if total is None else total:,} {rows}"
