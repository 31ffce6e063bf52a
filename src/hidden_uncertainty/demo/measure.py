"""What is measured on digits: everything that the demonstration shows, and all methods side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from .. import baselines, metrics
from ..comparison import FORWARD, Comparable, Comparison, compare
from ..comparison.measure import hardware, one_thread, versions
from ..density import GaussianMixture
from ..latent import LatentDensity
from ..model.layers import layers
from ..progress import bars, track
from ..scoring.calibration import Calibration
from ..uncertainty import Uncertainty
from .training import Digits, DigitsNet, Split, add_noise, digits, flip, rotate, train

LEFT_OUT = (8, 9)
PARTS = ("train", "calibration", "test", "left_out")
KEPT = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3)
ENTROPY = "softmax entropy"  # what the network itself says, to compare with
# Of all methods side by side.
FULL: dict[str, Any] = {
    "layer": "hidden.1",  # the linear layer's output, before its activation
    "epochs": 12,
    "rotation": 90,  # degrees
    "noise": 0.3,  # standard deviation, of pixels in [0, 1]
    "dropout": 0.2,  # after every block of the network
    "samples": 10,  # of MC dropout
    "members": 10,  # of the ensemble
    # One per thousand training images, as the authors' 50 for CIFAR-10 and 1,000 for ImageNet.
    "k of nearest neighbours": 1,
    "rounds": 5,  # of timing
}
QUICK: dict[str, Any] = FULL | {"epochs": 3, "members": 2, "rounds": 1}
BLOCKS = ("conv1", "conv2", "conv3", "hidden")


@dataclass(frozen=True)
class Settings:
    """What the demonstration measures; the density is the library's default."""

    seed: int = 0  # of the split, the network and the noise
    epochs: int = 20
    layers: tuple[str, ...] = ("conv1", "conv2", "conv3", "hidden", "output")  # with densities, shallow to deep
    layer: str = "hidden"  # the one whose scores are the detector's
    max_dim: int = 256  # wider layers are reduced to this many dimensions
    false_alarm: float = 0.05  # share of familiar inputs that may be called surprising
    degrees: tuple[int, ...] = tuple(range(0, 181, 15))
    deviations: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)  # of noise

    def quick(self) -> Settings:
        """A rough version that takes a few seconds."""
        return replace(self, epochs=5, max_dim=32, degrees=(0, 45, 90), deviations=(0.3,))


@dataclass(frozen=True, eq=False)
class Scored:
    """Images, and how uncertain each of them is: by the detector, by each layer and by the softmax entropy."""

    data: Split
    uncertainty: Uncertainty
    scores: Mapping[str, Tensor]  # by name, (n,) each
    p_value: Mapping[str, Tensor]

    @property
    def correct(self) -> Tensor:
        """Whether the network was right, (n,)."""
        return self.uncertainty.prediction == self.data.labels


@dataclass(frozen=True, eq=False)
class Demonstration:
    """What was measured, and what it was measured on."""

    settings: Settings
    numbers: dict[str, Any]  # everything, ready for JSON
    threshold: float  # of the detector's epistemic uncertainty
    test: Scored
    left_out: Scored  # digits of the classes left out
    rotated: Mapping[int, Scored]  # test digits by angle
    noisy: Mapping[float, Scored]  # and by the noise's deviation


@one_thread()
def measure(settings: Settings) -> Demonstration:
    """Train a network on some digits, fit densities to its layers, and score what it does and does not know.

    Torch uses one thread meanwhile: the matrices are too small to gain from more, and the numbers then do not depend
    on the number of cores.
    """
    seconds: dict[str, float] = {}
    data = digits(left_out=LEFT_OUT, seed=settings.seed)
    with _timed(seconds, "training"):
        network = DigitsNet(10 - len(LEFT_OUT), seed=settings.seed)
        train(network, data.train.images, data.train.labels, epochs=settings.epochs, seed=settings.seed)
    with _timed(seconds, "fitting"):
        options: dict[str, Any] = {"max_dim": settings.max_dim, "combine": {settings.layer: 1.0}}
        detector = LatentDensity(network, settings.layers, task="classification", **options)
        detector.fit(data.train.batches(), calibration=data.calibration.batches())
        threshold = detector.threshold(settings.false_alarm)
    with _timed(seconds, "scoring"):
        calibration = _calibrations(detector, data.calibration)

        def score(split: Split) -> Scored:
            uncertainty, scores = _read(detector, split)
            p_value = {name: calibration[name].p_value(values) for name, values in scores.items()}
            return Scored(split, uncertainty, scores, p_value)

        def changed(images: Tensor) -> Scored:
            return score(Split(images, data.test.labels))

        digit = data.test.images
        test, left_out, seen = score(data.test), score(data.left_out), score(data.train)
        rotated = {angle: changed(rotate(digit, angle)) for angle in settings.degrees}
        noisy = {sigma: changed(add_noise(digit, sigma, seed=settings.seed)) for sigma in settings.deviations}
        flipped = {side: changed(flip(digit, side)) for side in ("horizontal", "vertical")}

    rate, tree = settings.false_alarm, layers(network, digit, show=False)
    widths = {name: tree[name].width or 0 for name in settings.layers}
    numbers = {
        "seed": settings.seed,
        "layer": settings.layer,
        "data": {"classes_left_out": list(LEFT_OUT), **{part: len(getattr(data, part)) for part in PARTS}},
        "dimensions": {name: {"layer": wide, "kept": min(wide, settings.max_dim)} for name, wide in widths.items()},
        "accuracy": {"train": _share(seen.correct), "test": _share(test.correct)},
        "false_alarm": {
            "asked": rate,
            "seen": _surprising(test, rate),
            "threshold": {name: each.threshold(rate) for name, each in calibration.items()},
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


def pool(parts: Sequence[Scored]) -> dict[str, tuple[Tensor, Tensor]]:
    """For each kind of uncertainty, the scores of all inputs together, and whether the network was right about each.

    Aleatoric uncertainty is given as its logarithm, which also ranks inputs whose entropy underflows.
    """
    u = Uncertainty.cat([part.uncertainty for part in parts])
    assert u.log_aleatoric is not None
    entropy = torch.cat([part.scores[ENTROPY] for part in parts])
    correct = torch.cat([part.correct for part in parts])
    return {"epistemic": (u.epistemic, correct), "aleatoric": (u.log_aleatoric, correct), ENTROPY: (entropy, correct)}


def most_surprising(scored: Scored, count: int) -> list[int]:
    """Positions of the inputs of highest epistemic uncertainty, highest first."""
    return scored.uncertainty.epistemic.argsort(descending=True, stable=True)[:count].tolist()


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


def _calibrations(detector: LatentDensity, data: Split) -> dict[str, Calibration]:
    """Those of every layer, and one of the softmax entropy on the same images."""
    assert detector.head is not None
    fitted = {name: term.calibration for name, term in detector.head.terms.items()}
    entropy = Calibration().fit(_read(detector, data)[1][ENTROPY])
    return {name: each for name, each in fitted.items() if each is not None} | {ENTROPY: entropy}


def _read(detector: LatentDensity, data: Split) -> tuple[Uncertainty, dict[str, Tensor]]:
    """What the detector finds, and the scores by each layer and by the network's own softmax."""
    uncertainty = detector.predict(data.batches())
    with torch.no_grad():
        # In float64: in float32 the entropies of confident predictions are all the same zero.
        log_p = detector.model(data.images).double().log_softmax(1)  # (n, classes)
    scores = {name: layer.epistemic for name, layer in uncertainty.layers.items()}
    return uncertainty, {**scores, ENTROPY: -(log_p.exp() * log_p).sum(1)}


def _share(mask: Tensor) -> float:
    return int(mask.sum()) / len(mask)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


@one_thread()
def compare_methods(
    *, seeds: Sequence[int] = range(5), quick: bool = False, progress: bool | None = None
) -> Comparison:
    """Train networks for each seed, compare all methods on the same digits, and average over the seeds.

    Settings are fixed beforehand and nothing is tuned on what is to be detected. Methods that read activations read the
    layer `hidden.1`.

    Args:
        seeds: of split, weights, training and noise.
        quick: one seed, and the settings `QUICK`.
        progress: show bars; None shows them on a terminal.
    """
    settings = QUICK if quick else FULL
    with bars(progress):
        asked = track(seeds[:1] if quick else seeds, "repetitions")
        return Comparison.mean([_compare(seed, settings) for seed in asked])


def methods(networks: Sequence[DigitsNet], dropped: Any, settings: Mapping[str, Any]) -> dict[str, Comparable]:
    """Everything that is compared, by name; all but the ensemble and MC dropout score the first network."""
    layer, network, nearest = settings["layer"], networks[0], settings["k of nearest neighbours"]
    options: dict[str, Any] = {"task": "classification", "progress": False}
    paper = GaussianMixture(components=5, shrinkage=None)
    return {
        "latent density": LatentDensity(network, layer, **options),
        "latent density, paper's setting": LatentDensity(network, layer, paper, **options),
        "one Gaussian per class (DDU)": baselines.one_gaussian_per_class(network, layer, **options),
        "Mahalanobis": baselines.Mahalanobis(network, layer, **options),
        "relative Mahalanobis": baselines.RelativeMahalanobis(network, layer, **options),
        "nearest neighbours": baselines.NearestNeighbours(network, layer, k=nearest, **options),
        "softmax entropy": baselines.SoftmaxEntropy(network, **options),
        "max probability": baselines.MaxProbability(network, **options),
        "energy": baselines.Energy(network, **options),
        f"MC dropout, {settings['samples']} samples": baselines.MCDropout(dropped, settings["samples"], **options),
        f"deep ensemble of {len(networks)}": baselines.DeepEnsemble(networks, **options),
    }


def _compare(seed: int, settings: Mapping[str, Any]) -> Comparison:
    data = digits(left_out=(8, 9), calibration=0.1, test=0.275, seed=seed)
    networks, seconds = [], []
    for member in range(settings["members"]):
        # No seed is used twice, whatever the number of repetitions.
        networks.append(DigitsNet(8, seed=1000 * member + seed))
        seconds.append(_trained(networks[-1], data, 1000 * member + seed, settings["epochs"]))
    dropped = baselines.insert_dropout(DigitsNet(8, seed=seed), settings["dropout"], after=BLOCKS)
    last = _trained(dropped, data, seed, settings["epochs"])
    turned = rotate(data.test.images, settings["rotation"])
    noisy = add_noise(data.test.images, settings["noise"], seed=seed)
    unknown = {
        "digits 8-9": data.left_out,
        f"turned {settings['rotation']}°": Split(turned, data.test.labels),
        f"noise {settings['noise']}": Split(noisy, data.test.labels),
    }
    compared = methods(networks, dropped, settings)
    found = compare(
        compared,
        data.test.batches(),
        {name: split.batches() for name, split in unknown.items()},
        train=data.train.batches(),
        calibration=data.calibration.batches(),
        model=networks[0],
        rounds=settings["rounds"],
    )
    each = median(seconds)  # the first one waits for torch to load what it trains with
    needed = dict.fromkeys((FORWARD, *compared), each)
    *_, with_dropout, ensemble = compared
    needed |= {with_dropout: last, ensemble: len(networks) * each}
    trained = {"ood": None, "metric": "train seconds"}
    found.rows += [{"method": name, **trained, "value": value} for name, value in needed.items()]
    return found


def _trained(network: Any, data: Digits, seed: int, epochs: int) -> float:
    """Train, and return the seconds it took."""
    start = time.perf_counter()
    train(network, data.train.images, data.train.labels, epochs=epochs, seed=seed)
    return time.perf_counter() - start
