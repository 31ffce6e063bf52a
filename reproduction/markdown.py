"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(table(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def spread(row: Mapping[str, Any]) -> str:
    """Mean and deviation of a row of results.

    Example:
        >>> spread({"mean": 0.9, "std": 0.01})
        '0.900 ± 0.010'
    """
    return f"{row['mean']:.3f} ± {row['std']:.3f}"
