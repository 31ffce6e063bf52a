"""Both halves of table 1 as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...markdown import spread, table
from .rows import agrees, margin


def render(result: Mapping[str, Any]) -> str:
    """Cells beside the paper's, those that disagree in bold; then how many agree under every alternative reading.

    Args:
        result: of the study, as its file has it.
    """
    cells = [row for row in result["rows"] if row["metric"] == "auroc" and row["variant"] == "default"]
    methods = list(dict.fromkeys(row["method"] for row in cells))
    found = {(row["train"], row["ood"], row["method"]): row for row in cells}
    rows = []
    for train, ood in dict.fromkeys((row["train"], row["ood"]) for row in cells):
        line = [f"{train} → {ood}"]
        for method in methods:
            row = found[train, ood, method]
            text = f"{spread(row)} / {row['paper_mean']:.3f} ± {row['paper_std']:.3f}"
            line.append(text if agrees(row) else f"**{text}**")
        rows.append(line)
    apart: dict[str, list[str]] = {}
    for row in result["rows"]:
        if row["metric"] == "auroc" and not agrees(row):
            cell = f"{row['train']} → {row['ood']} {row['method']} {row['mean']:.3f}"
            apart.setdefault(row["variant"], []).append(cell)
    agreement = [
        [row["variant"], f"{row['mean']} of {row['n']}", "; ".join(apart.get(row["variant"], []))]
        for row in result["rows"]
        if row["metric"] == "cells within margin"
    ]
    return "\n\n".join(
        [
            table(["ours / paper", *methods], rows),
            f"Bold: farther from the paper than {margin(0, 0)} and than two combined deviations.",
            table(
                ["reading of what the paper leaves open", "cells that agree", "of those it changes, these do not"],
                agreement,
            ),
            _times(result["settings"]),
        ]
    )


def _times(settings: Mapping[str, Any]) -> str:
    """Where the seconds went, and how much of the device training used, where that was measured."""
    text = "Seconds: " + ", ".join(f"{what} {seconds:.0f}" for what, seconds in settings["seconds"].items()) + "."
    shares = dict(settings.get("share of the matrix peak while training", {}))
    if not shares:
        return text
    peak, _ = shares.pop("peak in TFLOP/s"), shares.pop("GFLOP a step")
    each = ", ".join(f"{share:.1%} on {train}" for train, share in shares.items())
    return f"{text} Training reached {each} of the rate of a large matrix product in bfloat16, {peak:.0f} TFLOP/s."
