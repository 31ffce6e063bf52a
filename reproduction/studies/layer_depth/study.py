"""The paper's figures of layers: how soon layers, MC dropout and ensembles notice that images change.

Digits of MNIST are rotated, and house numbers of SVHN become noisy, step by step. What the paper leaves open is chosen
as in table 1, and its networks are used if they are found. The paper gives neither the share that MC dropout drops nor
the number of its samples: both are ours, as are the seeds of the dropout networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import torch
from torch import nn

from hidden_uncertainty.baselines import DeepEnsemble, MCDropout
from hidden_uncertainty.progress import track

from ...datasets.images import unit
from ...nets.fcnet import FCNet
from ...nets.resnet import ResNet
from ...results import Study
from ...training.lane import Recipe
from ...training.many import Group, train_many
from ..table_1.cells import Asked, Clock, Reading
from ..table_1.scores import work_folder
from ..table_1_fcnet import study as table_1_fcnet
from ..table_1_fcnet.data import HELD, split
from ..table_1_fcnet.study import MEMBERS
from ..table_1_resnet import study as table_1_resnet
from .data import SHIFTS, read
from .measures import measure
from .picture import draw_rejection, draw_steps
from .scores import ENSEMBLE, MC_DROPOUT, Found, read_layers, read_outputs

DROPOUT = 0.2  # share of units dropped, for MC dropout
SAMPLES = 10  # of MC dropout: as many as an ensemble has members
READING = Reading()


@dataclass(frozen=True, eq=False)
class Plan:
    """What is trained on one set, and what is measured.

    Args:
        plain: networks of the ensembles, `members` each.
        dropping: networks for MC dropout.
        members: of an ensemble.
        asked: layers to read, images to fit to and inputs to score.
        digests: of the data.
    """

    plain: Group
    dropping: Group
    members: int
    asked: Asked
    digests: dict[str, str]


def run(
    *,
    seeds: Sequence[int] = range(5),
    quick: bool = False,
    sets: Sequence[str] = tuple(SHIFTS),
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train ensembles and dropout networks, score test images at every step, and compare the methods.

    Args:
        seeds: of the ensembles on MNIST, where layers of the first members are read, and of the dropout networks. On
            SVHN there is one ensemble, of the first seed, and layers of as many members are read.
        quick: one small ensemble, few images and epochs on the CPU.
        sets: the data sets to run.
        folder: where networks are kept between runs; None takes the environment variable HIDDEN_UNCERTAINTY_WORK.
    """
    unknown = [name for name in sets if name not in SHIFTS]
    if unknown or not sets:
        raise ValueError(f"sets must be some of {tuple(SHIFTS)}, got {tuple(sets)}.")
    clock = Clock()
    seeds = list(seeds)[:1] if quick else list(seeds)
    device = torch.device("cuda" if torch.cuda.is_available() and not quick else "cpu")
    rows: list[dict[str, Any]] = []
    curves, counts, members, recipes, epochs = {}, {}, {}, {}, {}
    digests: dict[str, str] = {}
    warned = 0
    for train in track(sets, "sets"):
        plan = (_mnist if train == "MNIST" else _svhn)(seeds, device, quick=quick)
        plain, dropping = train_many([plan.plain, plan.dropping], device=device, folder=folder or work_folder(quick))
        clock.lap(f"training on {train}")
        how = READING.criterion, READING.keep, device
        ensembles = _chunks(plain.networks(*how), plan.members)
        found, warnings = _score(plan, ensembles, dropping.networks(*how), len(seeds), clock)
        more, curves[train] = measure(train, SHIFTS[train], found)
        clock.lap(f"measures on {train}")
        rows, warned = rows + more, warned + warnings
        counts[train] = {method: len(each) for method, each in found.items()}
        members[train] = plan.members
        recipes[train] = asdict(plan.plain.recipe)
        epochs[train] = {
            "plain": [each["loss"] for each in plain.epochs],
            "with dropout": [each["loss"] for each in dropping.epochs],
        }
        digests |= plan.digests
    settings = {
        "steps": {train: f"{SHIFTS[train].kind}: {list(SHIFTS[train].amounts)}" for train in sets},
        "noise": "deviation where pixels go from 0 to 255, not clipped",
        "dropout": {"share": DROPOUT, "samples": SAMPLES},
        "members of an ensemble": members,
        "repetitions": counts,
        "training": {"initialisation": "glorot", "scaling": "unit", "held": HELD, "recipe": recipes},
        "reading": asdict(READING),
        "curves are compared": "each repetition with the mean of the other method's, over the steps after the first",
        "seconds": clock.laps,
        "epochs": epochs,
        "mixtures that warned": warned,
    }
    pictures = {"": draw_steps(curves), "aleatoric": draw_rejection(curves)}
    return Study("layer-depth", rows, seeds, digests, clock.total, settings, curves, pictures)


def _mnist(seeds: Sequence[int], device: torch.device, *, quick: bool) -> Plan:
    """Perceptrons: one ensemble per seed."""
    part = read("MNIST", device, **{"count": 2000, "test": 500} if quick else {})
    members = 3 if quick else MEMBERS
    numbers = [members * seed + member for seed in seeds for member in range(members)]
    images = unit(part.images)

    def group(name: str, networks: Sequence[FCNet]) -> Group:
        recipe = Recipe(epochs=12, patience=3) if quick else Recipe()
        digest = part.digests["MNIST train"]
        return table_1_fcnet.group(f"MNIST {name}", networks, images, part.labels, digest, recipe)

    return Plan(
        group("default", [FCNet(initialisation="glorot", seed=number) for number in numbers]),
        group(f"dropout {DROPOUT}", [FCNet(dropout=DROPOUT, initialisation="glorot", seed=seed) for seed in seeds]),
        members,
        Asked(
            "MNIST",
            images,
            split(images)[0],
            SHIFTS["MNIST"].inputs(unit(part.test_images), part.test_labels),
            {name: f"layer-{name}" for name in FCNet.measured},
        ),
        part.digests,
    )


def _svhn(seeds: Sequence[int], device: torch.device, *, quick: bool) -> Plan:
    """Residual networks: one ensemble, the first of those in table 1."""
    part = read("SVHN", device, **{"count": 600, "test": 200} if quick else {})
    members = max(2, len(seeds)) if quick else MEMBERS
    widths = (8, 16, 32) if quick else table_1_resnet.WIDTHS

    def group(name: str, networks: Sequence[ResNet]) -> Group:
        recipe = Recipe(epochs=3) if quick else Recipe()
        return table_1_resnet.group(name, networks, part.images, part.labels, part.digests["SVHN train"], recipe)

    numbers = range(members * seeds[0], members * (seeds[0] + 1))
    plain = [ResNet(widths, initialisation="glorot", seed=number) for number in numbers]
    dropping = [ResNet(widths, dropout=DROPOUT, initialisation="glorot", seed=seed) for seed in seeds]
    return Plan(
        group("SVHN", plain),
        group(f"SVHN dropout {DROPOUT}", dropping),
        members,
        Asked(
            "SVHN",
            unit(part.images),
            split(part.images)[0],
            SHIFTS["SVHN"].inputs(unit(part.test_images), part.test_labels),
            {name: layer for name, layer in table_1_resnet.LAYERS.items() if layer != "logits"},
            wrap=table_1_resnet.with_softmax,
            batch=table_1_resnet.BATCH,
            max_dim=32 if quick else 512,
        ),
        part.digests,
    )


def _score(
    plan: Plan, ensembles: Sequence[Sequence[nn.Module]], dropping: Sequence[nn.Module], repetitions: int, clock: Clock
) -> tuple[Found, int]:
    """Scores of every method, and how many mixtures warned."""
    train, asked = plan.asked.train, plan.asked
    # The members of a single ensemble are the repetitions.
    read = [ensemble[0] for ensemble in ensembles] if len(ensembles) > 1 else ensembles[0][:repetitions]
    found, warned = read_layers(read, asked)
    clock.lap(f"layers on {train}")
    found[MC_DROPOUT] = [
        read_outputs(MCDropout(n, SAMPLES, task="classification", progress=False), asked.inputs, asked.batch)
        for n in dropping
    ]
    clock.lap(f"MC dropout on {train}")
    found[ENSEMBLE] = [
        read_outputs(DeepEnsemble(e, task="classification", progress=False), asked.inputs, asked.batch)
        for e in ensembles
    ]
    clock.lap(f"ensembles on {train}")
    return found, warned


def _chunks(networks: Sequence[nn.Module], size: int) -> list[Sequence[nn.Module]]:
    return [networks[i : i + size] for i in range(0, len(networks), size)]
