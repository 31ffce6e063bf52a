"""Pictures of scores, in one style: distributions, ROC curves, accuracy against rejection.

Every function draws on the Axes it is given, or on a new one, and returns it. Nothing goes through pyplot, so no
global state changes and no screen is needed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from hidden_uncertainty import metrics
from hidden_uncertainty.metrics import Values

T = TypeVar("T")

# Okabe and Ito's colours, told apart with every kind of colour vision; their yellow is too pale for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", ":", "-.")  # the second round of colours is dashed, and so on
_INK, _GREY = "#333333", "#8C8C8C"
_POINTS = 2000  # more are not seen, and ten million take minutes to draw
_INSIDE = 5  # names that a legend holds before it covers the curves
_TAIL = 0.01  # share of a group that may fall outside the picture on each side


def plot_scores(
    groups: Mapping[str, Values],
    *,
    ax: Axes | None = None,
    threshold: float | None = None,
    height: Literal["density", "peak"] = "density",
    label: str = "epistemic uncertainty (nats)",
) -> Axes:
    """Histograms of scores, one a group, as densities.

    The picture covers at least the middle 98 % of every group. What falls outside is not drawn, but counts in the
    density, and the legend tells its share when it is above 2 %.

    Args:
        groups: scores by name, any shape; infinite ones are legal.
        ax: where to draw; a new one by default.
        threshold: a score to mark with a line.
        height: `"density"`, or `"peak"` to scale every group to the same height, which keeps a wide group visible
            beside a narrow one.
        label: of the horizontal axis.

    Example:
        >>> ax = plot_scores({"familiar": [1.0, 2.0, 2.0, 3.0], "unknown": [4.0, 5.0, 6.0]}, threshold=3.5)
        >>> ax.get_xlabel()
        'epistemic uncertainty (nats)'
    """
    scores = {name: _array(values, name) for name, values in _some(groups).items()}
    finite = {name: values[np.isfinite(values)] for name, values in scores.items()}
    ranges = [np.quantile(values, [_TAIL, 1 - _TAIL]) for values in finite.values() if len(values)]
    if not ranges:
        raise ValueError("every score is infinite: there is nothing to draw")
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    if threshold is not None:
        low, high = min(low, threshold), max(high, threshold)
    margin = 0.04 * (high - low) or 0.5
    low, high = low - margin, high + margin

    ax = _axes(ax)
    for i, (name, values) in enumerate(scores.items()):
        heights, edges = _density(finite[name], len(values), low, high)
        if height == "peak":
            heights = heights / (heights.max() or 1.0)
        outside = 1 - ((values >= low) & (values <= high)).mean()
        text = f"{name} ({outside:.0%} outside)" if outside > 2 * _TAIL else name
        colour, dashes = _style(i)
        ax.stairs(heights, edges, fill=True, color=colour, alpha=0.25)
        ax.stairs(heights, edges, color=colour, linewidth=1.4, linestyle=dashes, label=text)
    if threshold is not None:
        ax.axvline(threshold, color=_INK, linewidth=1.2, linestyle="--", label=f"threshold {threshold:.4g}")
    ax.set_xlim(low, high)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(label)
    ax.set_ylabel("density" if height == "density" else "density, relative to the peak")
    ax.grid(visible=False, axis="x")
    _legend(ax, "best")
    return ax


def plot_roc(groups: Mapping[str, tuple[Values, Values]], *, ax: Axes | None = None) -> Axes:
    """ROC curves, one a name, with the area under each in the legend.

    Args:
        groups: scores of in-distribution inputs and of the inputs to be detected, by name.
        ax: where to draw; a new one by default.

    Example:
        >>> ax = plot_roc({"epistemic": ([1.0, 2.0, 3.0], [2.5, 4.0, 5.0])})
        >>> ax.get_legend().get_texts()[0].get_text()
        'epistemic: 0.889'
    """
    ax = _axes(ax, width=4.6 if len(groups) <= _INSIDE else 6.6, height=4.6)
    ax.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle=(0, (2, 2)))
    for i, (name, (negative, positive)) in enumerate(_some(groups).items()):
        fpr, tpr = metrics.roc_curve(negative, positive)
        area = metrics.auroc(negative, positive)
        _line(ax, i, fpr, tpr, along=fpr + tpr, label=f"{name}: {area:.3f}")
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.set_aspect("equal")
    ax.set_xlabel("false positive rate")
    ax.set_ylabel("true positive rate")
    _legend(ax, "lower right", title="AUROC")
    return ax


def plot_accuracy_rejection(groups: Mapping[str, tuple[Values, Values]], *, ax: Axes | None = None) -> Axes:
    """Accuracy against the share of inputs kept, the most uncertain rejected first, with AURC in the legend.

    Drawn from one input in a hundred on: below that a handful of inputs decides.

    Args:
        groups: uncertainty and whether the prediction was right, by name.
        ax: where to draw; a new one by default.

    Example:
        >>> ax = plot_accuracy_rejection({"aleatoric": ([0.1, 0.2, 0.3, 0.9], [True, True, True, False])})
        >>> ax.get_legend().get_texts()[0].get_text()
        'aleatoric: 0.0625'
    """
    ax = _axes(ax)
    bottom = 1.0
    for i, (name, (uncertainty, correct)) in enumerate(_some(groups).items()):
        kept, accuracy = metrics.accuracy_rejection(uncertainty, correct)
        area = metrics.aurc(uncertainty, correct)
        drawn = kept >= 0.01
        _line(ax, i, kept[drawn], accuracy[drawn], along=kept[drawn], label=f"{name}: {area:.4f}")
        # The left end is still noisy, and must not set the range.
        bottom = min(bottom, float(accuracy[kept >= 0.05].min()))
    height = 1 - bottom or 1.0
    # Curves fall to the right and may run flat along the bottom: the legend gets room below them.
    room = 0.12 * (len(groups) + 1) if len(groups) <= _INSIDE else 0.05
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(bottom - room * height, 1 + 0.05 * height)
    ax.set_xlabel("share of inputs kept")
    ax.set_ylabel("accuracy of the kept")
    _legend(ax, "lower left", title="AURC (lower is better)")
    return ax


def new_axes(*, width: float = 6.0, height: float = 4.0) -> Axes:
    """An empty Axes in the style of the others, on a Figure of its own.

    Args:
        width: of the figure, in inches.
        height: of the figure, in inches.

    Example:
        >>> new_axes(width=5, height=3).figure.get_size_inches().tolist()
        [5.0, 3.0]
    """
    ax = Figure(figsize=(width, height), layout="compressed", facecolor="white").subplots()
    _dress(ax)
    return ax


def save(picture: Figure | Axes, path: str | os.PathLike[str]) -> Path:
    """Write a picture to a file whose ending says the format; the file is whole or not there.

    Args:
        picture: a Figure, or any Axes on it.
        path: where to; folders are made. An existing file is replaced.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(new_axes(), f"{folder}/plots/empty.png").name
        'empty.png'
    """
    path = Path(path)
    figure = picture.figure.figure if isinstance(picture, Axes) else picture  # through any SubFigure
    known = figure.canvas.get_supported_filetypes()
    ending = path.suffix[1:].lower()
    if ending not in known:
        raise ValueError(f"cannot tell the format of {str(path)!r}: end it in one of {', '.join(sorted(known))}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=ending, dpi=160)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(buffer.getvalue())
    part.replace(path)
    return path


def _axes(ax: Axes | None, width: float = 6.0, height: float = 4.0) -> Axes:
    if ax is None:
        return new_axes(width=width, height=height)
    _dress(ax)
    return ax


def _dress(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(_GREY)
    ax.tick_params(labelsize=10, color=_GREY, labelcolor=_INK)
    ax.grid(visible=True, color="#E6E6E6", linewidth=0.8)
    ax.set_axisbelow(True)
    for text in (ax.xaxis.label, ax.yaxis.label):
        text.set(size=11, color=_INK)
    ax.title.set(size=12, color=_INK)


def _legend(ax: Axes, inside: Literal["best", "lower right", "lower left"], title: str = "") -> None:
    """Name the curves, in the corner they leave free; many names go beside the picture instead."""
    handles, _ = ax.get_legend_handles_labels()
    if len(handles) <= _INSIDE:
        legend = ax.legend(loc=inside)
    else:
        legend = ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    legend.set_title(title)
    legend.set_alignment("left")
    legend.get_frame().set(linewidth=0, alpha=0.9)
    for text in (legend.get_title(), *legend.get_texts()):
        text.set(size=10, color=_INK)


def _style(i: int) -> tuple[str, str]:
    return _COLOURS[i % len(_COLOURS)], _DASHES[i // len(_COLOURS) % len(_DASHES)]


def _line(ax: Axes, i: int, x: Tensor, y: Tensor, *, along: Tensor, label: str) -> None:
    """Draw a curve, thinned to points evenly spaced in `along`, which rises."""
    colour, dashes = _style(i)
    if len(along) > _POINTS:
        steps = torch.linspace(float(along[0]), float(along[-1]), _POINTS, dtype=along.dtype, device=along.device)
        keep = torch.searchsorted(along, steps).unique()
        x, y = x[keep], y[keep]
    ax.plot(x.cpu().numpy(), y.cpu().numpy(), color=colour, linestyle=dashes, linewidth=1.8, label=label)


def _density(values: np.ndarray, count: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Heights and edges of a histogram over [low, high] whose area is the share of `count` that lies inside.

    The number of bars follows the group's own size (Rice's rule) and spread: one width for all would leave a narrow
    group a single bar.
    """
    spread = np.subtract(*np.quantile(values, [1 - _TAIL, _TAIL])) if len(values) else 0.0
    width = spread / min(max(2 * len(values) ** (1 / 3), 5), 60)
    width = min(max(width, (high - low) / 400), (high - low) / 10)
    edges = np.linspace(low, high, round((high - low) / width) + 1)
    return np.histogram(values, edges)[0] / (count * np.diff(edges)), edges


def _array(values: Values, name: str) -> np.ndarray:
    return metrics.as_scores(values, repr(name)).flatten().cpu().numpy()


def _some(groups: Mapping[str, T]) -> Mapping[str, T]:
    if not groups:
        raise ValueError("groups is empty: give at least one name with its data")
    return groups
