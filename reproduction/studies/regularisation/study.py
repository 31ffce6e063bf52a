"""The effects of regularisation: networks that must reconstruct their input from a layer, with increasing weight.

Perceptrons on MNIST reconstruct from layer 10, residual networks on SVHN from layer 19. The paper does not print its
weights: ours are powers of ten, of the mean squared error over pixels in [0, 1]. Early stopping goes by the
classification loss alone, which is our choice too. All else is chosen as in table 1, whose residual networks have
weight 0 here, and thus no decoder and no PSNR. On SVHN there are fewer trainings, because they take long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hidden_uncertainty.progress import track
from reproduction.nets.reconstruction import DenseDecoder, ResidualDecoder

from ...datasets.images import Images, fashion_mnist, resized, stl10, unit
from ...nets.fcnet import FCNet
from ...nets.regularised import Regularised
from ...nets.resnet import ResNet
from ...results import Study
from ...training.lane import Recipe
from ...training.many import Group, train_many
from ..layer_depth.data import SHIFTS, Part, read
from ..table_1.cells import Clock, Reading
from ..table_1.rows import DEFAULT
from ..table_1.scores import BATCH, Densities, Inputs, work_folder
from ..table_1_fcnet import study as table_1_fcnet
from ..table_1_fcnet.data import HELD, split
from ..table_1_resnet import study as table_1_resnet
from ..table_1_resnet.data import STL10
from .picture import draw_steps, draw_weights
from .rows import PSNR, RULE, VALIDATION, build_rows, choose, measure, quality

READING = Reading()
UNITS = 100  # of a perceptron's hidden layers, and of its decoder's


class Sweep(NamedTuple):
    """What is measured on one set.

    Args:
        layer: to reconstruct from, and to fit the density to.
        unknown: the set to be detected.
        weights: of the reconstruction; a quick run takes every other one.
        trainings: most trainings per weight.
        batch: images per batch.
    """

    layer: str
    unknown: str
    weights: Sequence[float]
    trainings: int
    batch: int


SWEEPS = {
    "MNIST": Sweep("10", "FashionMNIST", (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0), 5, BATCH),
    "SVHN": Sweep("19", "STL10", (0.0, 1.0, 10.0, 100.0), 2, table_1_resnet.BATCH),
}


def run(
    *,
    seeds: Sequence[int] = range(5),
    quick: bool = False,
    sets: Sequence[str] = tuple(SWEEPS),
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train networks with every weight; measure accuracy, reconstructions and detection, also under perturbation.

    Args:
        seeds: of the trainings; on SVHN the first two of them.
        quick: one training of half the weights, with few images and epochs on the CPU.
        sets: the data sets to run.
        folder: where networks are kept between runs; None takes the environment variable HIDDEN_UNCERTAINTY_WORK.
    """
    if not sets or not set(sets) <= set(SWEEPS):
        raise ValueError(f"sets must be some of {tuple(SWEEPS)}, got {tuple(sets)}.")
    clock = Clock()
    seeds = list(seeds)[:1] if quick else list(seeds)
    device = torch.device("cuda" if torch.cuda.is_available() and not quick else "cpu")
    rows: list[dict[str, Any]] = []
    chosen, recipes, epochs = {}, {}, {}
    digests: dict[str, str] = {}
    warned = 0
    for train in track(sets, "sets"):
        sweep, (count, test) = SWEEPS[train], _sizes(train, quick)
        part = read(train, device, count=count, test=test)
        unknown, other = _unknown(train, device, test)
        groups = _groups(train, part, sweep.weights[::2] if quick else sweep.weights, seeds[: sweep.trainings], quick)
        clock.lap(f"reading {train}")
        trained = train_many(groups, device=device, folder=folder or work_folder(quick))
        clock.lap(f"training on {train}")
        networks = [n for each in trained for n in each.networks(READING.criterion, READING.keep, device)]
        weights = [network.weight if isinstance(network, Regularised) else 0.0 for network in networks]
        known = unit(part.test_images)
        steps = SHIFTS[train].inputs(known, part.test_labels)
        densities = Densities(
            [_forward(network) for network in networks],
            {sweep.layer: f"layer-{sweep.layer}"},
            unit(part.images),
            Inputs(known, part.test_labels, {(sweep.unknown, DEFAULT): unknown, **steps.unknown}),
            sweep.batch,
            32 if quick and train == "SVHN" else 512,
        )
        found = measure(densities, weights, part.labels, part.test_labels, split(part.images)[1], SHIFTS[train])
        for network in networks:
            if isinstance(network, Regularised) and network.weight:
                found.setdefault((network.weight, None, PSNR), []).append(quality(network, known, sweep.batch))
        clock.lap(f"densities and scores of {train}")
        rows += build_rows(train, found)
        chosen[train] = choose({weight: values for (weight, _, what), values in found.items() if what == VALIDATION})
        recipes[train] = asdict(groups[0].recipe)
        epochs[train] = {
            f"{weight:g}": [each["loss"] for each, own in zip(_epochs(trained), weights, strict=True) if own == weight]
            for weight in dict.fromkeys(weights)
        }
        digests |= part.digests | {f"{sweep.unknown} test": other}
        warned += densities.warned
    settings = {
        "layers": {train: SWEEPS[train].layer for train in sets},
        "penalty": "weight × mean squared error over the pixels of a batch, images in [0, 1]",
        "stopped by": "the classification loss on held images",
        "chosen": chosen,
        "rule of choice": RULE,
        "training": {"initialisation": "glorot", "scaling": "unit", "held": HELD, "recipe": recipes},
        "reading": asdict(READING),
        "STL10 resized by": STL10[DEFAULT],
        "seconds": clock.laps,
        "epochs": epochs,
        "mixtures that warned": warned,
    }
    pictures = {"": draw_weights(rows, chosen), "perturbed": draw_steps(rows, chosen)}
    return Study("regularisation", rows, seeds, digests, clock.total, settings, pictures=pictures)


def _sizes(train: str, quick: bool) -> tuple[int | None, int | None]:
    """The most training and test images."""
    if not quick:
        return None, None
    return (2000, 500) if train == "MNIST" else (600, 200)


def _unknown(train: str, device: torch.device, test: int | None) -> tuple[Tensor, str]:
    """The unknown set in the form of the known images, and its digest."""
    whole: Images = fashion_mnist("test") if train == "MNIST" else stl10("test")
    images = whole.images[:test].to(device)
    return (unit(images) if train == "MNIST" else resized(images, 32, resampling=STL10[DEFAULT])), whole.digest


def _groups(train: str, part: Part, weights: Sequence[float], seeds: Sequence[int], quick: bool) -> list[Group]:
    """Networks of all weights: perceptrons as one stack, residual networks of weight 0 as in table 1."""
    digest, name = part.digests[f"{train} train"], f"{train} regularised"
    if train == "MNIST":
        recipe = Recipe(epochs=12, patience=3) if quick else Recipe()
        stack = [_perceptron(weight, seed) for weight in weights for seed in seeds]
        return [table_1_fcnet.group(name, stack, unit(part.images), part.labels, digest, recipe)]
    recipe, widths = Recipe(epochs=3) if quick else Recipe(), (8, 16, 32) if quick else table_1_resnet.WIDTHS
    plain = [ResNet(widths, initialisation="glorot", seed=seed) for seed in seeds]
    others = [_residual(widths, weight, seed) for weight in weights if weight for seed in seeds]
    sets: dict[str, Sequence[nn.Module]] = {train: plain, name: others}
    return [
        table_1_resnet.group(each, networks, part.images, part.labels, digest, recipe)
        for each, networks in sets.items()
    ]


def _perceptron(weight: float, seed: int) -> Regularised:
    layer = SWEEPS["MNIST"].layer
    decoder = DenseDecoder(UNITS, UNITS, (1, 28, 28), layers=1 + FCNet.measured.index(layer), seed=seed)
    return Regularised(FCNet(hidden=UNITS, initialisation="glorot", seed=seed), layer, decoder, weight)


def _residual(widths: Sequence[int], weight: float, seed: int) -> Regularised:
    decoder = ResidualDecoder((widths[1], 16, 16), (3, 32, 32), seed=seed)
    network = ResNet(widths, initialisation="glorot", seed=seed)
    return Regularised(network, SWEEPS["SVHN"].layer, decoder, weight)


def _forward(network: nn.Module) -> nn.Module:
    """The network without its decoder."""
    return network.network if isinstance(network, Regularised) else network


def _epochs(trained: Sequence[Any]) -> list[Any]:
    return [epochs for each in trained for epochs in each.epochs]
