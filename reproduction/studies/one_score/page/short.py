"""The study in few lines: every family beside the best known methods, and one family alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ....markdown import spread, table
from ..methods import DEFAULT, PAPERS, SOFTMAX
from ..rows import earlier
from .checks import Row, select

SHOWN = {
    DEFAULT: "**default**",
    SOFTMAX: "softmax",
    "energy": "energy",
    "nearest neighbours": "neighbours",
    "Mahalanobis, unit length": "Mahalanobis++",
}
ABOUT = """\
Mean AUROC over the unknown sets and the networks of each family. The default has nothing to choose. The others have one
setting and read what the last layer reads. The paper's mixture is shown at the layer that is best for the family, and
*best in hindsight* takes the best single method and layer for every set and network. Development families were looked
at while the default was chosen; test families are other networks. Families with a star were measured with an earlier
default, and are to be run again."""


def short(result: Mapping[str, Any]) -> str:
    """One line per family: mean AUROC over its unknown sets.

    Args:
        result: of the study, as its file has it.
    """
    rows, settings = result["rows"], result["settings"]
    lines = []
    for name in settings["networks"]:
        family = settings["families"][name]
        own = select(rows, family["train"])
        split = family["split"] if family["split"] == "development" else f"**{family['split']}**"
        counts = [str(len(settings["networks"][name])), str(len(_sets(own)))]
        star = "*" * earlier(settings["networks"][name])
        lines.append([family["train"] + star, split, *counts, *_cells(own)])
    head = [
        "trained on",
        "split",
        "networks",
        "unknown sets",
        *SHOWN.values(),
        "paper's mixture at its best layer",
        "best in hindsight",
    ]
    text = ABOUT
    if settings["not run"]:
        gpu = all(settings["families"][name]["gpu"] for name in settings["not run"])
        text += f" Not run yet{', for want of a GPU' * gpu}: {', '.join(settings['not run'])}."
    return f"{table(head, lines)}\n\n{text}"


def of_family(result: Mapping[str, Any], name: str) -> str:
    """All methods on one family, the best first.

    Args:
        result: of the study, as its file has it.
        name: of the family.
    """
    rows, settings = result["rows"], result["settings"]
    if name not in settings["networks"]:
        return f"Not run yet: {name}."
    family, networks = settings["families"][name], settings["networks"][name]
    own = select(rows, family["train"])
    accuracy = spread(next(row for row in own if row["metric"] == "accuracy"))
    sets = _sets(own)
    areas: dict[str, dict[str, Row]] = {}
    for row in select(own, metric="auroc"):
        areas.setdefault(row["method"], {})[row["ood"]] = row
    order = sorted(areas, key=lambda method: -fmean(row["mean"] for row in areas[method].values()))
    body = [
        [f"**{method}**" if method == DEFAULT else method, *(spread(areas[method][ood]) for ood in sets)]
        for method in order
    ]
    asked = {row["metric"].removeprefix("false alarms at "): row for row in own if "false alarms" in row["metric"]}
    alarms = ", ".join(f"{100 * row['mean']:.1f} % at {rate.replace('%', ' %')}" for rate, row in asked.items())
    seeds = f"{len(networks)} network{'s' * (len(networks) > 1)}"
    commits = ", ".join(sorted({str(record["commit"])[:10] for record in networks}))
    text = f"AUROC, {seeds} ({family['network']}), accuracy {accuracy}. False alarms of the default: {alarms}. A "
    text += f"{family['split']} family, at commit {commits}{', with an earlier default' * earlier(networks)}."
    return f"{table(['method', *sets], body)}\n\n{text}"


def _sets(own: Sequence[Row]) -> list[str]:
    return [row["ood"] for row in own if row["metric"] == "below softmax"]


def _cells(own: Sequence[Row]) -> list[str]:
    """Means over the unknown sets of a family."""
    found: dict[str, list[float]] = {}
    for row in select(own, metric="auroc"):
        found.setdefault(row["method"], []).append(row["mean"])
    means = {method: fmean(values) for method, values in found.items()}
    lost = fmean(row["mean"] for row in select(own, metric="regret") if row["method"] == DEFAULT)
    papers = max(mean for method, mean in means.items() if method.startswith(PAPERS))
    cells = [f"{means[method]:.3f}" for method in SHOWN]
    cells[0] = f"**{cells[0]}**"
    return [*cells, f"{papers:.3f}", f"{means[DEFAULT] + lost / 100:.3f}"]
