"""The regularisation study as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...markdown import table
from ..layer_depth.data import SHIFTS
from .rows import ACCURACY, AUROC, MEAN, PSNR, VALIDATION


def render(result: Mapping[str, Any]) -> str:
    """One table per set, one line per weight; the chosen weight in bold.

    Args:
        result: as its file holds it.

    Example:
        >>> about = {"train": "MNIST", "ood": None, "method": "weight 1", "metric": "psnr"}
        >>> rows = [{**about, "mean": 20.5, "std": 0.1, "n": 5}]
        >>> print(render({"rows": rows, "settings": {"chosen": {"MNIST": 1.0}}}))
        | MNIST, weight | accuracy | validation accuracy | PSNR (dB) | mean AUROC, rotation | trainings |
        |---|---|---|---|---|---|
        | **1** |  |  | 20.5 ± 0.1 |  | 5 |
        <BLANKLINE>
        Bold: the largest weight that does not lower the accuracy on validation images.
    """
    parts = []
    for train, chosen in result["settings"]["chosen"].items():
        shift = SHIFTS[train]
        own = {(r["method"], r["metric"], r["ood"]): r for r in result["rows"] if r["train"] == train}
        unknown = [ood for _, metric, ood in own if metric == AUROC and ood not in shift.names]
        columns: dict[str, tuple[str, str | None]] = {
            "accuracy": (ACCURACY, None),
            "validation accuracy": (VALIDATION, None),
            "PSNR (dB)": (PSNR, None),
            **{f"AUROC, {ood}": (AUROC, ood) for ood in unknown[:1]},
            f"mean AUROC, {shift.kind}": (MEAN, shift.kind),
        }
        lines = []
        for method in dict.fromkeys(method for method, _, _ in own):
            weight = method.removeprefix("weight ")
            cells = [_cell(own.get((method, *column))) for column in columns.values()]
            count = max(row["n"] for key, row in own.items() if key[0] == method)
            lines.append([f"**{weight}**" if float(weight) == chosen else weight, *cells, str(count)])
        parts.append(table([f"{train}, weight", *columns, "trainings"], lines))
    parts.append("Bold: the largest weight that does not lower the accuracy on validation images.")
    return "\n\n".join(parts)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    digits = {PSNR: 1, ACCURACY: 4, VALIDATION: 4}.get(row["metric"], 3)
    return f"{row['mean']:.{digits}f} ± {row['std']:.{digits}f}"
