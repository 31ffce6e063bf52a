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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hidden_uncertainty.comparison.measure import hardware, versions
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
from .effort import CPU, EFFORTS, GPU, Effort, describe
from .measure import measure
from .picture import draw_checks, draw_steps
from .records import Record, Records
from .rows import build_rows, build_sanity

WEIGHT = 100  # of the reconstruction
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
    earlier: Sequence[str | PathLike[str]] = (),
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train and measure every rival, and look at published results.

    On a GPU, where there is one, with all images and longer: networks of the two kinds are not put together.

    Args:
        seeds: of the networks.
        quick: one seed, few images, small networks and few epochs, on the CPU.
        sets: what networks are trained on.
        only: names of rivals, and of published results to look at, such as "check VIB"; None takes all.
        earlier: result files of this study, whose other networks and checks are kept; of one that is in several, that
            of the last file.
        folder: where networks and records are kept between runs; None takes the environment variable
            HIDDEN_UNCERTAINTY_WORK. Without either, nothing is kept.
    """
    choices = [*RIVALS, *(f"check {name}" for name in sanity.CHECKS)]
    wrong = [name for name in only or [] if name not in choices]
    if wrong:
        raise ValueError(f"there is no {wrong[0]!r}; there are: {', '.join(map(repr, choices))}.")
    seeds = list(seeds)[:1] if quick else list(seeds)
    gpu = torch.cuda.is_available() and not quick
    effort = GPU if gpu else CPU
    names = [name for name in RIVALS if only is None or name in only]
    checks = [name for name in sanity.CHECKS if only is None or f"check {name}" in only]
    known, looked_at, digests, installed = _read(earlier)
    if names or checks:
        device = torch.device("cuda" if gpu else "cpu")
        whole = read(train=600, test=60) if quick else read(device=device)
        data = replace(
            whole, train={name: (x[: effort.images], y[: effort.images]) for name, (x, y) in whole.train.items()}
        )
        digests |= data.digests
        made = {"commit": commit(), "hardware": hardware()}
        installed[hardware()] = versions()
        about = {"data": dict(data.digests), "quick": quick, "effort": effort.name}
        records = Records(folder or work_folder(quick), about)
        for seed, name, train_on in track([(s, n, t) for s in seeds for n in names for t in sets], "networks"):
            key = f"{train_on}-{name}-{seed}".lower().replace(",", "").replace(" ", "-")
            schedule = effort.duq if name == "DUQ" else effort.schedule
            own = records.of(images=effort.images, schedule=asdict(schedule), options=_options(_build(name, train_on)))
            case = partial(
                _case, own, key, train_on, name, seed, data, schedule, quick, {"effort": effort.name, **made}
            )
            known[seed, name, train_on] = own.find(key, case)
        for each in sanity.run(records, data, whole, seeds, effort, quick=quick, names=checks, made=made):
            looked_at[each["seed"], each["check"]] = each
    rivals, places = list(RIVALS), list(sanity.CHECKS)
    found = [known[key] for key in sorted(known, key=lambda key: (key[0], rivals.index(key[1]), SETS.index(key[2])))]
    seen = [looked_at[key] for key in sorted(looked_at, key=lambda key: (places.index(key[1]), key[0]))]
    return _study(found, seen, _effort(found, seen, effort), seeds, digests, installed)


def _study(
    found: Sequence[Record],
    seen: Sequence[Record],
    effort: Effort,
    seeds: Sequence[int],
    digests: Mapping[str, str],
    installed: Installed,
) -> Study:
    """The result, of records of networks and of checks."""
    present = {each["rival"] for each in found}
    settings = {
        "schedule": {"all others": asdict(effort.schedule), "DUQ": asdict(effort.duq)},
        "trained on": f"80 % of {effort.images:,} training images; the others are unseen by the networks",
        "judged": f"one test image in {STEP}, and as many of each unknown set; accuracy is of all test images",
        "seconds": f"the sum over networks and checks; those of training are {effort.timed}",
        "timed": effort.timed,
        "versions": installed,
        "rivals": {name: {"about": ABOUT[name], **_options(_build(name))} for name in RIVALS if name in present},
        "checks": describe(effort) | {each["check"]: each["settings"] for each in seen if "settings" in each},
        "records": [{key: value for key, value in each.items() if key != "near"} for each in found],
        "sanity": [{key: value for key, value in each.items() if key != "drawn"} for each in seen],
    }
    curves = {_title(each): each["near"] for each in found}
    first: dict[str, Record] = {}
    for each in seen:
        if "drawn" in each:
            first.setdefault(each["check"], each)  # pictures show one seed
    curves |= {f"check {name}, seed {each['seed']}": each["drawn"] for name, each in first.items()}
    pictures = {"": draw_steps(found), **draw_checks(list(first.values()))}
    seeds = sorted({each["seed"] for each in [*found, *seen]} | set(seeds))
    spent = sum(each["seconds"] for each in [*found, *seen])
    machines = Counter(each["hardware"] for each in found or seen)
    most = machines.most_common(1)[0][0] if machines else hardware()
    rows = build_rows(found) + build_sanity(seen)
    return Study("rivals", rows, seeds, digests, spent, settings, curves, pictures, most, installed.get(most))


def _effort(found: Sequence[Record], seen: Sequence[Record], now: Effort) -> Effort:
    """That of all networks: those of a processor and those of a GPU are not compared.

    A check is compared with what was published alone, and says its own settings: only its own seeds have one effort.
    """
    groups: dict[str | None, set[str]] = {}
    for each in [*found, *seen]:
        groups.setdefault(each.get("check"), set()).add(each.get("effort", CPU.name))
    for check, names in groups.items():
        if len(names) > 1:
            what = "networks" if check is None else f"seeds of the check {check!r}"
            raise ValueError(
                f"earlier results hold {what} that were trained on a CPU, more briefly, and others on a GPU: they "
                "cannot be put together. Choose another folder with --out, or leave out --only and --earlier to train "
                "all again."
            )
    of_all = groups.get(None) or {name for names in groups.values() for name in names}
    return EFFORTS[of_all.pop()] if len(of_all) == 1 else now


Networks = dict[tuple[int, str, str], Record]  # by seed, rival and set
Checks = dict[tuple[int, str], Record]  # by seed and name
Installed = dict[str, dict[str, str]]  # versions by machine


def _read(earlier: Sequence[str | PathLike[str]]) -> tuple[Networks, Checks, dict[str, str], Installed]:
    """Records of networks and of checks, digests of data, and versions, of earlier results that there are.

    Of what is in several, that of the last one is taken.
    """
    networks: Networks = {}
    checks: Checks = {}
    digests: dict[str, str] = {}
    installed: Installed = {}
    for path in map(Path, earlier):
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            curves, settings = content.get("curves", {}), content["settings"]  # some checks alone have no curves
            for each in settings["records"]:
                key = each["seed"], each["rival"], each["train"]
                networks[key] = {**each, "near": curves[_title(each)]}
            for each in settings["sanity"]:
                drawn = curves.get(f"check {each['check']}, seed {each['seed']}")
                # Older files have the settings of all checks in one place.
                more = {"settings": settings["checks"][each["check"]]} | ({} if drawn is None else {"drawn": drawn})
                checks[each["seed"], each["check"]] = {**more, **each}
            digests |= content["data"]
            installed |= settings.get("versions", {content["hardware"]: content["versions"]})
    return networks, checks, digests, installed


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
    rival = _build(name, train_on, seed=seed, **small).to(images.device)
    if quick:
        schedule = replace(schedule, epochs=2, milestones=())
    seconds = records.train(key, rival, lambda: train(rival, known.x, known.y, schedule))
    changes = [replace(change, amounts=change.amounts[::4]) for change in CHANGES] if quick else CHANGES
    test = data.test[train_on]
    found = measure(rival, known, test, _unknown(train_on, data), changes, 1 if quick else STEP)
    about = {"train": train_on, "rival": name, "seed": seed, "images": len(images), "epochs": schedule.epochs}
    spent = {"training seconds": round(seconds, 3), "seconds": round(time.perf_counter() - start, 1)}
    return {**about, **found, **made, **spent}


def _unknown(train_on: str, data: Grey) -> dict[str, Tensor]:
    found = inputs(train_on, data, Scale("unit", data.train[train_on][0])).of(DEFAULT).unknown
    return {ood: x for (ood, _), x in found.items()}


def _build(name: str, train_on: str = "MNIST", **options: Any) -> Rival:
    """A rival for a set."""
    return RIVALS[name](**({"pixels": PIXELS[train_on]} if name == "DUQ" else {}), **options)


def _options(rival: Rival) -> dict[str, Any]:
    """The settings of a rival that are numbers."""
    return {key: value for key, value in vars(rival).items() if type(value) in (int, float, tuple) and key != "seed"}
