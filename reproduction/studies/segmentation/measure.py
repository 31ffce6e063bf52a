"""How well scores find mistakes and unknown objects, over all pixels of a set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hidden_uncertainty.progress import track

from ...datasets.dense.base import IGNORE
from ...datasets.dense.cityscapes import CLASSES
from ...results import summarise
from ..dense_tools import batches, resized
from ..table_1.paper import SEGMENTATION
from ..table_1.rows import DEFAULT
from .data import TRAIN, UNKNOWN, Plan
from .scores import ALEATORIC, INFORMATION, NOT_UNDER, SOFTMAX, Key, Maps, Methods
from .stream import Confusion, PixelDetection

POINTS = 300  # of a curve in the file
WRONG, WRONG_AP, ZERO = "misclassification auroc", "misclassification ap", "share of pixels with an entropy of 0"
MIOU, ACCURACY, COST = "mean iou", "pixel accuracy", "milliseconds per megapixel"
NETWORK, SAMPLED, MAJORITY = "network", INFORMATION, "majority class"

Cell = tuple[str | None, str, str, str]  # unknown set, method, variant, metric
Curve = tuple[Tensor, Tensor]  # recall and precision


@dataclass
class Found:
    """The numbers of one repetition.

    Args:
        cells: by what they are about.
        curves: precision against recall of finding unknown objects, by method.
        iou: of each class, by network.
        widest: largest distance between the bounds of a streamed measure.
    """

    cells: dict[Cell, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    iou: dict[str, list[float]] = field(default_factory=dict)
    widest: float = 0.0

    def read(self, ood: str | None, key: Key, meter: PixelDetection, names: Mapping[str, str]) -> None:
        """Add the measures of a meter, under these names."""
        measures = {"auroc": meter.auroc, "ap": meter.average_precision, "fpr95": meter.fpr_at_tpr(0.95)}
        for measure, name in names.items():
            value = measures[measure]
            self.cells[ood, *key, name] = float(value)
            self.widest = max(self.widest, value.high - value.low)


def find_mistakes(methods: Methods, images: Tensor, labels: Tensor, majority: int, plan: Plan, found: Found) -> None:
    """Detect misclassified pixels, and measure the accuracy.

    Args:
        methods: fitted.
        images: unseen by the networks, (n, 3, H, W).
        labels: of these, (n, H, W).
        majority: the most frequent class of the training labels.
        plan: with the bins of scores.
        found: numbers are added to it.
    """
    meters: dict[Key, PixelDetection] = {}
    confusions = {name: Confusion(len(CLASSES)) for name in (NETWORK, SAMPLED, MAJORITY)}
    entropies: dict[Key, Tensor] = {}
    pixels = (labels != IGNORE).sum()
    for some, true in track(batches(images, labels), f"scoring {TRAIN}"):
        maps, valid = methods(some), true != IGNORE
        size = (true.shape[1], true.shape[2])
        for key, scores in maps.scores.items():
            wrong = maps.predicted_by(key[0]) != true
            meters.setdefault(key, PixelDetection(plan.bits)).update(resized(scores, size), wrong, valid=valid)
        for key in ((SOFTMAX, DEFAULT), (ALEATORIC, DEFAULT), (ALEATORIC, NOT_UNDER)):
            entropies[key] = entropies.get(key, 0) + ((maps.scores[key] == 0) & valid).sum()
        predictions = (maps.prediction, maps.sampled, torch.full_like(maps.prediction, majority))
        for confusion, prediction in zip(confusions.values(), predictions, strict=True):
            confusion.update(prediction=prediction, label=true)
    for key, meter in meters.items():
        found.read(None, key, meter, {"auroc": WRONG, "ap": WRONG_AP})
    for key, count in entropies.items():
        found.cells[None, *key, ZERO] = float(count / pixels)
    for name, confusion in confusions.items():
        found.cells[None, name, DEFAULT, MIOU] = confusion.mean_iou
        found.cells[None, name, DEFAULT, ACCURACY] = confusion.accuracy
        found.iou[name] = [round(value, 4) for value in confusion.iou.nan_to_num(0.0).tolist()]


def find_objects(methods: Methods, images: Tensor, masks: Tensor, variant: str, plan: Plan, found: Found) -> None:
    """Detect pixels of unknown objects; scores are resized to the masks bilinearly.

    Args:
        methods: fitted.
        images: inputs of the networks, (n, 3, H, W).
        masks: 0 is known, 1 an object, 255 ignored; of any size.
        variant: of the images; variants of the scores are measured for the default only.
        plan: with the bins of scores.
        found: numbers are added to it.
    """
    meters: dict[Key, PixelDetection] = {}
    size = (masks.shape[1], masks.shape[2])
    label = f"scoring {UNKNOWN}" + f", {variant}" * (variant != DEFAULT)
    for some, mask in track(batches(images, masks), label):
        for (method, reading), scores in methods(some).scores.items():
            if variant != DEFAULT and reading != DEFAULT:
                continue
            key = method, reading if variant == DEFAULT else variant
            meter = meters.setdefault(key, PixelDetection(plan.bits))
            meter.update(resized(scores, size), mask == 1, valid=mask != IGNORE)
    for key, meter in meters.items():
        found.read(UNKNOWN, key, meter, {"auroc": "auroc", "ap": "ap", "fpr95": "fpr95"})
        if key[1] == DEFAULT:
            recall, precision = meter.precision_recall()
            found.curves[key[0]] = recall.cpu(), precision.cpu()


def build_rows(founds: list[Found]) -> list[dict[str, Any]]:
    """Rows over repetitions, with the paper's numbers."""
    rows = []
    for cell in founds[0].cells:
        ood, method, variant, metric = cell
        about = {"train": TRAIN, "ood": ood, "method": method, "metric": metric, "variant": variant}
        row = summarise([found.cells[cell] for found in founds], **about)
        rows.append({**row, "paper_mean": SEGMENTATION.get((method, metric)), "paper_std": None})
    return rows


def thin(curve: Curve, points: int = POINTS) -> dict[str, list[float]]:
    """A curve for the result file, at about this many evenly spaced recalls.

    Example:
        >>> thin((torch.arange(9) / 8, torch.ones(9)), points=3)
        {'recall': [0.0, 0.5, 1.0], 'precision': [1.0, 1.0, 1.0]}
    """
    recall, precision = curve
    steps = torch.linspace(0, 1, points, dtype=recall.dtype)
    keep = torch.searchsorted(recall, steps).clamp(max=len(recall) - 1).unique()
    return {
        name: [round(value, 5) for value in values[keep].tolist()]
        for name, values in (("recall", recall), ("precision", precision))
    }


def mistakes(maps: Maps, labels: Tensor) -> Tensor:
    """Misclassified pixels: 1, others 0, and 255 where there is no label."""
    return torch.where(labels == IGNORE, IGNORE, (maps.prediction != labels).long())
