"""From scores at every step to rows and curves: detection, relation to accuracy, and similarity of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import correlation, fmean, stdev
from typing import Any

import torch

from hidden_uncertainty.metrics import accuracy_rejection, aurc, auroc, rank_correlation, raulc

from ...results import summarise
from ..table_1.rows import DEFAULT
from .data import Shift
from .scores import ENSEMBLE, MC_DROPOUT, SOFTMAX, Found, Scores

PERCENTILES = range(1, 101)
Curves = Mapping[str, Sequence[Sequence[float]]]  # one per repetition, by method


def measure(train: str, shift: Shift, found: Found) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of one set, and its curves with standard deviations.

    Args:
        train: the set.
        shift: its change.
        found: scores of layers, shallowest first, and of the other methods.
    """
    moved = {method: each for method, each in found.items() if method != SOFTMAX}
    areas = {method: [_areas(scores) for scores in each] for method, each in moved.items()}
    network = next(iter(moved))  # any layer: all have the same networks
    accuracies = {
        name: [scores.right.double().mean(1).tolist() for scores in moved[method]]
        for name, method in (("network", network), (MC_DROPOUT, MC_DROPOUT), (ENSEMBLE, ENSEMBLE))
    }
    doubts = {method: [scores.epistemic.double().mean(1).tolist() for scores in each] for method, each in moved.items()}
    kept = {method: [_rejection(scores) for scores in each] for method, each in found.items()}

    rows: list[dict[str, Any]] = []

    def add(ood: str | None, method: str, metric: str, values: Sequence[float | None]) -> None:
        defined = [value for value in values if value is not None]
        if defined:
            row = summarise(defined, train=train, ood=ood, method=method, metric=metric)
            rows.append({**row, "paper_mean": None, "paper_std": None, "variant": DEFAULT})

    for metric, curves in (("accuracy", accuracies), ("auroc", areas), ("mean epistemic", doubts)):
        for method, lines in curves.items():
            for step, name in enumerate(shift.names):
                if step or metric != "auroc":  # of a set against itself it is 0.5
                    add(name, method, metric, [line[step] for line in lines])
    for method, each in moved.items():
        own = accuracies.get(method, accuracies["network"])
        add(shift.kind, method, "mean auroc over steps", [fmean(curve[1:]) for curve in areas[method]])
        follows = [_order(doubt, right) for doubt, right in zip(doubts[method], own, strict=True)]
        add(shift.kind, method, "rank correlation of uncertainty with accuracy", follows)
        add(shift.kind, method, "raulc", [_raulc(scores) for scores in each])
        for other in (MC_DROPOUT, ENSEMBLE):
            if method != other:
                mean, later = _mean(areas[other])[1:], [curve[1:] for curve in areas[method]]
                alike = [_correlation(curve, mean) for curve in later]
                add(shift.kind, method, f"correlation of curve with {other}", alike)
                add(shift.kind, method, f"distance of curve to {other}", [_distance(curve, mean) for curve in later])
    for method, each in found.items():
        add(None, method, "accuracy of the most certain half", [curve[49] for curve in kept[method]])
        under = [1 - aurc(scores.aleatoric, scores.right[0]) for scores in each]
        add(None, method, "area under accuracy-rejection", under)
        if method != SOFTMAX:
            # Layers are compared with the softmax of their own network, others with the mean of all.
            paired = method not in (MC_DROPOUT, ENSEMBLE)
            far = [
                _distance(curve, kept[SOFTMAX][i] if paired else _mean(kept[SOFTMAX]))
                for i, curve in enumerate(kept[method])
            ]
            add(None, method, "distance of rejection curve to softmax", far)
    drawn = {
        "kind": shift.kind,
        "steps": list(shift.amounts),
        "accuracy": _spread(accuracies),
        "auroc": _spread(areas),
        "percentiles": list(PERCENTILES),
        "rejection": _spread(kept),
    }
    return rows, drawn


def _areas(scores: Scores) -> list[float]:
    """AUROC between the unchanged images and each step."""
    return [auroc(negative=scores.epistemic[0], positive=step) for step in scores.epistemic]


def _rejection(scores: Scores) -> list[float]:
    """Accuracy of the 1 %, 2 %, … of images with the lowest aleatoric uncertainty."""
    _, accuracy = accuracy_rejection(scores.aleatoric, scores.right[0])
    last = torch.tensor([-(-share * len(accuracy) // 100) - 1 for share in PERCENTILES], device=accuracy.device)
    return accuracy[last].tolist()


def _raulc(scores: Scores) -> float | None:
    """rAULC of all steps together; None if all or no predictions are right."""
    mixed = bool(scores.right.any()) and not bool(scores.right.all())
    return raulc(scores.epistemic, scores.right) if mixed else None


def _order(doubt: Sequence[float], right: Sequence[float]) -> float | None:
    return rank_correlation(doubt, right) if len(set(doubt)) > 1 and len(set(right)) > 1 else None


def _correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    return correlation(one, other) if len(set(one)) > 1 and len(set(other)) > 1 else None


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(one, other, strict=True))


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(values) for values in zip(*curves, strict=True)]


def _spread(curves: Curves) -> dict[str, dict[str, list[float]]]:
    """Mean and standard deviation of every point of every curve."""
    found = {}
    for name, each in curves.items():
        deviations = [stdev(values) if len(values) > 1 else 0.0 for values in zip(*each, strict=True)]
        found[name] = {
            "mean": [round(value, 5) for value in _mean(each)],
            "std": [round(value, 5) for value in deviations],
        }
    return found
