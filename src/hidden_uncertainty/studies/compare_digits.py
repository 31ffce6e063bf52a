"""Many ways to tell digits that a small network never saw, side by side: how well, and at what cost.

Settings are fixed beforehand and nothing is tuned on what is to be detected. Methods that look at activations look at
the layer of the study `digits`; credibility, whose authors take all layers, at one a block.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from ..baselines.credibility import Credibility
from ..baselines.dropout import MCDropout
from ..baselines.ensemble import DeepEnsemble
from ..baselines.gaussian import one_gaussian_a_class
from ..baselines.insertion import insert_dropout
from ..baselines.kernel import KernelDensity
from ..baselines.mahalanobis import Mahalanobis, RelativeMahalanobis
from ..baselines.neighbours import NearestNeighbours
from ..baselines.outputs import Energy, MaxProbability, SoftmaxEntropy
from ..comparison import FORWARD, Comparison, Method, compare
from ..datasets import Digits, Split, add_noise, digits, rotate
from ..density import GaussianMixture
from ..estimator import LatentDensity
from ..nets import DigitsNet, train
from ..progress import track
from .results import Study, digest, one_thread

SETTINGS: dict[str, Any] = {
    "layer": "hidden.1",  # the linear layer's output, before its activation
    "epochs": 12,
    "rotation": 90,  # degrees
    "noise": 0.3,  # deviation, of pixels in [0, 1]
    "dropout": 0.2,  # after every block of the network
    "samples": 10,  # of MC dropout
    "members": 10,  # of the ensemble
    # One in a thousand training images, as the authors' 50 for CIFAR-10 and 1,000 for ImageNet.
    "k of nearest neighbours": 1,
    # One neighbour has no share: a tenth of what there is of a class.
    "k of kernel ratio and credibility": 10,
    "rounds": 5,  # of timing
}
BLOCKS = ("conv1", "conv2", "conv3", "hidden")


@one_thread()
def run(*, seeds: Sequence[int] = range(5), quick: bool = False, progress: bool | None = None) -> Study:
    """Train networks a seed, and compare all methods on the same digits.

    Args:
        seeds: of split, weights, training and noise.
        quick: one seed, three epochs, two members and one round.
        progress: show a bar; None shows it on a terminal.
    """
    start = time.perf_counter()
    seeds = list(seeds)[:1] if quick else list(seeds)
    settings = SETTINGS | ({"epochs": 3, "members": 2, "rounds": 1} if quick else {})
    runs = [_run(seed, settings, progress) for seed in track(seeds, "compare-digits", enabled=progress)]
    found = Comparison.mean(runs)
    figure = found.plot().figure
    assert isinstance(figure, Figure)
    rows = [
        {"train": "digits 0-7"}
        | {key: row[key] for key in ("ood", "method", "metric")}
        | {"mean": _rounded(row["value"]), "std": _rounded(row["std"]), "n": row["n"]}
        for row in found.rows
    ]
    everything = digits()
    images = [part.images for part in (everything.train, everything.calibration, everything.test)]
    return Study(
        "compare-digits",
        rows,
        seeds,
        {"digits": digest(*images)},
        time.perf_counter() - start,
        {**settings, "run": {key: found.about[key] for key in found.about if key not in ("hardware", "versions")}},
        pictures={"": figure},
    )


def read(result: Mapping[str, Any]) -> Comparison:
    """The comparison that a result file holds, to print it or draw it again.

    Args:
        result: what `compare-digits.json` holds.
    """
    rows = [
        {key: row[key] for key in ("method", "ood", "metric", "std", "n")} | {"value": row["mean"]}
        for row in result["rows"]
    ]
    return Comparison(rows, {**result["settings"]["run"], "hardware": result["hardware"]})


def methods(networks: Sequence[DigitsNet], dropped: Any, settings: Mapping[str, Any]) -> dict[str, Method]:
    """Everything that is compared, by name.

    Args:
        networks: members of the ensemble, the first of which all other methods score.
        dropped: a network that was trained with dropout.
        settings: as `SETTINGS`.
    """
    layer, k = settings["layer"], settings["k of kernel ratio and credibility"]
    network = networks[0]
    options: dict[str, Any] = {"task": "classification", "progress": False}
    paper = GaussianMixture(components=5, shrinkage=None)
    return {
        "latent density": LatentDensity(network, layer, **options),
        "latent density, paper's setting": LatentDensity(network, layer, paper, **options),
        "one Gaussian a class (DDU)": one_gaussian_a_class(network, layer, **options),
        "Mahalanobis": Mahalanobis(network, layer, **options),
        "relative Mahalanobis": RelativeMahalanobis(network, layer, **options),
        "nearest neighbours": NearestNeighbours(network, layer, k=settings["k of nearest neighbours"], **options),
        "kernel density": KernelDensity(network, layer, how="gaussian", **options),
        "kernel ratio": KernelDensity(network, layer, k=k, **options),
        "credibility": Credibility(network, (*BLOCKS[:-1], layer), k=k, **options),
        "softmax entropy": SoftmaxEntropy(network, **options),
        "max probability": MaxProbability(network, **options),
        "energy": Energy(network, **options),
        f"MC dropout, {settings['samples']} samples": MCDropout(dropped, settings["samples"], **options),
        f"deep ensemble of {len(networks)}": DeepEnsemble(networks, **options),
    }


def _run(seed: int, settings: Mapping[str, Any], progress: bool | None) -> Comparison:
    data = digits(left_out=(8, 9), calibration=0.1, test=0.275, seed=seed)
    networks, seconds = [], []
    for member in range(settings["members"]):
        # No seed is used twice, whatever the number of repetitions.
        networks.append(DigitsNet(8, seed=1000 * member + seed))
        seconds.append(_trained(networks[-1], data, 1000 * member + seed, settings["epochs"], progress))
    dropped = insert_dropout(DigitsNet(8, seed=seed), settings["dropout"], after=BLOCKS)
    last = _trained(dropped, data, seed, settings["epochs"], progress)
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
        progress=progress,
    )
    each = median(seconds)  # the first waits for torch to load what it trains with
    needed = dict.fromkeys((FORWARD, *compared), each)
    *_, with_dropout, ensemble = compared
    needed |= {with_dropout: last, ensemble: len(networks) * each}
    found.rows += [
        {"method": name, "ood": None, "metric": "train seconds", "value": value} for name, value in needed.items()
    ]
    return found


def _trained(network: Any, data: Digits, seed: int, epochs: int, progress: bool | None) -> float:
    """Train, and give back how many seconds it took."""
    start = time.perf_counter()
    train(network, data.train.images, data.train.labels, epochs=epochs, seed=seed, progress=progress)
    return time.perf_counter() - start


def _rounded(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")
