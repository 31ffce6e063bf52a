"""The paper's two figures of layers: accuracy and AUROC against the perturbation, and accuracy against rejection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hidden_uncertainty.plots import dress
from hidden_uncertainty.plots.style import COLOURS, INK

Curves = Mapping[str, Mapping[str, Any]]  # by set, as result files keep them

LAYERS = ("#A6CEE3", "#4E9FD1", "#1B5FA8", "#0B1F4B")  # from shallow to deep
OTHERS = {
    "network": (INK, "-"),
    "mc-dropout": (COLOURS[1], "--"),
    "ensemble": (COLOURS[2], "-."),
    "softmax": (INK, ":"),
}
NAMES = {"mc-dropout": "MC dropout", "softmax": "softmax entropy", "network": "single network"}
AXIS = {"rotation": "rotation (degrees)", "noise": "deviation of noise (pixels 0 to 255)"}


def draw_steps(curves: Curves) -> Figure:
    """One row per set: accuracy, AUROC of layers, and AUROC of the deepest layer and other methods.

    Args:
        curves: of the study.
    """
    figure = Figure(figsize=(13.5, 0.6 + 3.6 * len(curves)), layout="constrained", facecolor="white")
    grid = figure.subplots(len(curves), 3, squeeze=False)
    for row, (train, found) in zip(grid, curves.items(), strict=True):
        deep = _layers(found["auroc"])[-1]
        chosen = {
            "accuracy": [*OTHERS][:3],
            "AUROC, layers": _layers(found["auroc"]),
            "AUROC, deepest layer and others": [deep, "mc-dropout", "ensemble"],
        }
        for ax, (title, methods) in zip(row, chosen.items(), strict=True):
            what = "accuracy" if title == "accuracy" else "auroc"
            _lines(ax, found["steps"], found[what], methods, markers=True)
            ax.set_title(f"{train}: {title}")
            ax.set_xlabel(AXIS[found["kind"]])
            ax.set_xticks(found["steps"])
        for ax in row[1:]:
            ax.set_ylim(*_range(found["auroc"], 0.5))
        row[0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        for ax in row:
            _legend(ax)
    return figure


def draw_rejection(curves: Curves) -> Figure:
    """One row per set: accuracy of the images kept by aleatoric uncertainty, of layers and of other methods.

    Args:
        curves: of the study.
    """
    figure = Figure(figsize=(10.5, 0.6 + 3.6 * len(curves)), layout="constrained", facecolor="white")
    grid = figure.subplots(len(curves), 2, squeeze=False)
    for row, (train, found) in zip(grid, curves.items(), strict=True):
        layers = _layers(found["rejection"])
        chosen = {"layers": layers, "deepest layer and others": [layers[-1], "softmax", "mc-dropout", "ensemble"]}
        lowest = min(min(curve["mean"][4:]) for curve in found["rejection"].values())  # the first points are few images
        for ax, (title, methods) in zip(row, chosen.items(), strict=True):
            _lines(ax, found["percentiles"], found["rejection"], methods, markers=False)
            ax.set_title(f"{train}: {title}")
            ax.set_xlabel("images kept, least aleatoric uncertainty first (%)")
            ax.set_ylabel("accuracy of the kept")
            ax.set_ylim(lowest - 0.25 * (1 - lowest), 1 + 0.06 * (1 - lowest))  # room for the legend below
            ax.yaxis.set_major_formatter(PercentFormatter(1))
            _legend(ax, "lower left", columns=2)
    return figure


def _layers(found: Mapping[str, Any]) -> list[str]:
    return [method for method in found if method.startswith("layer-")]


def _lines(ax: Axes, x: Sequence[float], found: Mapping[str, Any], methods: Sequence[str], *, markers: bool) -> None:
    """Means as lines, with a band of one standard deviation to each side."""
    dress(ax)
    layers = _layers(found)
    for method in methods:
        colour, dashes = (LAYERS[layers.index(method)], "-") if method in layers else OTHERS[method]
        mean, std = (np.array(found[method][kind]) for kind in ("mean", "std"))
        label = NAMES.get(method, method.replace("-", " "))
        ax.fill_between(x, mean - std, np.minimum(mean + std, 1), color=colour, alpha=0.18, linewidth=0)
        ax.plot(
            x, mean, dashes, color=colour, linewidth=1.8, marker="o" if markers else "", markersize=3.5, label=label
        )
    margin = 0.02 * (x[-1] - x[0])
    ax.set_xlim(x[0] - margin, x[-1] + margin)


def _range(found: Mapping[str, Any], floor: float) -> tuple[float, float]:
    lowest = min(floor, *(min(curve["mean"]) for curve in found.values()))
    return lowest - 0.03 * (1 - lowest), 1 + 0.03 * (1 - lowest)


def _legend(ax: Axes, place: Literal["best", "lower left"] = "best", columns: int = 1) -> None:
    legend = ax.legend(loc=place, ncols=columns)
    legend.get_frame().set(linewidth=0, alpha=0.9)
    for text in legend.get_texts():
        text.set(size=10, color=INK)
