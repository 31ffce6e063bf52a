"""Calibrate what was fitted: scores, and errors where numbers are predicted, of data that nothing was fitted to."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ._condition import as_numbers
from ._reading import Reading
from .calibration import Calibration
from .head import Head


def calibrate(head: Head, unseen: Iterable[Reading]) -> None:
    """Give each layer its calibration, and its conformal errors where labels of numbers are known.

    Args:
        head: what was fitted.
        unseen: data that it was not fitted to, some at a time.
    """
    surprise: dict[str, list[Tensor]] = {name: [] for name in head.names}
    errors: dict[str, list[Tensor]] = {name: [] for name in head.names}
    for reading in unseen:
        for name, scores in head.score(reading).items():
            surprise[name].append(reading.of_inputs(scores.epistemic))
            if scores.expected_error is not None and reading.label is not None:
                prediction = reading.prediction.value.to(scores.epistemic.device)
                label = as_numbers(reading.label, prediction)
                errors[name].append(reading.of_inputs(_in_units(label, prediction, scores.expected_error)))
    for name, part in head.layers.items():
        known = torch.cat(surprise[name]) if surprise[name] else torch.zeros(0, device="cpu")
        if len(known) == 0:
            raise ValueError(
                "there is nothing to calibrate with: no input came or was held out, or of none does any pixel count. "
                "Give more, or check the labels of pixels."
            )
        calibration, conformal = Calibration().fit(known), None
        if errors[name]:
            found = torch.cat(errors[name])
            wrong = int((~found.isfinite()).sum())
            if wrong:
                raise ValueError(
                    f"{wrong:,} of {len(found):,} labels are NaN or infinite: leave those inputs out, or find out why."
                )
            conformal = Calibration().fit(found)
        part.calibration, part.conformal = calibration, conformal


def _in_units(label: Tensor, prediction: Tensor, expected: Tensor) -> Tensor:
    """The error in units of the expected one, the largest of several outputs."""
    error = (label - prediction).abs() / expected
    several = expected.dim() == 2  # (n, q)
    return error.amax(1) if several else error
