"""All methods side by side on digits, averaged over networks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from hidden_uncertainty import baselines
from hidden_uncertainty.comparison import FORWARD, Comparable, Comparison, compare
from hidden_uncertainty.demo import Digits, DigitsNet, Split, add_noise, digits, rotate, train
from hidden_uncertainty.density import GaussianMixture
from hidden_uncertainty.latent import LatentDensity
from hidden_uncertainty.precision import one_thread
from hidden_uncertainty.progress import bars, track

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
MIB = 2**20
_LEAVES = (type, ModuleType, FunctionType, MethodType, str, bytes)  # objects with nothing of a method's own behind them
BLOCKS = ("conv1", "conv2", "conv3", "hidden")


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
        return mean([_compare(seed, settings) for seed in asked])


def mean(runs: Sequence[Comparison]) -> Comparison:
    """The mean of several runs of one comparison, each row with its deviation over the runs."""
    if not runs:
        raise ValueError("there are no comparisons to average: expected at least one.")
    values: dict[tuple[str, str | None, str], list[float]] = {}
    for run in runs:
        for row in run.rows:
            values.setdefault((row["method"], row["ood"], row["metric"]), []).append(row["value"])
    for (method, _, metric), found in values.items():
        if len(found) != len(runs):
            raise ValueError(
                f"{metric!r} of {method!r} was measured in {len(found)} of {len(runs)} comparisons: average runs "
                "of one and the same."
            )
    rows = []
    for (method, ood, metric), found in values.items():
        row = {"method": method, "ood": ood, "metric": metric, "value": fmean(found)}
        rows.append(row | {"std": stdev(found) if len(found) > 1 else 0.0, "n": len(found)})
    return Comparison(rows, runs[0].about)


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
    held = {name: kept_memory(method, networks[0]) for name, method in compared.items()}
    for metric, values in (("train seconds", needed), ("kept MiB", held)):
        found.rows += [{"method": name, "ood": None, "metric": metric, "value": values[name]} for name in values]
    return found


def _trained(network: Any, data: Digits, seed: int, epochs: int) -> float:
    """Train, and return the seconds it took."""
    start = time.perf_counter()
    train(network, data.train.images, data.train.labels, epochs=epochs, seed=seed)
    return time.perf_counter() - start


def kept_memory(method: object, network: nn.Module | None = None) -> float:
    """MiB of the tensors and arrays that can be reached from a method's attributes, and not from the network's."""
    known = _sizes(network)
    return sum(size for place, size in _sizes(method).items() if place not in known) / MIB


def _sizes(root: object) -> dict[int, int]:
    """Bytes of every tensor or array that can be reached, by where its memory begins."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, _LEAVES):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            storage = item.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(item, np.ndarray):
            found[item.ctypes.data] = item.nbytes
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            waiting.extend(item)
        elif hasattr(item, "__dict__"):
            waiting.extend(vars(item).values())
    return found
