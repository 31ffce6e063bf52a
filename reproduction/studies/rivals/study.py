"""Rivals that need training, beside densities of a network as it is: what does the extra training buy?

All networks are as wide and deep as the perceptron of table 1, see as many images, and are trained by one schedule,
with what the method's authors published for the rest. A fifth of the training images are unseen by the networks: the
library's default learns its combination from them. Nothing is chosen by an unknown set. The weight of the
reconstruction is a tenth of what the study `regularisation` chose for longer trainings: with that one, the first epoch
was far less accurate. DUQ has the optimiser of its authors: after eight epochs, Adam was less accurate on unseen
images.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from hidden_uncertainty.comparison.measure import hardware
from hidden_uncertainty.precision import one_thread
from hidden_uncertainty.progress import track

from ...results import Study, commit
from ...rivals import DDU, DUQ, SNGP, Bottleneck, Distance, Known, Plain, Reconstructing, Rival, Schedule, train
from ...rivals.duq import PIXELS
from ..one_score.near import CHANGES
from ..table_1.rows import DEFAULT
from ..table_1.scores import work_folder
from ..table_1_fcnet.data import SETS, Grey, Scale, inputs, read, split
from . import sanity
from .measure import measure
from .picture import draw_checks, draw_steps
from .records import Record, Records
from .rows import build_rows, build_sanity

WEIGHT = 100  # of the reconstruction
IMAGES = 30_000  # of a training set: what a busy processor can do in an hour
SCHEDULE = Schedule(epochs=12)
OWN = {"DUQ": Schedule(12, 128, 0.05, momentum=0.9, milestones=(4, 8))}  # as published, but for its 30 epochs
STEP = 5  # every fifth test image is judged by detectors
RIVALS: dict[str, Callable[..., Rival]] = {
    "plain": Plain,
    f"reconstruction {WEIGHT}": partial(Reconstructing, float(WEIGHT)),
    "VIB": Bottleneck,
    "VIB, learnt marginal": partial(Bottleneck, code=3, components=200),
    "DUQ": DUQ,
    "SNGP": SNGP,
    "DDU": DDU,
    "distance": Distance,
}

ABOUT = {
    "plain": "cross-entropy; densities are the paper's mixtures of 5 Gaussians per class without shrinkage",
    f"reconstruction {WEIGHT}": f"also {WEIGHT} × the mean squared error of a decoder of four layers, from layer 10",
    "VIB": "codes of 256 numbers, β 1e-3, standard marginal, as published in 2017",
    "VIB, learnt marginal": "codes of 3 numbers with a full covariance, and a learnt mixture of 200 Gaussians with "
    "full covariances, as published in 2018; β as above",
    "DUQ": "embeddings of 256 numbers, σ 0.1, γ 0.999, λ 0.05, SGD with rate 0.05 and momentum 0.9, as published; the "
    "gradient penalty is with respect to pixels with mean 0 and deviation 1, as in the authors' code",
    "SNGP": "spectral norms of at most 0.95; 1024 features, ℓ 20, λ 20 and the covariance of a Gaussian likelihood, as "
    "in the authors' code for CIFAR10 in its latest version",
    "DDU": "spectral norms of at most 3, as published; one Gaussian per class of labelled features",
    "distance": "weight 0.2, margin 25, a fifth of all pairs of one class, 50 neighbours, as published",
}


@one_thread()
def run(
    *,
    seeds: Sequence[int] = range(3),
    quick: bool = False,
    sets: Sequence[str] = SETS,
    only: Sequence[str] | None = None,
    earlier: str | PathLike[str] | None = None,
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train every rival once per set and seed, and compare their detectors with those of plain networks.

    Args:
        seeds: of the networks.
        quick: one seed, few images, small networks and few epochs.
        sets: the data sets to run.
        only: which rivals, by name, and which published results to look at, such as "check VIB"; None takes all.
        earlier: a result file of this study, whose other records are kept.
        folder: where networks and records are kept between runs; None takes the environment variable
            HIDDEN_UNCERTAINTY_WORK. Without either, nothing is kept.
    """
    seeds = list(seeds)[:1] if quick else list(seeds)
    data = read(train=600, test=60) if quick else read(train=IMAGES)
    made = {"commit": commit(), "hardware": hardware()}
    records = Records(folder or work_folder(quick), {"data": dict(data.digests), "quick": quick})
    choices = [*RIVALS, *(f"check {name}" for name in sanity.SETTINGS)]
    wrong = [name for name in only or [] if name not in choices]
    if wrong:
        raise ValueError(f"there is no {wrong[0]!r}; there are: {', '.join(map(repr, choices))}.")
    names = [name for name in RIVALS if only is None or name in only]
    checks = [name for name in sanity.SETTINGS if only is None or f"check {name}" in only]
    known, looked_at = _read(earlier)
    for seed, name, train_on in track([(s, n, t) for s in seeds for n in names for t in sets], "networks"):
        key = f"{train_on}-{name}-{seed}".lower().replace(",", "").replace(" ", "-")
        schedule = OWN.get(name, SCHEDULE)
        own = records.of(images=IMAGES, schedule=asdict(schedule), options=_options(_build(name, train_on)))
        case = partial(_case, own, key, train_on, name, seed, data, schedule, quick, made)
        known[seed, name, train_on] = own.find(key, case)
    found = [known[key] for key in sorted(known, key=lambda key: (key[0], [*RIVALS].index(key[1]), key[2] != SETS[0]))]
    new = sanity.run(records, data, seeds, quick=quick, names=checks, made=made)
    seen = [each for each in looked_at if each["check"] not in checks] + new
    rows = build_rows(found) + build_sanity(seen)
    present = {each["rival"] for each in found}
    settings = {
        "schedule": {"all others": asdict(SCHEDULE), **{name: asdict(each) for name, each in OWN.items()}},
        "trained on": f"80 % of {IMAGES:,} training images; the others are unseen by the networks",
        "judged": f"one test image in {STEP}, and as many of each unknown set; accuracy is of all test images",
        "seconds": "the sum over networks, on a busy machine; those of training are of the processor",
        "rivals": {name: {"about": ABOUT[name], **_options(_build(name))} for name in RIVALS if name in present},
        "checks": sanity.SETTINGS,
        "records": [{key: value for key, value in each.items() if key != "near"} for each in found],
        "sanity": [{key: value for key, value in each.items() if key != "drawn"} for each in seen],
    }
    curves = {_title(each): each["near"] for each in found}
    pictures = {"": draw_steps(found), **draw_checks(new)}
    seconds = sum(each["seconds"] for each in found + seen)
    return Study("rivals", rows, seeds, dict(data.digests), seconds, settings, curves, pictures)


def _read(path: str | PathLike[str] | None) -> tuple[dict[tuple[int, str, str], Record], list[Record]]:
    """Records of networks, and of published results, of an earlier result if there is one."""
    if path is None or not Path(path).is_file():
        return {}, []
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    curves, settings = content["curves"], content["settings"]
    known = {
        (each["seed"], each["rival"], each["train"]): {**each, "near": curves[_title(each)]}
        for each in settings["records"]
    }
    return known, settings["sanity"]


def _title(record: Record) -> str:
    return f"{record['train']}, {record['rival']}, seed {record['seed']}"


def _case(
    records: Records,
    key: str,
    train_on: str,
    name: str,
    seed: int,
    data: Grey,
    schedule: Schedule,
    quick: bool,
    made: Mapping[str, Any],
) -> Record:
    """Train one network, and measure it."""
    start = time.perf_counter()
    images, labels = data.train[train_on]
    rows, held = split(images)
    known = Known(images[rows], labels[rows], images[held], labels[held])
    small: dict[str, int] = {"width" if name in ("DUQ", "SNGP") else "hidden": 12} if quick else {}
    rival = _build(name, train_on, seed=seed, **small)
    if quick:
        schedule = replace(schedule, epochs=2, milestones=())
    seconds = records.train(key, rival, lambda: train(rival, known.x, known.y, schedule))
    changes = [replace(change, amounts=change.amounts[::4]) for change in CHANGES] if quick else CHANGES
    test = data.test[train_on]
    found = measure(rival, known, test, _unknown(train_on, data), changes, 1 if quick else STEP)
    about = {"train": train_on, "rival": name, "seed": seed, "training seconds": round(seconds, 3)}
    return {**about, **found, **made, "seconds": round(time.perf_counter() - start, 1)}


def _unknown(train_on: str, data: Grey) -> dict[str, Tensor]:
    found = inputs(train_on, data, Scale("unit", data.train[train_on][0])).of(DEFAULT).unknown
    return {ood: x for (ood, _), x in found.items()}


def _build(name: str, train_on: str = "MNIST", **options: Any) -> Rival:
    """A rival for a set."""
    return RIVALS[name](**({"pixels": PIXELS[train_on]} if name == "DUQ" else {}), **options)


def _options(rival: Rival) -> dict[str, Any]:
    """The settings of a rival that are numbers."""
    return {key: value for key, value in vars(rival).items() if type(value) in (int, float, tuple) and key != "seed"}
