"""The study `uci` as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from ...markdown import table

COLUMNS = {
    "aleatoric with error": "rank correlation of aleatoric with error",
    "epistemic with error": "rank correlation of epistemic with error",
    "AUSE aleatoric": "ause of aleatoric",
    "AUSE epistemic": "ause of epistemic",
    "coverage": "coverage",
    "width / plain": "width relative to plain",
}


def render(result: Mapping[str, Any]) -> str:
    """One row per method: medians over the tables that it was run on.

    Args:
        result: of the study, as its file has it.
    """
    values: dict[tuple[str, str], list[float]] = {}
    for row in result["rows"]:
        values.setdefault((row["method"], row["metric"]), []).append(row["mean"])
    rows = [
        [
            method,
            str(len(values[method, "rmse"])),
            *(
                f"{median(values[key]):.2f}" if (key := (method, metric)) in values else ""
                for metric in COLUMNS.values()
            ),
        ]
        for method in dict.fromkeys(method for method, _ in values)
    ]
    return table(["method", "tables", *COLUMNS], rows)
