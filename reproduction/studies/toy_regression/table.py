"""The study `toy-regression` as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...markdown import spread, table

COLUMNS = {
    "AUROC, gap": ("gap", "auroc"),
    "AUROC, outside": ("outside", "auroc"),
    "rank correlation with the process": ("grid", "rank correlation with gaussian-process"),
    "with the ensemble": ("grid", "rank correlation with ensemble"),
    "RMSE inside": ("inside", "rmse"),
    "in the gap": ("gap", "rmse"),
}


def render(result: Mapping[str, Any]) -> str:
    """One row per method.

    Args:
        result: of the study, as its file has it.
    """
    found = {(row["method"], row["region"], row["metric"]): row for row in result["rows"]}
    rows = [
        [method, *(spread(found[key]) if (key := (method, *column)) in found else "" for column in COLUMNS.values())]
        for method in dict.fromkeys(row["method"] for row in result["rows"])
    ]
    return table(["method", *COLUMNS], rows)
