"""Table 1, left half: perceptrons trained on MNIST and FashionMNIST, densities of their layers, and ensembles of ten.

What the paper leaves open is chosen once for all cells, by agreement with the paper's numbers; every alternative is a
variant with one change. The noise and the resizing of OMNIGLOT decide many cells. The initial weights, the epoch that
is kept, and the images that densities are fitted to decide few: there the choice is that of Keras, whose layers the
paper's appendix names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from hidden_uncertainty.progress import track

from ...nets.fcnet import FCNet, Initialisation
from ...results import Study
from ...training.lane import Data, Decay, Recipe
from ...training.many import Group, Trained, train_many
from ..table_1.cells import Asked, Clock, Reading, Table
from ..table_1.paper import FCNET
from ..table_1.rows import DEFAULT, build_rows
from ..table_1.scores import DENSITY, work_folder
from .data import HELD, NOISE, OMNIGLOT, SETS, Grey, Scale, Scaling, inputs, read, split

MEMBERS = 10  # of an ensemble


@dataclass(frozen=True)
class Training:
    """What the paper leaves open about training.

    Args:
        initialisation: of the weights.
        decay: whether weight decay is added to the gradient or decoupled.
        scaling: of the images.
    """

    initialisation: Initialisation = "glorot"
    decay: Decay = "gradient"
    scaling: Scaling = "unit"


TRAININGS = {
    DEFAULT: Training(),
    "initialisation of torch": Training(initialisation="torch"),
    "decay decoupled": Training(decay="decoupled"),
    "images standardised": Training(scaling="standard"),
}
READINGS = {
    DEFAULT: Reading(),
    "weights of the best epoch": Reading(keep="best"),
    "stopped by accuracy": Reading(criterion="accuracy"),
    "density on 80 %": Reading(part="trained"),
    "ridge 1e-4": Reading(density={**DENSITY, "ridge": 1e-4}),
    "the library's mixture": Reading(density={}),
}


def run(
    *,
    seeds: Sequence[int] = range(5),
    quick: bool = False,
    variants: bool = True,
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train one ensemble per seed and set, fit densities to layers of the first member, and detect unknown sets.

    Args:
        seeds: of the ensembles.
        quick: one ensemble of three, 2,000 images and few epochs on the CPU, without variants.
        variants: measure the variants too; those that need other networks have one ensemble each.
        folder: where networks are kept between runs; None takes the environment variable HIDDEN_UNCERTAINTY_WORK.
    """
    clock = Clock()
    seeds = list(seeds)[:1] if quick else list(seeds)
    variants = variants and not quick
    members = 3 if quick else MEMBERS
    device = torch.device("cuda" if torch.cuda.is_available() and not quick else "cpu")
    data = read(train=2000, test=500, device=device) if quick else read(device=device)
    clock.lap("reading")
    recipe: dict[str, Any] = {"epochs": 12, "patience": 3} if quick else {}
    numbers = [members * seed + member for seed in seeds for member in range(members)]
    trained = _train(data, recipe, {DEFAULT: TRAININGS[DEFAULT]}, numbers, device, folder or work_folder(quick))
    clock.lap("training")
    table = Table(members, len(seeds), device)
    for train in track(SETS, "densities"):
        asked = _ask(train, TRAININGS[DEFAULT], data)
        table.read(trained[DEFAULT, train], {DEFAULT: READINGS[DEFAULT]}, asked)
    clock.lap("densities and scores")
    whole = clock.total
    if variants:
        others = {name: training for name, training in TRAININGS.items() if name != DEFAULT}
        more = _train(data, recipe, others, range(members), device, folder or work_folder(quick))
        readings = {name: reading for name, reading in READINGS.items() if name != DEFAULT}
        for train in track(SETS, "variants"):
            table.read(trained[DEFAULT, train], readings, _ask(train, TRAININGS[DEFAULT], data))
            for name, training in others.items():
                table.read(more[name, train], {name: READINGS[DEFAULT]}, _ask(train, training, data))
        clock.lap("variants")
    settings = {
        "networks": 2 * len(numbers),
        "members of an ensemble": members,
        "training": {**asdict(trained[DEFAULT, SETS[0]].group.recipe), **asdict(TRAININGS[DEFAULT]), "held": HELD},
        "reading": asdict(READINGS[DEFAULT]),
        "noise": dict(zip(("deviation", "of", "clipped"), NOISE[DEFAULT], strict=True)),
        "OMNIGLOT": dict(zip(("part", "resized by", "white on black"), OMNIGLOT[DEFAULT], strict=True)),
        "seconds": {"whole table without variants": round(whole, 1), **clock.laps},
        "epochs": {train: [each["loss"] for each in trained[DEFAULT, train].epochs] for train in SETS},
        "mixtures that warned": table.warned,
    }
    rows = build_rows(table.found, FCNET) + table.accuracies()
    return Study("table-1-fcnet", rows, seeds, data.digests, clock.total, settings)


def _train(
    data: Grey,
    recipe: Mapping[str, Any],
    trainings: Mapping[str, Training],
    numbers: Sequence[int],
    device: torch.device,
    folder: str | PathLike[str] | None,
) -> dict[tuple[str, str], Trained]:
    """Train networks with these seeds for every training and set, all at once."""
    groups = {}
    for name, training in trainings.items():
        for train in SETS:
            networks = [FCNet(initialisation=training.initialisation, seed=number) for number in numbers]
            how = Recipe(decay=training.decay, **recipe)
            digest = data.digests[f"{train} train"]
            groups[name, train] = group(f"{train} {name}", networks, *data.train[train], digest, how, training.scaling)
    found = train_many(list(groups.values()), device=device, folder=folder)
    return dict(zip(groups, found, strict=True))


def group(
    name: str,
    networks: Sequence[nn.Module],
    images: Tensor,
    labels: Tensor,
    digest: str,
    recipe: Recipe,
    scaling: Scaling = "unit",
) -> Group:
    """Perceptrons to train on a set; studies that share them find each other's.

    Args:
        name: the set, and what is special about these networks.
        networks: untrained.
        images: all training images, in [0, 1]; those for early stopping are taken from them.
        labels: of these.
        digest: of the set.
        recipe: how to train.
        scaling: of the images.
    """
    x = Scale(scaling, images)(images)
    rows, held = split(images)
    return Group(
        f"fcnet-{name}".lower().replace(" ", "-"),
        networks,
        Data(x[rows], labels[rows], x[held], labels[held]),
        recipe,
        about={"data": digest, "images": str(len(images)), "scale": scaling},
    )


def _ask(train: str, training: Training, data: Grey) -> Asked:
    images = data.train[train][0]
    scale = Scale(training.scaling, images)
    layers = {name: f"layer-{name}" for name in FCNet.measured}
    return Asked(train, scale(images), split(images)[0], inputs(train, data, scale), layers)
