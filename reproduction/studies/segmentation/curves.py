"""Precision against recall, and the region of high recall enlarged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hidden_uncertainty.metrics import Values, as_scores
from hidden_uncertainty.plots.style import GREY, INK, INSIDE, draw, dress, legend, some


def plot_precision_recall(curves: Mapping[str, tuple[Values, Values]], *, zoom: float = 0.8) -> Figure:
    """Precision against recall, one curve per name, and beside it the region of high recall enlarged.

    The legend holds average precision: the area under each curve as a step function. The dotted line is chance, the
    share of positives.

    Args:
        curves: recall and precision as the threshold falls, by name, as `PixelDetection.precision_recall` gives them.
        zoom: recall from which on the second panel shows the curves, in (0, 1).

    Example:
        >>> figure = plot_precision_recall({"epistemic": ([0.5, 0.5, 1.0], [1.0, 0.5, 0.6])})
        >>> figure.axes[0].get_legend().get_texts()[0].get_text()
        'epistemic: 0.800'
    """
    if not 0 < zoom < 1:
        raise ValueError(f"zoom must be between 0 and 1, got {zoom}.")
    figure = Figure(figsize=(9.4, 4.2), layout="compressed", facecolor="white")
    whole, near = figure.subplots(1, 2)
    top, chances = 0.0, []
    for i, (name, (recall, precision)) in enumerate(some(curves).items()):
        x, y = as_scores(recall, f"recall of {name!r}"), as_scores(precision, f"precision of {name!r}")
        if x.shape != y.shape or x.dim() != 1:
            raise ValueError(f"{name!r} needs one precision per recall, got {tuple(y.shape)} and {tuple(x.shape)}.")
        if (x.diff() < 0).any() or x[0] < 0 or x[-1] > 1:
            raise ValueError(
                f"recall of {name!r} must rise within [0, 1], got {x[0]:g} to {x[-1]:g}: give recall before precision, "
                "and flip curves that fall."
            )
        area = float((torch.nn.functional.pad(x, (1, 0)).diff() * y).sum())
        draw(whole, i, x, y, along=x, label=f"{name}: {area:.3f}")
        # Thinned separately: points that are even over the whole curve would be few here.
        first = max(int(torch.searchsorted(x, zoom)) - 1, 0)
        draw(near, i, x[first:], y[first:], along=x[first:], label=name)
        top = max(top, float(y[x >= zoom].max()) if (x >= zoom).any() else 0.0)
        chances.append(float(y[-1]))
    top = 1.08 * top or 1.0
    for ax in (whole, near):
        dress(ax)
        ax.set_xlabel("recall")
        if max(chances) - min(chances) < 1e-3 * max(chances):
            ax.axhline(chances[0], color=GREY, linewidth=1.2, linestyle=":", label=f"chance: {chances[0]:.3f}")
    region = Rectangle((zoom, 0), 1 - zoom, min(top, 1.0), facecolor="#F0F0F0", edgecolor=GREY, linewidth=0.8, zorder=0)
    whole.add_patch(region)
    whole.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="precision")
    near.set(xlim=(zoom, 1), ylim=(0, top))
    near.locator_params(nbins=5)
    near.set_title(f"from recall {zoom:g} on", loc="left", size=11, color=INK)
    # Curves fall to the right, so the corner above them is free; many names go beside the second panel.
    legend(whole if len(curves) <= INSIDE else near, "best", title="average precision")
    return figure
