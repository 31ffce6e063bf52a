"""Cells of table 1 beside the paper's, and how many of them agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...results import summarise
from .paper import Cells

DEFAULT = "default"
Found = dict[tuple[str, str, str, str], list[float]]  # by variant, what was trained on, what is unknown, the method


def margin(std: float, paper_std: float) -> float:
    """How far a mean may be from the paper's to agree: 0.03, or two combined deviations if that is more.

    Example:
        >>> margin(0.001, 0.002), round(margin(0.03, 0.04), 3)
        (0.03, 0.1)
    """
    return max(0.03, 2 * math.hypot(std, paper_std))


def agrees(row: Mapping[str, Any]) -> bool:
    """Whether a row is within the margin of the paper's number.

    Example:
        >>> agrees({"mean": 0.95, "std": 0.01, "paper_mean": 0.97, "paper_std": 0.0})
        True
    """
    return abs(row["mean"] - row["paper_mean"]) <= margin(row["std"], row["paper_std"])


def build_rows(found: Found, paper: Cells) -> list[dict[str, Any]]:
    """A row per cell and variant, and per variant how many cells of the whole table agree.

    A variant has the cells that it changes; the other cells are the default's.

    Args:
        found: AUROC of every training.
        paper: the table to be reproduced.

    Example:
        >>> from reproduction.studies.table_1.paper import Number
        >>> paper = {("a", "b", "layer-1"): Number(0.9, 0.0), ("a", "b", "layer-2"): Number(0.5, 0.0)}
        >>> found = {("default", "a", "b", "layer-1"): [0.91], ("default", "a", "b", "layer-2"): [0.7]}
        >>> rows = build_rows(found | {("other", "a", "b", "layer-2"): [0.51]}, paper)
        >>> [(row["variant"], row["mean"], row["n"]) for row in rows if row["metric"] == "cells within margin"]
        [('default', 1, 2), ('other', 2, 2)]
    """
    rows = []
    for (variant, train, ood, method), values in found.items():
        number = paper[train, ood, method]
        row = summarise(values, train=train, ood=ood, method=method, metric="auroc")
        rows.append({**row, "paper_mean": number.mean, "paper_std": number.std, "variant": variant})
    cells: dict[str, dict[tuple[str, str, str], bool]] = {}
    for row in rows:
        cells.setdefault(row["variant"], {})[row["train"], row["ood"], row["method"]] = agrees(row)
    for variant, own in cells.items():
        whole = cells.get(DEFAULT, {}) | own
        rows.append(
            {
                **dict.fromkeys(("train", "ood")),
                "method": "all",
                "metric": "cells within margin",
                "mean": sum(whole.values()),
                "std": 0.0,
                "n": len(whole),
                "variant": variant,
            }
        )
    return rows


def outside(rows: Sequence[Mapping[str, Any]], variant: str = DEFAULT) -> list[str]:
    """The cells of a variant that do not agree, as text.

    Example:
        >>> row = {"train": "a", "ood": "b", "method": "layer-1", "metric": "auroc", "variant": "default",
        ...        "mean": 0.5, "std": 0.0, "paper_mean": 0.9, "paper_std": 0.0}
        >>> outside([row])
        ['a → b, layer-1: 0.500 ± 0.000, paper 0.900 ± 0.000']
    """
    return [
        f"{row['train']} → {row['ood']}, {row['method']}: {row['mean']:.3f} ± {row['std']:.3f}, "
        f"paper {row['paper_mean']:.3f} ± {row['paper_std']:.3f}"
        for row in rows
        if row["metric"] == "auroc" and row["variant"] == variant and not agrees(row)
    ]
