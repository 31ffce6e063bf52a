"""Train, fit and measure: everything that the demonstration shows, as numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import metrics
from ..comparison.measure import hardware, one_thread, versions
from ..latent import LatentDensity
from ..model.layers import layers
from ..progress import bars
from ..scoring.calibration import Calibration
from ..uncertainty import Uncertainty
from . import Digits, DigitsNet, Split, add_noise, flip, rotate, train
from .data import digits

LEFT_OUT = (8, 9)
KEPT = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3)
ENTROPY = "softmax entropy"  # what the network itself says, to compare with


@dataclass(frozen=True)
class Settings:
    """What the demonstration measures; the density is the library's default.

    Args:
        seed: of the split, the network and the noise.
        epochs: of training.
        layers: the layers whose densities are fitted, shallow to deep.
        layer: the one whose scores are the detector's.
        max_dim: wider layers are reduced to this many dimensions.
        false_alarm: share of familiar inputs that may be called surprising.
        degrees: of rotation.
        deviations: of noise.

    Example:
        >>> Settings(seed=1).quick().seed
        1
    """

    seed: int = 0
    epochs: int = 20
    layers: tuple[str, ...] = ("conv1", "conv2", "conv3", "hidden", "output")
    layer: str = "hidden"
    max_dim: int = 256
    false_alarm: float = 0.05
    degrees: tuple[int, ...] = tuple(range(0, 181, 15))
    deviations: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)

    def quick(self) -> Settings:
        """A rough version that takes a few seconds."""
        return replace(self, epochs=5, max_dim=32, degrees=(0, 45, 90), deviations=(0.3,))


@dataclass(frozen=True, eq=False)
class Demonstration:
    """What was measured, and what it was measured on.

    Args:
        settings: what was asked for.
        numbers: everything, ready for JSON.
        threshold: of the detector's epistemic uncertainty.
        test: test digits as they are.
        left_out: digits of the classes left out.
        rotated: test digits by angle.
        noisy: test digits by the noise's standard deviation.
    """

    settings: Settings
    numbers: dict[str, Any]
    threshold: float
    test: Scored
    left_out: Scored
    rotated: Mapping[int, Scored]
    noisy: Mapping[float, Scored]


@one_thread()
def measure(settings: Settings, *, progress: bool | None = None) -> Demonstration:
    """Train a network on some digits, fit densities to its layers, and score what it does and does not know.

    Torch uses one thread meanwhile: the matrices are too small to gain from more, and the numbers then do not depend
    on the number of cores.

    Args:
        settings: what to measure.
        progress: show bars; None shows them on a terminal.
    """
    with bars(progress):
        return _measure(settings)


@dataclass(frozen=True, eq=False)
class Scored:
    """Images, and how uncertain each of them is.

    Args:
        data: images and labels.
        uncertainty: the detector's.
        scores: the epistemic uncertainty of each layer by its name, and the softmax entropy, (n,) each.
        p_value: of each score, (n,) each.
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
        assert detector.head is not None
        fitted = {name: term.calibration for name, term in detector.head.terms.items()}
        self.calibration = {name: each for name, each in fitted.items() if each is not None}
        self.calibration[ENTROPY] = Calibration().fit(scores[ENTROPY])

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
    """For each kind of uncertainty, the scores of all inputs together, and whether the network was right about each.

    Aleatoric uncertainty is given as its logarithm, which also ranks inputs whose entropy underflows.
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


def _measure(settings: Settings) -> Demonstration:
    seconds: dict[str, float] = {}
    data = digits(left_out=LEFT_OUT, seed=settings.seed)
    with _timed(seconds, "training"):
        network = DigitsNet(10 - len(LEFT_OUT), seed=settings.seed)
        images, labels = data.train.images, data.train.labels
        train(network, images, labels, epochs=settings.epochs, seed=settings.seed)
    with _timed(seconds, "fitting"):
        detector = LatentDensity(
            network, settings.layers, max_dim=settings.max_dim, combine={settings.layer: 1.0}, task="classification"
        )
        detector.fit(data.train.batches(), calibration=data.calibration.batches())
        threshold = detector.threshold(settings.false_alarm)
    with _timed(seconds, "scoring"):
        score = Scorer(detector, data.calibration)
        digit = data.test.images

        def changed(images: Tensor) -> Scored:
            return score(Split(images, data.test.labels))

        test, left_out, seen = score(data.test), score(data.left_out), score(data.train)
        rotated = {angle: changed(rotate(digit, angle)) for angle in settings.degrees}
        noisy = {sigma: changed(add_noise(digit, sigma, seed=settings.seed)) for sigma in settings.deviations}
        flipped = {side: changed(flip(digit, side)) for side in ("horizontal", "vertical")}

    rate = settings.false_alarm
    numbers = {
        "seed": settings.seed,
        "layer": settings.layer,
        "data": _sizes(data),
        "dimensions": _dimensions(network, digit, settings),
        "accuracy": {"train": _share(seen.correct), "test": _share(test.correct)},
        "false_alarm": {
            "asked": rate,
            "seen": _surprising(test, rate),
            "threshold": {name: fitted.threshold(rate) for name, fitted in score.calibration.items()},
        },
        "rotation": [{"degrees": angle, **_against(test, some, rate)} for angle, some in rotated.items()],
        "noise": [{"deviation": sigma, **_against(test, some, rate)} for sigma, some in noisy.items()],
        "flip": [{"direction": side, **_against(test, some, rate)} for side, some in flipped.items()],
        "left_out": _against(test, left_out, rate),
        "rejection": {"test": _rejection([test]), "rotated": _rejection(list(rotated.values()))},
        "most_surprising": {"test": _list(test), "left_out": _list(left_out)},
        "versions": versions(),
        "hardware": hardware(),
        "seconds": seconds,
    }
    return Demonstration(settings, numbers, threshold, test, left_out, rotated, noisy)


def _against(known: Scored, changed: Scored, rate: float) -> dict[str, Any]:
    """The accuracy on changed inputs, and how well each score tells them from known ones."""
    return {
        "inputs": len(changed.data),
        "accuracy": _share(changed.correct),
        "surprising": _surprising(changed, rate),
        "mean_p_value": {name: float(values.double().mean()) for name, values in changed.p_value.items()},
        "auroc": {
            name: metrics.auroc(negative=known.scores[name], positive=values) for name, values in changed.scores.items()
        },
    }


def _surprising(scored: Scored, rate: float) -> dict[str, float]:
    return {name: _share(values <= rate) for name, values in scored.p_value.items()}


def _rejection(parts: Sequence[Scored]) -> dict[str, Any]:
    """The accuracy of what is kept when the most uncertain are dropped."""
    found = {}
    for name, (uncertainty, correct) in pool(parts).items():
        _, accuracy = metrics.accuracy_rejection(uncertainty, correct)
        kept = {f"{share:.0%}": float(accuracy[round(share * len(accuracy)) - 1]) for share in KEPT}
        found[name] = {"aurc": metrics.aurc(uncertainty, correct), "accuracy_of_kept": kept}
    return found


def _list(scored: Scored) -> list[dict[str, Any]]:
    """The most surprising inputs; positions are those in the split that `digits` returns for this seed."""
    u = scored.uncertainty
    assert u.p_value is not None
    return [
        {
            "position": i,
            "label": int(scored.data.labels[i]),
            "prediction": int(u.prediction[i]),
            "epistemic": float(u.epistemic[i]),
            "p_value": float(u.p_value[i]),
        }
        for i in most_surprising(scored, 10)
    ]


def _sizes(data: Digits) -> dict[str, Any]:
    parts = {"train": data.train, "calibration": data.calibration, "test": data.test, "left_out": data.left_out}
    return {"classes_left_out": list(LEFT_OUT), **{name: len(part) for name, part in parts.items()}}


def _dimensions(network: DigitsNet, images: Tensor, settings: Settings) -> dict[str, dict[str, int]]:
    tree = layers(network, images, show=False)
    widths = {name: tree[name].width or 0 for name in settings.layers}
    return {name: {"layer": width, "kept": min(width, settings.max_dim)} for name, width in widths.items()}


def _share(mask: Tensor) -> float:
    return int(mask.sum()) / len(mask)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start
