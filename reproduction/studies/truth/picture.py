"""Errors against the number of samples, both on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from matplotlib.figure import Figure

from hidden_uncertainty.plots.style import COLOURS, GREY, dress

TITLES = {"epistemic error": "epistemic: −log p(z)", "aleatoric error": "aleatoric: h(y|z)"}
DASHES = {"2": "-", "8": ":"}  # by dimension
HUES, MARKS = (*COLOURS, "#7A4B12"), "osD^vP*X"


def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """One curve per density and joint distribution, beside a line that falls with the root of n.

    Args:
        rows: of the study.

    Example:
        >>> about = {"data": "numbers, d = 2", "method": "a density", "variant": "yes", "metric": "epistemic error"}
        >>> rows = [about | {"samples": n, "mean": 1 / n, "std": 0.0, "n": 5} for n in (10, 100)]
        >>> figure = draw([*rows, about | {"metric": "epistemic slope", "mean": -1.0, "std": 0.0, "n": 5}])
        >>> [ax.get_title() for ax in figure.axes]
        ['epistemic: −log p(z)', 'aleatoric: h(y|z)']
    """
    whole = {(row["data"], row["method"]) for row in rows if row["metric"].endswith("slope")}
    shown = [row for row in rows if row["metric"] in TITLES and (row["data"], row["method"]) in whole]
    kinds = list(dict.fromkeys((row["data"].split(", d")[0], row["method"]) for row in shown))
    curves = dict.fromkeys((row["data"], row["method"]) for row in shown)
    figure = Figure(figsize=(12, 6.4), layout="constrained", facecolor="white")
    for ax, (metric, title) in zip(figure.subplots(1, 2, sharex=True, sharey=True), TITLES.items(), strict=True):
        dress(ax)
        for data, method in curves:
            own = [row for row in shown if (row["data"], row["method"], row["metric"]) == (data, method, metric)]
            i = kinds.index((data.split(", d")[0], method))
            ax.plot(
                [row["samples"] for row in own],
                [row["mean"] for row in own],
                color=HUES[i % len(HUES)],
                linestyle=DASHES[data[-1]],
                marker=MARKS[i % len(MARKS)],
                markersize=4.5,
                label=f"{data}: {method}",
            )
        sizes = sorted({row["samples"] for row in shown})
        first = [row["mean"] for row in shown if row["metric"] == metric and row["samples"] == sizes[0]]
        line = [geometric_mean(first or [1.0]) * (sizes[0] / n) ** 0.5 for n in sizes]
        ax.plot(sizes, line, color=GREY, linestyle=(0, (6, 3)), linewidth=2.5, label="n to the power −1/2", zorder=1)
        ax.set(title=title, xlabel="samples n", xscale="log", yscale="log")
    figure.axes[0].set_ylabel("mean absolute error (nats)")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure
