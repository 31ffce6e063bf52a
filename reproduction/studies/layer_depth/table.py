"""The study `layer-depth` as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...markdown import table

MOVED = {
    "mean AUROC": "mean auroc over steps",
    "rank correlation with accuracy": "rank correlation of uncertainty with accuracy",
    "rAULC": "raulc",
    "correlation of AUROC with MC dropout": "correlation of curve with mc-dropout",
    "distance to MC dropout": "distance of curve to mc-dropout",
    "correlation with ensemble": "correlation of curve with ensemble",
    "distance to ensemble": "distance of curve to ensemble",
}
KEPT = {
    "accuracy of the most certain half": "accuracy of the most certain half",
    "area under the curve": "area under accuracy-rejection",
    "distance to softmax": "distance of rejection curve to softmax",
}


def render(result: Mapping[str, Any]) -> str:
    """Measures over all steps, then every step, then rejection by aleatoric uncertainty.

    Args:
        result: of the study, as its file has it.
    """
    found = {(row["train"], row["ood"], row["method"], row["metric"]): row for row in result["rows"]}
    over, kept, steps = [], [], []
    for train, curves in result["curves"].items():
        kind = curves["kind"]
        over += [[train, method, *_cells(found, train, kind, method, MOVED)] for method in curves["auroc"]]
        kept += [[train, method, *_cells(found, train, None, method, KEPT)] for method in curves["rejection"]]
        names = [key[1] for key in found if key[0] == train and key[2:] == ("network", "accuracy")]
        lines = [
            [metric, method, *(f"{value:.3f}" for value in curve["mean"])]
            for metric, label in (("accuracy", "accuracy"), ("AUROC", "auroc"))
            for method, curve in curves[label].items()
        ]
        steps.append(table([f"{train}, mean of", "method", *names], lines))
    return "\n\n".join(
        [
            table(["trained on", "method", *MOVED], over),
            *steps,
            table(["trained on", "aleatoric uncertainty of", *KEPT], kept),
        ]
    )


def _cells(
    found: Mapping[Any, Mapping[str, Any]], train: str, ood: str | None, method: str, columns: Mapping[str, str]
) -> list[str]:
    rows = [found.get((train, ood, method, metric)) for metric in columns.values()]
    return ["" if row is None else _cell(row) for row in rows]


def _cell(row: Mapping[str, Any]) -> str:
    """A single repetition has no deviation."""
    return f"{row['mean']:.3f}" + (f" ± {row['std']:.3f}" if row["n"] > 1 else "")
