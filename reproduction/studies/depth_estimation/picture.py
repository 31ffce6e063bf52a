"""Pictures of the depth study: RMSE below a threshold of uncertainty, distributions of depths, and maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from hidden_uncertainty.plots import dress
from hidden_uncertainty.plots.style import COLOURS, GREY, INK

METHODS = {
    "flow-paper": ("flow, the paper's training", COLOURS[4], "-"),
    "flow": ("flow", COLOURS[0], "-"),
    "joint-mixture": ("joint mixture", COLOURS[2], "-"),
    "flow-label": ("flow given labels", COLOURS[0], "--"),
    "joint-mixture-label": ("joint mixture given labels", COLOURS[2], "--"),
    "ensemble": ("ensemble", COLOURS[1], "-"),
    "mc-dropout": ("MC dropout", COLOURS[5], "-"),
}
FITS = {"beta-prime": ("beta prime", COLOURS[1]), "gaussian": ("Gaussian", COLOURS[0]), "histogram": ("histogram", INK)}
NUMBERS, SCORES = "viridis", "inferno"
TAIL = 0.01  # share of a map's pixels beyond its colours, at both ends


def draw_errors(curves: Mapping[str, Any]) -> Figure:
    """RMSE of the pixels below each percentile of uncertainty: aleatoric, and epistemic.

    Args:
        curves: of the study.
    """
    figure = Figure(figsize=(11, 5.3), layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2, sharey=True)
    for ax, kind in zip(panels, ("aleatoric", "epistemic"), strict=True):
        dress(ax)
        for method, curve in curves[kind].items():
            label, colour, dashes = METHODS[method]
            ax.plot(curves["percentiles"], curve, dashes, color=colour, linewidth=1.8, label=label)
        ax.plot(
            curves["percentiles"], curves["oracle"]["network"], ":", color=GREY, linewidth=1.4, label="by the error"
        )
        ax.set_xlabel(f"percentile of {kind} uncertainty")
        ax.set_xlim(0, 101)
    panels[0].set_ylabel("RMSE of the pixels below (m)")
    panels[0].set_ylim(bottom=0)
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=10, labelcolor=INK)
    return figure


def draw_fits(curves: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The distributions of predictions and of depths, with the fitted ones.

    Args:
        curves: of each, densities over `at`.
    """
    figure = Figure(figsize=(5 * len(curves) + 0.5, 3.8), layout="constrained", facecolor="white")
    for ax, (what, found) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        dress(ax)
        at = np.array(found["at"])
        ax.bar(at, found["numbers"], width=at[1] - at[0], color="#D5D5D5", label=what)
        for name, (label, colour) in FITS.items():
            if name == "histogram":
                ax.step(at, found[name], where="mid", color=colour, linewidth=1.0, label=label)
            else:
                ax.plot(at, found[name], color=colour, linewidth=1.8, label=label)
        ax.set_xlabel("depth (m)")
        ax.set_ylabel("density")
        legend = ax.legend(loc="upper right", frameon=False)
        for text in legend.get_texts():
            text.set(size=10, color=INK)
    return figure


def draw_maps(maps: Mapping[str, Tensor]) -> Figure:
    """One row per image, one column per map; each map has its own colours.

    Args:
        maps: (count, H, W), by what they show.
    """
    count, height, width = next(iter(maps.values())).shape
    figure = Figure(
        figsize=(2.1 * len(maps), (2.1 * height / width + 0.45) * count + 0.3), layout="constrained", facecolor="white"
    )
    lines = figure.subplots(count, len(maps), squeeze=False)
    for i, line in enumerate(lines):
        for j, (ax, (name, values)) in enumerate(zip(line, maps.items(), strict=True)):
            _panel(ax, values[i].double().numpy(), name if i == 0 else "", NUMBERS if j == 0 else SCORES)
    return figure


def _panel(ax: Axes, values: np.ndarray, title: str, colours: str) -> None:
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(color=GREY, linewidth=0.6)
    ax.set_title(title, loc="left", size=10, color=INK)
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [TAIL, 1 - TAIL]) if len(finite) else (0.0, 1.0)
    drawn = ax.imshow(values, cmap=colours, vmin=low, vmax=high if high > low else low + 1, interpolation="nearest")
    bar = ax.figure.colorbar(drawn, ax=ax, orientation="horizontal", fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, color=GREY, labelcolor=INK, length=2)
    bar.ax.locator_params(nbins=4)
