"""Near the data: does the score rise as accuracy falls, when images are changed step by step?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from hidden_uncertainty.metrics import auroc, rank_correlation, raulc

from ..layer_depth.data import SHIFTS, Shift

IMAGES = 2000  # that are changed: every step is a pass of all methods
CHANGES: tuple[Shift, ...] = tuple(SHIFTS.values())  # the paper's: rotations, and noise
Read = Callable[[Tensor], tuple[Mapping[str, Tensor], Tensor]]  # from inputs: scores by method, and predictions


def follow(read: Read, known: Tensor, labels: Tensor, changes: Sequence[Shift] = CHANGES) -> dict[str, Any]:
    """Accuracy and AUROC at every step of each change, and how far each method's score follows accuracy.

    Two numbers say that: the rank correlation of the mean score with accuracy over the steps, -1 at best, and rAULC of
    all steps together, which is higher where right predictions have the lower scores, 1 at best.

    Args:
        read: scores inputs.
        known: images (n, C, H, W) in [0, 1].
        labels: of these.
        changes: each in steps, of which the first changes nothing.
    """
    found: dict[str, Any] = {}
    for change in changes:
        steps = [read(change(known, amount)) for amount in change.amounts]
        right = torch.stack([prediction.cpu() == labels.cpu() for _, prediction in steps])
        accuracy = [round(float(each.double().mean()), 5) for each in right]
        areas, ranks, lifts = {}, {}, {}
        for method in steps[0][0]:
            scores = [scores[method] for scores, _ in steps]
            areas[method] = [round(auroc(negative=scores[0], positive=each), 5) for each in scores[1:]]
            means = [float(each.double().mean()) for each in scores]
            if min(len(set(means)), len(set(accuracy))) > 1:
                ranks[method] = round(rank_correlation(means, accuracy), 5)
            if right.any() and not right.all():
                lifts[method] = round(raulc(torch.stack(scores), right), 5)
        found[change.kind] = {
            "steps": list(change.amounts),
            "accuracy": accuracy,
            "auroc": areas,
            "rank correlation": ranks,
            "raulc": lifts,
        }
    return found


def mean_curves(curves: Sequence[Sequence[float]]) -> list[float]:
    """The mean of curves, point by point.

    Example:
        >>> mean_curves([[0.0, 1.0], [1.0, 2.0]])
        [0.5, 1.5]
    """
    return [fmean(values) for values in zip(*curves, strict=True)]
