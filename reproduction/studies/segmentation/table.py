"""The segmentation study as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...markdown import table

UNKNOWN = "Lost & Found"
NETWORKS = ("network", "mc-dropout", "majority class")
MEASURES: Mapping[str, tuple[str | None, str, str]] = {
    "misclassified pixels: AUROC": (None, "misclassification auroc", ".3f"),
    "AP": (None, "misclassification ap", ".3f"),
    "unknown objects: AP": (UNKNOWN, "ap", ".3f"),
    "FPR95": (UNKNOWN, "fpr95", ".3f"),
    "AUROC": (UNKNOWN, "auroc", ".3f"),
    "ms per megapixel": (None, "milliseconds per megapixel", ".1f"),
}
Rows = Mapping[tuple[str | None, str, str, str], Mapping[str, Any]]


def render(result: Mapping[str, Any]) -> str:
    """Methods beside the paper's numbers, other readings, and how good the networks are.

    Args:
        result: as its file holds it.
    """
    found = {(row["ood"], row["method"], row["variant"], row["metric"]): row for row in result["rows"]}
    keys = dict.fromkeys((row["method"], row["variant"]) for row in result["rows"])
    methods = [key for key in keys if (None, *key, "misclassification auroc") in found]
    others = [key for key in keys if key[1] != "default"]
    quality = [
        [name, *(_cell(found, (None, name, "default", metric), ".3f") for metric in ("mean iou", "pixel accuracy"))]
        for name in NETWORKS
    ]
    cost = _cell(found, (None, "network", "default", "milliseconds per megapixel"), ".1f")
    zero = _cell(found, (None, "aleatoric", "not underfit", "share of pixels with an entropy of 0"), ".1%")
    plain, dropping = (sum(group) for group in result["settings"]["seconds of training"])
    return "\n\n".join(
        [
            table(["ours / paper", *MEASURES], [_line(found, *key) for key in methods if key[1] == "default"]),
            f"The network's forward pass alone takes {cost} ms per megapixel. Without underfitting, {zero} of the "
            "entropies are exactly 0 in float32.",
            table(["other readings", *MEASURES], [_line(found, *key) for key in others]),
            table(["Cityscapes, validation images", "mean IoU", "pixel accuracy"], quality),
            f"Training took {plain:.0f} s without and {dropping:.0f} s with dropout; networks of an earlier run "
            "are not trained again.",
        ]
    )


def _line(found: Rows, method: str, variant: str) -> list[str]:
    name = method if variant == "default" else f"{method}, {variant}"
    return [name, *(_cell(found, (ood, method, variant, metric), how) for ood, metric, how in MEASURES.values())]


def _cell(found: Rows, key: tuple[str | None, str, str, str], how: str) -> str:
    """A number, its deviation over several repetitions, and the paper's."""
    row = found.get(key)
    if row is None:
        return ""
    text = f"{row['mean']:{how}}" + (f" ± {row['std']:{how}}" if row["n"] > 1 else "")
    return text if row["paper_mean"] is None else f"{text} / {row['paper_mean']:{how}}"
