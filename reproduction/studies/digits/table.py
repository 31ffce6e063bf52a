"""The study `digits` as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...markdown import spread, table


def render(result: Mapping[str, Any]) -> str:
    """AUROC of every density.

    Args:
        result: of the study, as its file has it.
    """
    rows = [
        [row["train"], row["ood"], row["method"], spread(row), str(row["n"])]
        for row in result["rows"]
        if row["metric"] == "auroc" and "mean" in row
    ]
    return table(["trained on", "unseen", "method", "AUROC", "repetitions"], rows)
