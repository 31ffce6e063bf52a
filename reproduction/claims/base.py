"""Claims, findings, and the rows of result files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = {"MNIST": ("rotation", "rotated {}°", range(20, 181, 20)), "SVHN": ("noise", "noise {}", range(10, 81, 10))}


@dataclass(frozen=True)
class Finding:
    """What was measured about a claim.

    Args:
        where: the data.
        numbers: what was measured, as text.
        holds: whether the claim holds by its rule.
    """

    where: str
    numbers: str
    holds: bool


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Args:
        text: in our words.
        rule: how it is judged.
        judge: applies the rule to result files.
    """

    text: str
    rule: str
    judge: Callable[[Results], Iterator[Finding]]


class Results:
    """Result files of a folder, and their rows by what they are about."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def rows(self, name: str, **about: Any) -> list[dict[str, Any]]:
        """Rows of a study with these values, of its default variant unless another is given."""
        if name not in self._rows:
            path = self.folder / f"{name}.json"
            if not path.is_file():
                raise FileNotFoundError(f"there is no '{path}': make it with python -m reproduction {name}.")
            self._rows[name] = json.loads(path.read_text(encoding="utf-8"))["rows"]
        about = {"variant": "default", **about}
        return [
            row for row in self._rows[name] if all(row.get(key, "default") == value for key, value in about.items())
        ]

    def row(self, name: str, **about: Any) -> dict[str, Any]:
        """The only row with these values."""
        found = self.rows(name, **about)
        if len(found) != 1:
            raise ValueError(f"expected one row of {name!r} with {about}, found {len(found)}.")
        return found[0]

    def mean(self, name: str, **about: Any) -> float:
        """The mean of the only row with these values."""
        return float(self.row(name, **about)["mean"])

    def curve(self, name: str, train: str, method: str, metric: str = "auroc") -> list[float]:
        """A measure at every step of a set's perturbation but the first."""
        _, label, steps = STEPS[train]
        return [self.mean(name, train=train, ood=label.format(step), method=method, metric=metric) for step in steps]
