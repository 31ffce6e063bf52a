"""The UCI study as a picture: one band per table, one mark per method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hidden_uncertainty.plots.style import COLOURS, GREY, INK, dress

MARKS = "osD^vP*X"  # one per method, to read without colours


class Panel(NamedTuple):
    """One of the pictures side by side."""

    title: str
    label: str
    reference: float  # where a line is drawn
    most: float  # that is drawn; for larger ones the number is written


PANELS = {
    "rank correlation of aleatoric with error": Panel("aleatoric uncertainty and error", "rank correlation", 0, 1),
    "rank correlation of epistemic with error": Panel("epistemic uncertainty and error", "rank correlation", 0, 1),
    "width relative to plain": Panel("90 % intervals", "mean width, relative to plain intervals", 1, 1.6),
}
BAND = 0.8  # share of a table's band that its methods use


def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Means over splits for every method and table, with error bars of one standard deviation.

    Args:
        rows: of the study.

    Example:
        >>> about = {"table": "yacht", "method": "ensemble", "metric": "width relative to plain"}
        >>> figure = draw([about | {"mean": 0.8, "std": 0.1, "n": 5}])
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['ensemble']
    """
    shown = [row for row in rows if row["metric"] in PANELS and row["method"] != "plain"]
    tables = list(dict.fromkeys(row["table"] for row in shown))
    methods = list(dict.fromkeys(row["method"] for row in shown))
    figure = Figure(figsize=(13, 1.6 + 0.85 * len(tables)), layout="constrained", facecolor="white")
    panels = figure.subplots(1, len(PANELS), sharey=True, squeeze=False)[0]
    panels[1].sharex(panels[0])  # both are correlations
    for ax, (metric, panel) in zip(panels, PANELS.items(), strict=True):
        dress(ax)
        ax.grid(visible=False, axis="y")
        for place in range(0, len(tables), 2):
            ax.axhspan(place - 0.5, place + 0.5, color="#F5F5F5", linewidth=0, zorder=0)
        ax.axvline(panel.reference, color=GREY, linewidth=1.2, linestyle=(0, (2, 2)))
        for i, method in enumerate(methods):
            own = {row["table"]: row for row in shown if row["metric"] == metric and row["method"] == method}
            shift = BAND * ((i + 0.5) / len(methods) - 0.5)
            _marks(ax, i, [(tables.index(name) + shift, row) for name, row in own.items()], panel.most)
        ax.set_title(panel.title)
        ax.set_xlabel(panel.label)
        ax.tick_params(axis="y", length=0)
    panels[-1].set_xlim(0, panel.most)
    panels[0].set_yticks(range(len(tables)), tables)
    panels[0].set_ylim(len(tables) - 0.5, -0.5)
    handles = [_mark(panels[0], i, method) for i, method in enumerate(methods)]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(methods), frameon=False, labelcolor=INK)
    return figure


def _marks(ax: Axes, i: int, placed: Sequence[tuple[float, dict[str, Any]]], most: float) -> None:
    """Marks, or at the right edge numbers with an arrow where they do not fit."""
    inside = [(place, row) for place, row in placed if row["mean"] <= most]
    for place, row in placed:
        if row["mean"] > most:
            text = f"{row['mean']:.1f} →"
            ax.text(most, place, text, color=_colour(i), size=9, ha="right", va="center", fontweight="bold")
    if inside:
        places, rows = zip(*inside, strict=True)
        means, spreads = [row["mean"] for row in rows], [row["std"] for row in rows]
        ax.errorbar(means, places, xerr=spreads, fmt=_mark_of(i), color=_colour(i), markersize=5, elinewidth=1.2)


def _mark(ax: Axes, i: int, method: str) -> Any:
    """A mark for the legend alone."""
    return ax.plot([], [], _mark_of(i), color=_colour(i), markersize=6, label=method)[0]


def _mark_of(i: int) -> str:
    return MARKS[i % len(MARKS)]


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]
