"""How well the scores of the segmentation study find mistakes and unknown objects, over all pixels of a set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..datasets.dense.base import IGNORE
from ..datasets.dense.cityscapes import CLASSES
from ..metrics import Confusion, PixelDetection
from ..progress import track
from ._dense_tools import batches, resized
from ._paper import SEGMENTATION
from ._segmentation_data import TRAIN, UNKNOWN, Plan
from ._segmentation_scores import ALEATORIC, INFORMATION, NOT_UNDER, SOFTMAX, Key, Maps, Methods
from .results import summarise
from .table_1 import DEFAULT

POINTS = 300  # of a curve in the file
WRONG, WRONG_AP, ZERO = "misclassification auroc", "misclassification ap", "share of pixels with an entropy of 0"
MIOU, ACCURACY, COST = "mean iou", "pixel accuracy", "milliseconds per megapixel"
NETWORK, SAMPLED, MAJORITY = "network", INFORMATION, "majority class"

Cell = tuple[str | None, str, str, str]  # what is unknown, method, variant, metric
Curve = tuple[Tensor, Tensor]  # recall and precision


@dataclass
class Found:
    """Numbers of one repetition.

    Args:
        cells: by what they are about.
        curves: precision against recall of finding unknown objects, by method.
        iou: of each class, by what predicts it.
        widest: the farthest that bounds of a streamed measure lie apart.
    """

    cells: dict[Cell, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    iou: dict[str, list[float]] = field(default_factory=dict)
    widest: float = 0.0

    def read(self, ood: str | None, key: Key, meter: PixelDetection, names: Mapping[str, str]) -> None:
        """Take what a meter says, under these names."""
        measures = {"auroc": meter.auroc, "ap": meter.average_precision, "fpr95": meter.fpr_at_tpr(0.95)}
        for measure, name in names.items():
            value = measures[measure]
            self.cells[ood, *key, name] = float(value)
            self.widest = max(self.widest, value.high - value.low)


def find_mistakes(
    methods: Methods, images: Tensor, labels: Tensor, majority: int, plan: Plan, found: Found, progress: bool | None
) -> None:
    """Tell pixels that are misclassified from those that are right; and how many are.

    Args:
        methods: fitted.
        images: unseen by the networks, (n, 3, H, W).
        labels: of these, (n, H, W).
        majority: the class that is most frequent in training labels.
        plan: how fine scores are counted.
        found: where numbers go.
        progress: show a bar; None shows it on a terminal.
    """
    meters: dict[Key, PixelDetection] = {}
    confusions = {name: Confusion(len(CLASSES)) for name in (NETWORK, SAMPLED, MAJORITY)}
    entropies: dict[Key, Tensor] = {}
    pixels = (labels != IGNORE).sum()
    for some, true in track(batches(images, labels), f"scoring {TRAIN}", enabled=progress):
        maps, valid = methods(some), true != IGNORE
        size = (true.shape[1], true.shape[2])
        for key, scores in maps.scores.items():
            wrong = maps.predicted_by(key[0]) != true
            meters.setdefault(key, PixelDetection(plan.bits)).update(resized(scores, size), wrong, valid)
        for key in ((SOFTMAX, DEFAULT), (ALEATORIC, DEFAULT), (ALEATORIC, NOT_UNDER)):
            entropies[key] = entropies.get(key, 0) + ((maps.scores[key] == 0) & valid).sum()
        said = (maps.prediction, maps.sampled, torch.full_like(maps.prediction, majority))
        for confusion, prediction in zip(confusions.values(), said, strict=True):
            confusion.update(prediction, true)
    for key, meter in meters.items():
        found.read(None, key, meter, {"auroc": WRONG, "ap": WRONG_AP})
    for key, count in entropies.items():
        found.cells[None, *key, ZERO] = float(count / pixels)
    for name, confusion in confusions.items():
        found.cells[None, name, DEFAULT, MIOU] = confusion.mean_iou
        found.cells[None, name, DEFAULT, ACCURACY] = confusion.accuracy
        found.iou[name] = [round(value, 4) for value in confusion.iou.nan_to_num(0.0).tolist()]


def find_objects(
    methods: Methods, images: Tensor, masks: Tensor, variant: str, plan: Plan, found: Found, progress: bool | None
) -> None:
    """Tell pixels of unknown objects from all others; scores are brought to the masks' size bilinearly.

    Args:
        methods: fitted.
        images: as the networks see them, (n, 3, H, W).
        masks: 0 is known, 1 an object, 255 does not count; of any size.
        variant: what is different about the images; other readings of the scores are for the default alone.
        plan: how fine scores are counted.
        found: where numbers go.
        progress: show a bar; None shows it on a terminal.
    """
    meters: dict[Key, PixelDetection] = {}
    size = (masks.shape[1], masks.shape[2])
    label = f"scoring {UNKNOWN}" + f", {variant}" * (variant != DEFAULT)
    for some, mask in track(batches(images, masks), label, enabled=progress):
        for (method, reading), scores in methods(some).scores.items():
            if variant != DEFAULT and reading != DEFAULT:
                continue
            key = method, reading if variant == DEFAULT else variant
            meter = meters.setdefault(key, PixelDetection(plan.bits))
            meter.update(resized(scores, size), mask == 1, mask != IGNORE)
    for key, meter in meters.items():
        found.read(UNKNOWN, key, meter, {"auroc": "auroc", "ap": "ap", "fpr95": "fpr95"})
        if key[1] == DEFAULT:
            recall, precision = meter.precision_recall()
            found.curves[key[0]] = recall.cpu(), precision.cpu()


def build_rows(founds: list[Found]) -> list[dict[str, Any]]:
    """Rows over repetitions, the paper's numbers beside ours."""
    rows = []
    for cell in founds[0].cells:
        ood, method, variant, metric = cell
        about = {"train": TRAIN, "ood": ood, "method": method, "metric": metric, "variant": variant}
        row = summarise([found.cells[cell] for found in founds], **about)
        rows.append({**row, "paper_mean": SEGMENTATION.get((method, metric)), "paper_std": None})
    return rows


def thin(curve: Curve, points: int = POINTS) -> dict[str, list[float]]:
    """A curve for the file, at about so many recalls, evenly spaced.

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
    """Which pixels are misclassified: 1, or 0, or 255 where nobody knows."""
    return torch.where(labels == IGNORE, IGNORE, (maps.prediction != labels).long())
