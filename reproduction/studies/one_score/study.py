"""One score by default: `LatentDensity(model)` beside every single method, on the same networks.

Per network, half of the test set is unseen data that the default learns its combination and thresholds from; the other
half, and what is unknown, judge all methods. Regret is how far the best single method and layer, chosen in hindsight
per unknown set, is above the default.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from hidden_uncertainty.comparison.measure import hardware
from hidden_uncertainty.notes import note
from hidden_uncertainty.precision import one_thread
from hidden_uncertainty.progress import track

from ...results import Study, commit
from ..table_1.scores import work_folder
from .families import FAMILIES, Setup, choose
from .measure import Case, measure, with_papers
from .methods import PAPER
from .rows import build_rows


@one_thread()
def run(
    *,
    seeds: Sequence[int] = range(3),
    quick: bool = False,
    families: Sequence[str] | None = None,
    earlier: Sequence[str | PathLike[str]] = (),
    keep_papers: bool = False,
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train one network per family and seed, and compare the default with all single methods on it.

    Args:
        seeds: of the networks, and of how test sets are divided.
        quick: one seed, few data, small networks and few epochs on the CPU; families that need a GPU too, if they are
            named.
        families: which; None takes all of the development split. Those that need a GPU are left out without one.
        earlier: result files of this study, whose other families are kept; of a family in several, all seeds.
        keep_papers: keep what the paper's setting showed on the same networks in these files, and measure all else.
        folder: where networks are kept between runs; None takes the environment variable HIDDEN_UNCERTAINTY_WORK.
    """
    seeds = list(seeds)[:1] if quick else list(seeds)
    gpu = torch.cuda.is_available()
    names, left = choose(families, gpu=gpu or (quick and families is not None))
    if left:
        note(f"left out, because their networks are trained on a GPU and there is none: {', '.join(left)}.")
    networks, seconds, data = _read(earlier)
    if not names and not networks:
        raise ValueError(f"no family is left to run: {', '.join(left)} need a GPU.")
    device = torch.device("cuda" if gpu and not quick else "cpu")
    setup = Setup(device, folder or work_folder(quick), quick)
    made = {"commit": commit(), "hardware": hardware()}
    for name in track(names, "families"):
        start = time.perf_counter()
        found = FAMILIES[name].find(seeds, setup)
        cases = zip(seeds, found.cases, strict=True)
        choosing = FAMILIES[name].split == "development"
        before = {record["seed"]: record for record in networks.get(name, ()) if keep_papers}
        measured = []
        for seed, case in cases:
            case = replace(case, measured={}) if seed in before else case
            record = {"family": name, **made, **measure(_brief(case) if quick else case, seed, choosing=choosing)}
            measured.append(with_papers(record, before[seed]) if seed in before else record)
        networks[name] = measured
        data |= found.digests
        seconds[name] = round(time.perf_counter() - start, 1)
    networks = {name: networks[name] for name in FAMILIES if name in networks}
    settings = {
        "families": {
            name: {key: value for key, value in asdict(family).items() if key != "find"}
            for name, family in FAMILIES.items()
        },
        "not run": [name for name in FAMILIES if name not in networks],
        "paper's mixture": PAPER,
        "seconds": seconds,  # without training, where networks were kept
        "networks": networks,
    }
    return Study("one-score", build_rows(networks), seeds, data, sum(seconds.values()), settings)


def _brief(case: Case) -> Case:
    """The same with few steps of each change."""
    return replace(case, changes=[replace(change, amounts=change.amounts[::4]) for change in case.changes])


def _read(earlier: Sequence[str | PathLike[str]]) -> tuple[dict[str, Any], dict[str, float], dict[str, str]]:
    """Networks and seconds by family, and digests of data, of earlier results that there are; later ones win."""
    networks: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    data: dict[str, str] = {}
    for path in map(Path, earlier):
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            for name, some in content["settings"]["networks"].items():
                known = {network["seed"]: network for network in networks.get(name, [])}
                more = {network["seed"]: network for network in some}
                again = known.keys() <= more.keys()  # else they were measured apart, and their times add up
                seconds[name] = content["settings"]["seconds"][name] + (0.0 if again else seconds[name])
                networks[name] = [network for _, network in sorted((known | more).items())]
            data |= content["data"]
    return networks, seconds, data
