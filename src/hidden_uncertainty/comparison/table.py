"""What a comparison found: rows, and from them tables, a file and a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Self

from .text import as_markdown, as_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORWARD = "forward pass"  # the network alone, a row of its own to compare costs with


@dataclass(eq=False, repr=False)
class Comparison:
    """What `compare` found. Print it, or turn it into Markdown, a file or a picture.

    Args:
        rows: flat objects: `method`, `ood` (None for what is not about detection), `metric`, `value`; and, of several
            runs, the deviation `std` and their number `n`.
        about: inputs, timing, hardware and versions.

    Example:
        >>> rows = [{"method": "density", "ood": "letters", "metric": "auroc", "value": 0.975}]
        >>> rows += [{"method": "density", "ood": None, "metric": "ms per input", "value": 0.0213}]
        >>> Comparison(rows)
                 letters
        method     AUROC
        density    0.975
        <BLANKLINE>
        method   ms/input
        density    0.0213
    """

    rows: list[dict[str, Any]]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """Their names, in order."""
        return list(dict.fromkeys(row["method"] for row in self.rows))

    @property
    def ood(self) -> list[str]:
        """Names of the data to be detected, in order."""
        return list(dict.fromkeys(row["ood"] for row in self.rows if row["ood"] is not None))

    def value(self, method: str, metric: str, ood: str | None = None) -> float | None:
        """One number; None where it was not measured."""
        asked = (method, metric, ood)
        same = (row["value"] for row in self.rows if (row["method"], row["metric"], row["ood"]) == asked)
        return next(same, None)

    @classmethod
    def mean(cls, runs: Sequence[Self]) -> Self:
        """The mean of several runs of one comparison, each row with its deviation over the runs.

        Example:
            >>> run = Comparison([{"method": "density", "ood": None, "metric": "accuracy", "value": 0.5}])
            >>> Comparison.mean([run, run]).rows
            [{'method': 'density', 'ood': None, 'metric': 'accuracy', 'value': 0.5, 'std': 0.0, 'n': 2}]
        """
        if not runs:
            raise ValueError("there are no comparisons to average: expected at least one.")
        values: dict[tuple[str, str | None, str], list[float]] = {}
        for run in runs:
            for row in run.rows:
                values.setdefault((row["method"], row["ood"], row["metric"]), []).append(row["value"])
        for (method, _, metric), found in values.items():
            if len(found) != len(runs):
                raise ValueError(
                    f"{metric!r} of {method!r} was measured in {len(found)} of {len(runs)} comparisons: average runs "
                    "of one and the same."
                )
        rows = [
            {"method": method, "ood": ood, "metric": metric, "value": fmean(found), **_spread(found)}
            for (method, ood, metric), found in values.items()
        ]
        return cls(rows, runs[0].about)

    def __repr__(self) -> str:
        return as_text(self)

    def to_markdown(self) -> str:
        """Tables of detection, and of errors and cost, in Markdown."""
        return as_markdown(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything as JSON, whole or not at all.

        Args:
            path: where to; folders are made. An existing file is replaced.
        """
        path = Path(path)
        content = json.dumps({"about": self.about, "rows": self.rows}, indent=2, ensure_ascii=False) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(content, encoding="utf-8")
        part.replace(path)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not {"about", "rows"} <= set(content):
            raise ValueError(f"'{path}' is no saved comparison: expected a JSON object with 'about' and 'rows'.")
        return cls(content["rows"], content["about"])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the AUROC of each method, and beside it what scoring costs.

        Args:
            ax: where to draw; a new one by default. The costs come to its right.
        """
        from .picture import draw  # matplotlib takes a second to import

        return draw(self, ax)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"std": stdev(values) if len(values) > 1 else 0.0, "n": len(values)}
