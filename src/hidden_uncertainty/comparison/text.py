"""A comparison as text: aligned for a terminal, or in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .table import Comparison

Column = tuple[str | None, str]  # the data to be detected, or None, and the metric
Format = Callable[[float], str]


def significant(value: float) -> str:
    """Three significant digits, without an exponent.

    Example:
        >>> significant(0.020123), significant(12.345), significant(0)
        ('0.0201', '12.3', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


DETECTION: dict[str, tuple[str, Format]] = {
    "auroc": ("AUROC", "{:.3f}".format),
    "average precision": ("AP", "{:.3f}".format),
    "fpr95": ("FPR95", "{:.3f}".format),
}
OTHER: dict[str, tuple[str, Format]] = {
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
    "peak MiB": ("peak MiB", "{:.1f}".format),
    "kept MiB": ("kept MiB", "{:.2f}".format),
}


def as_text(comparison: Comparison) -> str:
    """Two aligned tables, detection first, and what they are about."""
    blocks = []
    for part in (DETECTION, OTHER):
        columns = _columns(comparison, part)
        if columns:
            above = ["", *(ood or "" for ood, _ in columns)]
            heads = ["method", *(part[metric][0] for _, metric in columns)]
            blocks.append(_aligned(above, [heads, *_lines(comparison, columns, part)]))
    return "\n\n".join([*blocks, *_about(comparison)])


def as_markdown(comparison: Comparison) -> str:
    """The same in Markdown, with deviations beside the means of several runs."""
    blocks = []
    for part in (DETECTION, OTHER):
        columns = _columns(comparison, part)
        if columns:
            heads = ["method", *(part[metric][0] + f", {ood}" * (ood is not None) for ood, metric in columns)]
            lines = [heads, ["---", *["--:"] * len(columns)]]
            lines += _lines(comparison, columns, part, deviations=True)
            blocks.append("\n".join(_markdown_row(line) for line in lines))
    return "\n\n".join([*blocks, *_about(comparison)]) + "\n"


def _markdown_row(cells: list[str]) -> str:
    r"""A bar in a name, as in p(y|x), must not begin another column.

    Example:
        >>> print(_markdown_row(["p(y|x)", "0.5"]))
        | p(y\|x) | 0.5 |
    """
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _columns(comparison: Comparison, part: Mapping[str, Any]) -> list[Column]:
    there = {(row["ood"], row["metric"]) for row in comparison.rows}
    return [(ood, metric) for ood in (None, *comparison.ood) for metric in part if (ood, metric) in there]


def _lines(
    comparison: Comparison, columns: list[Column], part: Mapping[str, tuple[str, Format]], *, deviations: bool = False
) -> list[list[str]]:
    """One line a method that has any of the columns."""
    rows = {(row["method"], row["ood"], row["metric"]): row for row in comparison.rows}
    lines = []
    for method in comparison.methods:
        cells = []
        for column in columns:
            row, show = rows.get((method, *column)), part[column[1]][1]
            text = "" if row is None else show(row["value"])
            several = row is not None and deviations and row.get("n", 1) > 1
            cells.append(f"{text} ± {show(row['std'])}" if row is not None and several else text)
        if any(cells):
            lines.append([method, *cells])
    return lines


def _aligned(above: list[str], lines: list[list[str]]) -> str:
    """Names to the left, numbers to the right; above a run of columns, once, what they have in common."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    starts = [i for i in range(len(above)) if i == 0 or above[i] != above[i - 1]]
    top = ""
    for start, end in zip(starts, [*starts[1:], len(above)], strict=True):
        short = len(above[start]) - sum(widths[start:end]) - 2 * (end - start - 1)
        widths[end - 1] += max(short, 0)
        top += above[start].ljust(sum(widths[start:end]) + 2 * (end - start))
    texts = [top] if top.strip() else []
    for name, *cells in lines:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        texts.append("  ".join([name.ljust(widths[0]), *numbers]))
    return "\n".join(text.rstrip() for text in texts)


def _about(comparison: Comparison) -> list[str]:
    about = comparison.about
    if not about:
        return []
    inputs = ", ".join(f"{name} {count:,}" for name, count in about["inputs"].items())
    runs = max((row.get("n", 1) for row in comparison.rows), default=1)
    rounds, threads = _count(about["rounds"], "round"), _count(about["threads"], "thread")
    return [
        f"Inputs: {inputs}.{f' Means of {runs} runs.' * (runs > 1)} Times: median of {rounds} over "
        f"{about['timed inputs']:,} inputs, {about['batch']} a batch, {threads}, on {about['device']}; "
        f"{about['hardware']}."
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
