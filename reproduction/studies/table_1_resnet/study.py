"""Table 1, right half: residual networks trained on SVHN and CIFAR10, densities of their layers, ensembles of ten.

What the paper leaves open is chosen as in the left half, `table-1-fcnet`. Three more choices are reported both ways:
STL10 with and without antialiasing, layer 34 at the output of the softmax and at its logits, and the horizontal flip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from hidden_uncertainty.progress import track

from ...datasets.images import unit
from ...nets.resnet import ResNet
from ...results import Study
from ...training.lane import Data, Recipe
from ...training.many import Group, train_many
from ...training.share import matrix_peak, step_operations
from ..table_1.cells import Asked, Clock, Reading, Table
from ..table_1.paper import RESNET
from ..table_1.rows import DEFAULT, build_rows
from ..table_1.scores import work_folder
from ..table_1_fcnet.data import HELD, split
from .data import NOISE, SETS, STL10, Colour, inputs, read

MEMBERS = 10  # of an ensemble
TRAININGS = 5  # networks whose layers are read: the first members of a single ensemble
WIDTHS = (64, 128, 256)
BATCH = 2000  # images per batch: 65,536 numbers each at layers 1 and 9
# The paper's layer 34 behaves like its softmax; the logits are a variant.
LAYERS = {"0.1": "layer-1", "0.9": "layer-9", "0.19": "layer-19", "1": "layer-34", "0.34": "logits"}
ALIASES = {"logits": ("layer 34 at the logits", "layer-34")}
READINGS = {
    DEFAULT: Reading(),
    "density on 80 %": Reading(part="trained"),
    "weights of the best epoch": Reading(keep="best"),
}


def run(
    *,
    seeds: Sequence[int] = range(1),
    quick: bool = False,
    variants: bool = True,
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train one ensemble per seed and set, fit densities to layers of single networks, and detect unknown sets.

    Args:
        seeds: of the ensembles. With one, layers of its first five members are read.
        quick: one ensemble of two small networks, 600 images and few epochs on the CPU, 32 dimensions.
        variants: measure the variants too.
        folder: where networks are kept between runs; None takes the environment variable HIDDEN_UNCERTAINTY_WORK.
    """
    clock = Clock()
    seeds = list(seeds)[:1] if quick else list(seeds)
    members = 2 if quick else MEMBERS
    device = torch.device("cuda" if torch.cuda.is_available() and not quick else "cpu")
    data = read(train=600, test=200, device=device) if quick else read(device=device)
    clock.lap("reading")
    recipe = Recipe(epochs=3) if quick else Recipe()
    widths = (8, 16, 32) if quick else WIDTHS
    table = Table(members, TRAININGS, device, ALIASES)
    epochs, steps = {}, {}
    for train in track(SETS, "sets"):
        numbers = [members * seed + member for seed in seeds for member in range(members)]
        networks = [ResNet(widths, initialisation="glorot", seed=number) for number in numbers]
        whole = group(train, networks, *data.train[train], data.digests[f"{train} train"], recipe)
        (trained,) = train_many([whole], device=device, folder=folder or work_folder(quick))
        epochs[train] = [each["loss"] for each in trained.epochs]
        clock.lap(f"training on {train}")
        steps[train] = sum(epochs[train]) * (len(whole.data.images) // recipe.batch_size)
        asked = _ask(train, data, max_dim=32 if quick else 512)
        table.read(trained, READINGS if variants else {DEFAULT: READINGS[DEFAULT]}, asked)
        clock.lap(f"densities and scores of {train}")
    settings: dict[str, Any] = {
        "networks": len(SETS) * len(numbers),
        "members of an ensemble": members,
        "widths": widths,
        "training": {**asdict(recipe), "initialisation": "glorot", "scaling": "unit", "held": HELD},
        "reading": asdict(READINGS[DEFAULT]),
        "layers": LAYERS,
        "noise": dict(zip(("deviation", "of", "clipped"), NOISE[DEFAULT], strict=True)),
        "STL10 resized by": STL10[DEFAULT],
        "seconds": clock.laps,
        "epochs": epochs,
        "share of the matrix peak while training": _share(steps, clock.laps, networks[0].to(device), recipe, device),
        "mixtures that warned": table.warned,
    }
    rows = build_rows(table.found, RESNET) + table.accuracies()
    return Study("table-1-resnet", rows, seeds, data.digests, clock.total, settings)


def _share(
    steps: Mapping[str, int], laps: Mapping[str, float], network: nn.Module, recipe: Recipe, device: torch.device
) -> dict[str, Any]:
    """Operations of all training steps, relative to those of a large matrix product in the same time."""
    if device.type != "cuda":
        return {}
    peak, each = matrix_peak(device), step_operations(network, (3, 32, 32), recipe.batch_size)
    shares = {train: round(count * each / laps[f"training on {train}"] / peak, 4) for train, count in steps.items()}
    return {"peak in TFLOP/s": round(peak / 1e12, 1), "GFLOP a step": round(each / 1e9, 2), **shares}


def group(
    name: str, networks: Sequence[nn.Module], images: Tensor, labels: Tensor, digest: str, recipe: Recipe
) -> Group:
    """Residual networks to train on a set; studies that share them find each other's.

    Args:
        name: the set, and what is special about these networks.
        networks: untrained.
        images: all training images, as bytes; those for early stopping are taken from them.
        labels: of these.
        digest: of the set.
        recipe: how to train.
    """
    rows, held = split(images)
    return Group(
        f"resnet-{name}".lower().replace(" ", "-"),
        networks,
        Data(images[rows], labels[rows], images[held], labels[held]),
        recipe,
        criteria=("loss",),
        about={"data": digest, "images": str(len(images))},
    )


def with_softmax(network: nn.Module) -> nn.Sequential:
    """A network with a softmax behind it; names of layers are as in `LAYERS`."""
    return nn.Sequential(network, nn.Softmax(1)).eval()


def _ask(train: str, data: Colour, max_dim: int) -> Asked:
    images = data.train[train][0]
    layers: Mapping[str, str] = LAYERS
    return Asked(
        train,
        unit(images),
        split(images)[0],
        inputs(train, data),
        layers,
        wrap=with_softmax,
        batch=BATCH,
        max_dim=max_dim,
    )
