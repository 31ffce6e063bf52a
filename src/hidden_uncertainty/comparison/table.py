"""What a comparison found: rows, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

FORWARD = "forward pass"  # the network alone, a row of its own to compare costs with
Part = Mapping[str, tuple[str, Callable[[float], str]]]  # what a metric is called, and how it is written


def significant(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


DETECTION: Part = {
    "auroc": ("AUROC", "{:.3f}".format),
    "average precision": ("AP", "{:.3f}".format),
    "fpr95": ("FPR95", "{:.3f}".format),
}
OTHER: Part = {
    "accuracy": ("accuracy", "{:.3f}".format),
    "aurc epistemic": ("AURC epistemic", "{:.4f}".format),
    "aurc aleatoric": ("AURC aleatoric", "{:.4f}".format),
    "rmse": ("RMSE", significant),
    "ause epistemic": ("AUSE epistemic", "{:.3f}".format),
    "ause aleatoric": ("AUSE aleatoric", "{:.3f}".format),
    "train seconds": ("train s", "{:.1f}".format),
    "fit seconds": ("fit s", "{:.2f}".format),
    "ms per input": ("ms/input", significant),
    "times forward": ("× forward", "{:.1f}".format),
    "kept MiB": ("kept MiB", "{:.2f}".format),
}


@dataclass(eq=False, repr=False)
class Comparison:
    """What `compare` found. Print it as tables in Markdown; `rows` are ready for JSON or a data frame.

    Args:
        rows: flat objects: `method`, `ood` (None for what is not about detection), `metric`, `value`; and, for several
            runs, the deviation `std` and their number `n`.
        about: inputs, timing, hardware and versions.

    Example:
        >>> rows = [{"method": "density", "ood": "letters", "metric": "auroc", "value": 0.975}]
        >>> rows += [{"method": "density", "ood": None, "metric": "ms per input", "value": 0.0213}]
        >>> Comparison(rows)
        | method  | AUROC, letters |
        | ------- | -------------: |
        | density |          0.975 |
        <BLANKLINE>
        | method  | ms/input |
        | ------- | -------: |
        | density |   0.0213 |
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
        """One number; None where it was not measured. A name that is not in the comparison is an error.

        Args:
            method: its name, or `FORWARD` for the network alone.
            metric: one of those that `compare` lists.
            ood: which data is to be detected, for `auroc`, `average precision` and `fpr95`; None for the others.
        """
        for what, name, known in (
            ("method", method, [FORWARD, *self.methods]),
            ("metric", metric, [*DETECTION, *OTHER, *(row["metric"] for row in self.rows)]),
            ("ood", ood, self.ood if metric in DETECTION else [None, *self.ood]),
        ):
            if name not in known:
                there = ", ".join(repr(name) for name in dict.fromkeys(known))
                raise ValueError(f"{what} must be one of {there}, not {name!r}.")
        asked = (method, metric, ood)
        return next((row["value"] for row in self.rows if (row["method"], row["metric"], row["ood"]) == asked), None)

    def __repr__(self) -> str:
        """Tables of detection, and of errors and cost, in Markdown, with deviations beside means of several runs."""
        about = [self._about()] if self.about else []
        return "\n".join([*self._table(DETECTION), *self._table(OTHER), *about]).rstrip()

    def _table(self, part: Part) -> list[str]:
        """The lines of one table, and an empty one; of methods that have any of its numbers."""
        rows = {(row["method"], row["ood"], row["metric"]): row for row in self.rows}
        there = {(ood, metric) for _, ood, metric in rows}
        columns = [(ood, metric) for ood in (None, *self.ood) for metric in part if (ood, metric) in there]
        if not columns:
            return []
        lines = [["method", *(part[metric][0] + f", {ood}" * (ood is not None) for ood, metric in columns)]]
        for method in self.methods:
            cells = []
            for ood, metric in columns:
                row, show = rows.get((method, ood, metric), {}), part[metric][1]
                text = show(row["value"]) if row else ""
                cells.append(f"{text} ± {show(row['std'])}" if row.get("n", 1) > 1 else text)
            if any(cells):
                lines.append([method, *cells])
        # A bar in a name, as in p(y|x), must not begin another column.
        lines = [[cell.replace("|", r"\|") for cell in line] for line in lines]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
        aligned = ([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])] for name, *cells in lines)
        return [*(f"| {' | '.join(line)} |" for line in aligned), ""]

    def _about(self) -> str:
        about = self.about
        inputs = ", ".join(f"{name} {count:,}" for name, count in about["inputs"].items())
        runs = max((row.get("n", 1) for row in self.rows), default=1)
        rounds, threads = about["rounds"], about["threads"]
        return (
            f"Inputs: {inputs}.{f' Means of {runs} runs.' * (runs > 1)} Times: median of {rounds} "
            f"round{'s' * (rounds != 1)} over {about['timed inputs']:,} inputs, {about['batch']} per batch, {threads} "
            f"thread{'s' * (threads != 1)}, on {about['device']}; {about['hardware']}."
        )
