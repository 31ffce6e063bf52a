"""What one trained network and its detectors are worth, and what they cost."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hidden_uncertainty import Detector
from hidden_uncertainty.metrics import auroc

from ...rivals import Known, Rival
from ...rivals.base import BATCH, seconds
from ..layer_depth.data import Shift
from ..one_score.near import follow


def measure(
    rival: Rival,
    known: Known,
    test: tuple[Tensor, Tensor],
    unknown: Mapping[str, Tensor],
    changes: Sequence[Shift],
    step: int,
) -> dict[str, Any]:
    """Accuracy, and per detector: the AUROC of unknown sets and of mistakes, how it follows accuracy, and its cost.

    Args:
        rival: trained.
        known: what detectors are fitted to.
        test: images and labels.
        unknown: images by name.
        changes: each in steps.
        step: detectors judge every `step`-th test image, and of unknown sets as many.
    """
    some, labels = test[0][::step], test[1][::step]
    away = {name: images[:: max(1, len(images) // len(some))][: len(some)] for name, images in unknown.items()}
    detectors: dict[str, Detector] = {}
    scores: dict[str, dict[str, Any]] = {}
    fitting = {}
    for name, detector in rival.detectors():
        start = seconds(some)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of mixtures that have not converged
            detector.fit(known.batches(), calibration=known.unseen())
        detectors[name], fitting[name] = detector, seconds(some) - start
    forward = _seconds(lambda x: rival(x), some)
    for name, detector in detectors.items():
        start = seconds(some)
        u = detector.predict(some.split(BATCH))
        took = seconds(some) - start
        areas = {
            ood: auroc(negative=u.epistemic, positive=detector.predict(images.split(BATCH)).epistemic)
            for ood, images in away.items()
        }
        right = u.prediction == labels.cpu()
        mistakes = (
            auroc(negative=u.epistemic[right], positive=u.epistemic[~right]) if 0 < right.sum() < len(right) else None
        )
        scores[name] = {
            "auroc": {ood: round(area, 5) for ood, area in areas.items()},
            "mistakes": None if mistakes is None else round(mistakes, 5),
            "fit seconds": round(fitting[name], 3),
            "passes": round(took / forward, 3),
        }

    def read(x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        found = {name: detector.predict(x.split(BATCH)) for name, detector in detectors.items()}
        return {name: u.epistemic for name, u in found.items()}, next(iter(found.values())).prediction

    return {
        "accuracy": accuracy(rival, *test),
        "held accuracy": accuracy(rival, known.unseen_x, known.unseen_y),
        "scores": scores,
        "near": follow(read, some, labels, changes),
    }


@torch.no_grad()
def accuracy(rival: Rival, x: Tensor, y: Tensor) -> float:
    """The share of right predictions."""
    found = torch.cat([rival(part).argmax(1) for part in x.split(BATCH)])
    return round(float((found == y).double().mean()), 5)


@torch.no_grad()
def _seconds(call: Any, x: Tensor) -> float:
    """Of the processor, of the network alone; the faster of three."""
    found = []
    for _ in range(3):
        start = seconds(x)
        for part in x.split(BATCH):
            call(part)
        found.append(seconds(x) - start)
    return max(min(found), 1e-9)
