"""Images with all that is said about their uncertainty, by the library and by the network itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..calibration import Calibration
from ..datasets import Split
from ..estimator import LatentDensity
from ..uncertainty import Uncertainty

ENTROPY = "softmax entropy"  # the network's own word, to compare with


@dataclass(frozen=True, eq=False)
class Scored:
    """Images, and how uncertain each of them is.

    Args:
        data: images and labels.
        uncertainty: what the detector says.
        scores: the epistemic uncertainty of each layer by its name, and the softmax entropy, (n,) each.
        p_value: of each score, (n,).
    """

    data: Split
    uncertainty: Uncertainty
    scores: Mapping[str, Tensor]
    p_value: Mapping[str, Tensor]

    @property
    def correct(self) -> Tensor:
        """Whether the network was right, (n,)."""
        return self.uncertainty.prediction == self.data.labels


class Scorer:
    """Scores images by every layer and by the network's own softmax, all calibrated on the same images.

    Args:
        detector: fitted.
        calibration: images that the network has not seen.
    """

    def __init__(self, detector: LatentDensity, calibration: Split) -> None:
        self.detector = detector
        _, scores = self._read(calibration)
        self.calibration = {name: Calibration().fit(values) for name, values in scores.items()}

    def __call__(self, data: Split) -> Scored:
        """Score images."""
        uncertainty, scores = self._read(data)
        p_value = {name: self.calibration[name].p_value(values) for name, values in scores.items()}
        return Scored(data, uncertainty, scores, p_value)

    def _read(self, data: Split) -> tuple[Uncertainty, dict[str, Tensor]]:
        uncertainty = self.detector.predict(data.batches())
        with torch.no_grad():
            # In float64: in float32 the entropies of confident predictions are all the same zero.
            log_p = self.detector.model(data.images).double().log_softmax(1)  # (n, classes)
        scores = {name: layer.epistemic for name, layer in uncertainty.layers.items()}
        return uncertainty, {**scores, ENTROPY: -(log_p.exp() * log_p).sum(1)}


def pool(parts: Sequence[Scored]) -> dict[str, tuple[Tensor, Tensor]]:
    """All inputs together: how uncertain each is, by each kind of uncertainty, and whether the network was right.

    Aleatoric uncertainty goes by its logarithm, which ranks inputs whose entropy underflows.
    """
    u = Uncertainty.cat([part.uncertainty for part in parts])
    assert u.log_aleatoric is not None
    kinds = {
        "epistemic": u.epistemic,
        "aleatoric": u.log_aleatoric,
        ENTROPY: torch.cat([part.scores[ENTROPY] for part in parts]),
    }
    correct = torch.cat([part.correct for part in parts])
    return {name: (values, correct) for name, values in kinds.items()}


def most_surprising(scored: Scored, count: int) -> list[int]:
    """Positions of the inputs of highest epistemic uncertainty, highest first."""
    return scored.uncertainty.epistemic.argsort(descending=True, stable=True)[:count].tolist()
