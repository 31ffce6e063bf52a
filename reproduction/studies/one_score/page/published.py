"""Our baselines beside the numbers that OpenOOD published for them, on networks trained by the same recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....markdown import spread, table
from ..methods import SOFTMAX

METHODS = (SOFTMAX, "energy", "GEN", "nearest neighbours", "Mahalanobis", "relative Mahalanobis", "ViM")
PUBLISHED: Mapping[str, Mapping[str, tuple[float, ...]]] = {  # AUROC of `METHODS`, in points, by known and unknown set
    "CIFAR10, ResNet-18": {
        "CIFAR100": (87.19, 86.36, 87.21, 89.73, 83.59, 88.83, 87.75),
        "SVHN": (91.46, 91.79, 91.97, 92.67, 91.18, 91.84, 94.50),
        "MNIST": (92.63, 94.32, 93.83, 94.26, 90.10, 93.22, 94.76),
    },
    "CIFAR100, ResNet-18": {
        "CIFAR10": (78.47, 79.05, 79.38, 77.02, 55.87, 77.75, 72.21),
        "SVHN": (78.42, 82.03, 81.41, 84.15, 70.68, 84.89, 83.14),
        "MNIST": (76.08, 79.18, 78.29, 82.36, 67.47, 79.74, 81.89),
    },
}


def beside(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table per known set, or nothing where none of these networks was run."""
    parts = []
    for train, sets in PUBLISHED.items():
        found = {(row["method"], row["ood"]): row for row in rows if (row["train"], row["metric"]) == (train, "auroc")}
        if found:
            lines = []
            for place, method in enumerate(METHODS):
                cells = [(spread(found[method, ood]), f"{values[place] / 100:.3f}") for ood, values in sets.items()]
                lines.append([method, *(cell for pair in cells for cell in pair)])
            head = [train, *(cell for ood in sets for cell in (ood, "published"))]
            parts.append(table(head, lines))
    if not parts:
        return ""
    text = "Published: OpenOOD 1.5 (Zhang et al. 2023), three networks by the same recipe, asked about other parts of "
    text += (
        "the same sets. Its neighbours, GEN and ViM have settings that were searched on outliers set apart for that."
    )
    return "\n\n".join(["**Our baselines beside published numbers.**", *parts, text])
