"""The four panels of the paper's regression figure, and ours beside them."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from torch import Tensor

from hidden_uncertainty import Uncertainty

from ...datasets.toy import GAP, Toy
from .curves import plot_along, plot_regression

SHOWN = 1.5  # the horizontal axis goes from minus this to this


def draw(
    data: Toy,
    scored: Mapping[str, Uncertainty],
    regions: Mapping[str, tuple[Tensor, Tensor]],
    curves: Mapping[str, Tensor],
) -> Figure:
    """Draw predictions with their bands, and the normalised uncertainty of all methods.

    Args:
        data: the curve.
        scored: scores of the grid, by method.
        regions: lower and upper end of the 20 % region on the grid, by density.
        curves: normalised uncertainty along the grid, by method.
    """
    figure = Figure(figsize=(13, 7.4), layout="constrained")
    panels = figure.subplots(2, 3).flatten()
    x = data.grid.x[:, 0]
    shown = x.abs() <= SHOWN
    names = {"flow": "flow (paper's)", "joint-mixture": "joint mixture (our default)"}
    names |= {"ensemble": "ensemble of 10", "gaussian-process": "Gaussian process"}
    for ax, (name, title) in zip(panels, names.items(), strict=False):
        prediction = scored[name].prediction
        if name in regions:
            low, high = regions[name]
            band = "20 % of p(ŷ|z)"
        else:
            spread = scored[name].epistemic.sqrt()
            low, high, band = prediction - spread, prediction + spread, "± deviation"
        plot_regression(
            x[shown],
            prediction[shown],
            low[shown],
            high[shown],
            data=(data.train.x[::3, 0], data.train.y[::3]),
            truth=data.grid.y[shown],
            gap=GAP,
            band=band,
            ax=ax,
        )
        ax.set_title(title)
        ax.set_ylim(-2.2, 2.2)
    ax = panels[4]
    plot_along(
        x[shown],
        {title: curves[name][shown] for name, title in names.items()},
        gap=GAP,
        label="epistemic uncertainty, normalised",
        ax=ax,
    )
    ax.set_title("densities: log(1 + nats above the least); others: deviation", fontsize=9)
    panels[5].set_axis_off()
    for i, (panel, title) in enumerate(((panels[0], "bands"), (ax, "uncertainty along x"))):
        handles, labels = panel.get_legend_handles_labels()
        if i == 0:
            labels = ["20 % of p(ŷ|z), or ± deviation" if label.startswith("20 %") else label for label in labels]
        legend = panels[5].legend(handles, labels, loc=("upper left", "lower left")[i], frameon=False, title=title)
        legend.set_alignment("left")
        panels[5].add_artist(legend)
    for panel in panels[:5]:
        panel.get_legend().remove()
    return figure
