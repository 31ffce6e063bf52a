"""A predicted curve over one input with its band, and uncertainty along that input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from hidden_uncertainty.metrics import Values
from hidden_uncertainty.plots.curves import Scores
from hidden_uncertainty.plots.style import COLOURS, GREY, INK, array, axes, legend, some, style


def plot_regression(
    x: Values,
    prediction: Values,
    low: Values,
    high: Values,
    *,
    data: tuple[Values, Values] | None = None,
    truth: Values | None = None,
    gap: tuple[float, float] | None = None,
    band: str = "interval",
    ax: Axes | None = None,
) -> Axes:
    """A predicted curve over one input with its band, the training data and the gap in it.

    The picture is as high as data and truth need, or else the prediction, with as much room again below and above for
    what goes further, such as the band far from the data; the rest is cut off.

    Args:
        x: inputs (n,) or (n, 1), in any order.
        prediction: at each.
        low: where the band begins; -inf is legal.
        high: where it ends; +inf is legal.
        data: x and y of the training data.
        truth: the true curve at `x`.
        gap: an interval of x to shade.
        band: what to call it in the legend.
        ax: where to draw; a new one by default.

    Example:
        >>> import torch
        >>> x = torch.linspace(-1, 1, 50)
        >>> ax = plot_regression(x, x**2, x**2 - 0.1, x**2 + 0.1, data=([-1.0, 1.0], [1.0, 1.0]), gap=(-0.5, 0.5))
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['gap in the data', 'training data', 'interval', 'prediction']
    """
    given = {"prediction": prediction, "low": low, "high": high} | ({} if truth is None else {"truth": truth})
    at, curves = _along(x, given)
    if (curves["low"] > curves["high"]).any():
        raise ValueError("low must not be above high: give low first.")
    points = None if data is None else (array(data[0], "x of data"), array(data[1], "y of data"))
    bottom, top = _range(curves, None if points is None else points[1])

    ax = axes(ax)
    _shade(ax, gap)
    if points is not None:
        ax.plot(*points, ".", color=GREY, markersize=5, markeredgewidth=0, alpha=0.5, label="training data")
    past = top - bottom  # how far beyond the edge an infinite band is drawn
    low, high = (np.clip(curves[name], bottom - past, top + past) for name in ("low", "high"))
    ax.fill_between(at, low, high, color=COLOURS[0], alpha=0.25, linewidth=0, label=band)
    if truth is not None:
        ax.plot(at, curves["truth"], color=COLOURS[1], linewidth=1.4, linestyle="--", label="truth")
    ax.plot(at, curves["prediction"], color=INK, linewidth=1.8, label="prediction")
    ax.set(xlim=(at[0], at[-1]), ylim=(bottom, top), xlabel="x", ylabel="y")
    legend(ax, "best")
    return ax


def plot_along(
    x: Values,
    groups: Mapping[str, Scores],
    *,
    gap: tuple[float, float] | None = None,
    label: str = "epistemic uncertainty, normalised",
    ax: Axes | None = None,
) -> Axes:
    """Uncertainty along one input, one curve per method, each scaled to run from 0 to 1.

    Methods differ in their units; what can be compared is where each is high. Infinite values are drawn at the edge.

    Args:
        x: inputs (n,) or (n, 1), in any order.
        groups: uncertainty at each, by name.
        gap: an interval of x to shade.
        label: of the vertical axis.
        ax: where to draw; a new one by default.

    Example:
        >>> import torch
        >>> x = torch.linspace(-1, 1, 50)
        >>> ax = plot_along(x, {"density": x**2, "ensemble": x**4 + 3}, gap=(-0.2, 0.2))
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['gap in the data', 'density', 'ensemble']
    """
    at, curves = _along(x, some(groups))
    ax = axes(ax)
    _shade(ax, gap)
    for i, (name, values) in enumerate(curves.items()):
        finite = values[np.isfinite(values)]
        if not len(finite):
            raise ValueError(f"{name!r} is infinite everywhere: there is nothing to draw.")
        low, high = finite.min(), finite.max()
        scaled = (np.clip(values, low, high) - low) / ((high - low) or 1.0)
        colour, dashes = style(i)
        ax.plot(at, scaled, color=colour, linestyle=dashes, linewidth=1.8, label=name)
    ax.set(xlim=(at[0], at[-1]), ylim=(-0.02, 1.02), xlabel="x", ylabel=label)
    legend(ax, "best")
    return ax


def _along(x: Values, curves: Mapping[str, Values]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Inputs from left to right, and each curve at them."""
    at = array(x, "x")
    order = np.argsort(at, kind="stable")
    found = {name: array(values, name) for name, values in curves.items()}
    for name, values in found.items():
        if len(values) != len(at):
            raise ValueError(f"{name!r} must have one value per x, got {len(values)} for {len(at)}.")
    return at[order], {name: values[order] for name, values in found.items()}


def _range(curves: Mapping[str, np.ndarray], data: np.ndarray | None) -> tuple[float, float]:
    """The range of the vertical axis."""
    fixed = [values for values in (curves.get("truth"), data) if values is not None] or [curves["prediction"]]
    heights = np.concatenate(fixed)
    heights = heights[np.isfinite(heights)]
    if not len(heights):
        raise ValueError("every prediction is infinite: there is nothing to draw.")
    low, high = heights.min(), heights.max()
    room = (high - low) or 1.0
    everything = np.concatenate([heights, *curves.values()])
    bottom, top = max(everything.min(), low - room), min(everything.max(), high + room)
    margin = 0.05 * ((top - bottom) or 1.0)
    return bottom - margin, top + margin


def _shade(ax: Axes, gap: tuple[float, float] | None) -> None:
    if gap is not None:
        ax.axvspan(*gap, color="#EDEDED", linewidth=0, zorder=0, label="gap in the data")
