"""One style for every picture: colours, axes, legends, and files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..io import replacing
from ..metrics import Values, as_scores
from ..uncertainty import LayerScores, Uncertainty

# Okabe and Ito's colours, told apart with every kind of colour vision; their yellow is too pale for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")  # the second round of colours is dashed, and so on
INK, GREY = "#333333", "#8C8C8C"
POINTS = 2000  # more are not seen, and ten million take minutes to draw
INSIDE = 5  # names that a legend holds before it covers the curves


def save(picture: Figure | Axes, path: str | os.PathLike[str]) -> Path:
    """Write a picture to a file whose ending names the format; it is written whole or not at all.

    Args:
        picture: a Figure, or any Axes on it.
        path: where to; folders are made. An existing file is replaced.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Figure(), f"{folder}/plots/empty.png").name
        'empty.png'
    """
    path = Path(path)
    figure = picture.figure.figure if isinstance(picture, Axes) else picture  # through any SubFigure
    known = figure.canvas.get_supported_filetypes()
    ending = path.suffix[1:].lower()
    if ending not in known:
        raise ValueError(f"cannot tell the format of {str(path)!r}: end it in one of {', '.join(sorted(known))}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        figure.savefig(file, format=ending, dpi=160)
    return path


def axes(ax: Axes | None, width: float = 6.0, height: float = 4.0) -> Axes:
    """The Axes given, dressed, or a new one."""
    ax = ax or Figure(figsize=(width, height), layout="compressed", facecolor="white").subplots()
    dress(ax)
    return ax


def dress(ax: Axes) -> None:
    """Give an Axes made elsewhere the style of the others, in place.

    Example:
        >>> ax = Figure().subplots()
        >>> dress(ax)
        >>> ax.spines["top"].get_visible()
        False
    """
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(labelsize=10, color=GREY, labelcolor=INK)
    ax.grid(visible=True, color="#E6E6E6", linewidth=0.8)
    ax.set_axisbelow(True)
    for text in (ax.xaxis.label, ax.yaxis.label):
        text.set(size=11, color=INK)
    ax.title.set(size=12, color=INK)


def legend(ax: Axes, inside: Literal["best", "lower right", "lower left"], title: str = "") -> None:
    """Name the curves, in a free corner; many names go beside the picture instead."""
    few = len(ax.get_legend_handles_labels()[0]) <= INSIDE
    how: dict[str, Any] = {"loc": inside} if few else {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
    how |= {"alignment": "left", "framealpha": 0.9, "fontsize": 10, "title_fontsize": 10, "labelcolor": INK}
    legend = ax.legend(title=title, **how)
    legend.get_frame().set_linewidth(0)
    legend.get_title().set_color(INK)


def style(i: int) -> tuple[str, str]:
    """Colour and dashes of the i-th curve."""
    return COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]


def draw(ax: Axes, i: int, x: Tensor, y: Tensor, *, along: Tensor, label: str) -> None:
    """Draw a curve, thinned to points evenly spaced in `along`, which rises."""
    colour, dashes = style(i)
    if len(along) > POINTS:
        steps = torch.linspace(float(along[0]), float(along[-1]), POINTS, dtype=along.dtype, device=along.device)
        keep = torch.searchsorted(along, steps).unique()
        x, y = x[keep], y[keep]
    ax.plot(x.cpu().numpy(), y.cpu().numpy(), color=colour, linestyle=dashes, linewidth=1.8, label=label)


def array(values: Values, name: str) -> np.ndarray:
    """Flat float64 numbers; an error with their name when there are none or some are NaN."""
    return as_scores(values, repr(name)).flatten().cpu().numpy()


def some(groups: Mapping[str, Any]) -> dict[str, Any]:
    """The groups themselves, if there are any; of an `Uncertainty`, alone or in a pair, the epistemic scores."""
    if not isinstance(groups, Mapping):
        raise TypeError(
            f"expected a mapping from names to what is drawn, such as {{'test': ...}}, not {type(groups).__name__}."
        )
    if not groups:
        raise ValueError("groups is empty: give at least one name with its data.")
    return {name: _scores(data) for name, data in groups.items()}


def _scores(data: Any) -> Any:
    if isinstance(data, tuple | list) and len(data) == 2:
        return tuple(map(_scores, data))
    return data.epistemic if isinstance(data, Uncertainty | LayerScores) else data
