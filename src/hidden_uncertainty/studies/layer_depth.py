"""The paper's depth figures: how soon layers, MC dropout and ensembles notice that images move away from the data.

Digits of MNIST are turned, house numbers of SVHN put under noise, step by step. What the paper leaves open is chosen as
in table 1, whose networks are taken where they are found. It says neither the share that MC dropout drops nor how many
samples it draws: both are ours, as are the dropout networks' seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import torch
from torch import nn

from ..baselines import DeepEnsemble, MCDropout
from ..datasets.images import unit
from ..nets._lane import Recipe
from ..nets.fcnet import FCNet
from ..nets.many import Group, train_many
from ..nets.resnet import ResNet
from ..progress import track
from . import table_1_fcnet, table_1_resnet
from ._layer_depth_data import SHIFTS, read
from ._layer_depth_measures import measure
from ._layer_depth_picture import draw_rejection, draw_steps
from ._layer_depth_scores import ENSEMBLE, MC_DROPOUT, Found, read_layers, read_outputs
from ._table_1_cells import Asked, Clock, Reading
from ._table_1_grey import HELD, split
from ._table_1_scores import work_folder
from .results import Study
from .table_1_fcnet import MEMBERS

DROPOUT = 0.2  # share of numbers dropped, in networks for MC dropout
SAMPLES = 10  # that MC dropout draws: as many as an ensemble has members
READING = Reading()


@dataclass(frozen=True, eq=False)
class Plan:
    """What is trained on one set, and what is asked of it.

    Args:
        plain: networks of ensembles, `members` each.
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
    progress: bool | None = None,
    sets: Sequence[str] = tuple(SHIFTS),
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train ensembles and dropout networks; score test images at every step; compare accuracy, AUROC and rejection.

    Args:
        seeds: of the ensembles on MNIST, whose first members' layers are read, and of the dropout networks. On SVHN
            there is one ensemble, of the first seed, and layers are read of as many of its members.
        quick: one small ensemble, few images and epochs on the CPU.
        progress: show bars; None shows them on a terminal.
        sets: to do one without the other.
        folder: where networks are kept between runs; None takes it from HIDDEN_UNCERTAINTY_WORK, if that is set.
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
    for train in track(sets, "sets", enabled=progress):
        plan = (_mnist if train == "MNIST" else _svhn)(seeds, device, quick=quick)
        plain, dropping = train_many(
            [plan.plain, plan.dropping], device=device, folder=folder or work_folder(quick), progress=progress
        )
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
    """Perceptrons: an ensemble a seed."""
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
    # Of a single ensemble all members are trainings: as many as there are repetitions.
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
