"""The AUROC of each method, and what scoring costs, as one picture."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from mpl_toolkits.axes_grid1 import make_axes_locatable  # type: ignore[import-untyped]

from hidden_uncertainty.comparison import FORWARD, Comparison
from hidden_uncertainty.comparison.table import significant
from hidden_uncertainty.plots.style import COLOURS, GREY, INK, axes, dress

MARKS = "os^DvP*"  # as many as colours, so that they are told apart without them
COST, PURPLE = "ms per input", "#7A5195"


def draw(comparison: Comparison) -> Figure:
    """The AUROC of each method, and to its right what scoring costs."""
    methods = [name for name in comparison.methods if name != FORWARD]
    ax = axes(None, width=9.5, height=1.5 + 0.27 * len(methods))
    for i, ood in enumerate(comparison.ood):
        # One below the other: equal marks would hide each other.
        shift = 0.6 * ((i + 0.5) / len(comparison.ood) - 0.5)
        found = [(comparison.value(name, "auroc", ood), place + shift) for place, name in enumerate(methods)]
        there = {place: value for value, place in found if value is not None}
        colour, mark = COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]
        ax.plot(list(there.values()), list(there), mark, color=colour, markersize=5, label=ood)
    ax.axvline(0.5, color=GREY, linewidth=1, linestyle=(0, (2, 2)))  # chance
    ax.set_yticks(range(len(methods)), methods)
    ax.set_ylim(len(methods) - 0.5, -0.5)
    ax.set_xlabel("AUROC")
    text: dict[str, Any] = {"fontsize": 9, "labelcolor": INK, "columnspacing": 1.0, "handletextpad": 0.2}
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, **text)
    if any(row["metric"] == COST and row["method"] in methods for row in comparison.rows):
        _draw_cost(comparison, methods, ax)
    return ax.figure.figure


def _draw_cost(comparison: Comparison, methods: list[str], ax: Axes) -> None:
    """How far each method is from the plain forward pass, on a logarithmic axis that takes the right of the picture."""
    panel = make_axes_locatable(ax).append_axes("right", size="70%", pad=0.2)
    found = {place: comparison.value(name, COST) for place, name in enumerate(methods)}
    costs = {place: cost for place, cost in found.items() if cost is not None}
    forward = comparison.value(FORWARD, COST)
    for place, cost in costs.items():
        times = comparison.value(methods[place], "times forward")
        text = significant(cost) + ("" if times is None else f" ({times:.1f} ×)")
        if forward is not None:
            panel.plot([forward, cost], [place, place], color=PURPLE, linewidth=2)
        panel.plot(cost, place, "o", color=PURPLE, markersize=6)
        beside = (max(cost, forward or cost), place)
        panel.annotate(text, beside, (7, 0), textcoords="offset points", va="center", size=8.5, color=INK)
    if forward is not None:
        panel.axvline(forward, color=INK, linewidth=1.2, linestyle="--", zorder=1)
        text = f"{FORWARD}: {significant(forward)}"
        panel.annotate(text, (forward, -0.5), (-4, 4), textcoords="offset points", va="bottom", size=9, color=INK)
    everything = [*costs.values(), *([] if forward is None else [forward])]
    left = min(everything) / 1.5
    panel.set_xscale("log")
    panel.set_xlim(left, left * (2 * max(everything) / left) ** 1.5)  # a third of it for the text of the last
    panel.set_ylim(ax.get_ylim())
    panel.set_yticks(range(len(methods)), [""] * len(methods))
    panel.set_xlabel("milliseconds per input")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    dress(panel)
    panel.spines["left"].set_visible(False)
    panel.tick_params(axis="y", length=0)
