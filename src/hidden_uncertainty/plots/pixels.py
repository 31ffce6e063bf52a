"""Maps of predictions and uncertainties beside their image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ..metrics import Values
from ..uncertainty import Uncertainty
from .style import GREY, INK

# Twenty colours in an order that keeps the first ones furthest apart; muted, since they fill whole areas.
CLASS_COLOURS = (
    *("#4E79A7", "#F28E2B", "#59A14F", "#E15759", "#B07AA1", "#EDC948", "#76B7B2", "#9C755F", "#FF9DA7", "#2F4B7C"),
    *("#A0CBE8", "#8CD17D", "#FFBE7D", "#D4A6C8", "#5B2A1D", "#B6992D", "#7A5195", "#C2185B", "#00695C", "#79706E"),
)
_NOTHING = "#D9D9D9"  # ignored pixels, and those without a number
_NUMBERS, _SCORES = "viridis", "inferno"


def plot_maps(
    maps: Uncertainty | Mapping[str, Values],
    *,
    image: Values | None = None,
    prediction: Values | None = None,
    label: Values | None = None,
    classes: Sequence[str] | None = None,
    ignore: int | None = 255,
    tail: float = 0.01,
    columns: int = 4,
) -> Figure:
    """The maps of one image side by side: the image, the prediction, the label, and how uncertain each pixel is.

    Maps may differ in resolution; every panel covers the whole image. Scores are bright where they are high, in
    colours that run between the quantiles `tail` and `1 - tail` of the map, so that a few extreme pixels do not darken
    the rest. Pixels with NaN are grey.

    Args:
        maps: scores by name, (H, W) each; or an `Uncertainty` of one image, whose prediction, epistemic and aleatoric
            uncertainty are shown.
        image: (3, H, W), (H, W, 3) or grey (H, W); bytes, or numbers from 0 to 1.
        prediction: (H, W), classes as integers or numbers as floats.
        label: (H, W), the truth, in the colours of the prediction.
        classes: names, in the order of their numbers.
        ignore: class that is drawn in grey.
        tail: share of pixels beyond the colours at either end, in [0, 0.5).
        columns: panels in a row, at most.

    Example:
        >>> scores = torch.arange(12.0).view(3, 4)
        >>> figure = plot_maps({"epistemic": scores}, prediction=(scores > 5).long(), classes=["road", "sky"])
        >>> [ax.get_title(loc="left") for ax in figure.axes[:2]]
        ['prediction', 'epistemic']
    """
    if not 0 <= tail < 0.5:
        raise ValueError(f"tail must be at least 0 and below 0.5, got {tail}.")
    if isinstance(maps, Uncertainty):
        if len(maps) != 1:
            raise ValueError(f"maps must be of one image, got {len(maps)}: draw u[0].")
        prediction = maps.prediction if prediction is None else prediction
        maps = {"epistemic": maps.epistemic} | ({} if maps.aleatoric is None else {"aleatoric": maps.aleatoric})
    scores = {name: _map(values, name) for name, values in maps.items()}
    truths = {"prediction": prediction, "label": label}
    answers = {name: _map(values, name) for name, values in truths.items() if values is not None}
    pictures = {} if image is None else {"image": _colours_of(image)}
    panels = pictures | answers | scores
    if len(panels) < len(pictures) + len(answers) + len(scores):
        raise ValueError(f"maps must not be called image, prediction or label, got {', '.join(scores)}.")
    if not panels:
        raise ValueError("there is nothing to draw: give at least one map, an image or a prediction.")

    # Prediction and label share their colours, for numbers and for classes.
    numbers = {name: values for name, values in answers.items() if values.dtype.kind == "f"}
    present = {int(c) for name, values in answers.items() if name not in numbers for c in np.unique(values)}
    names = dict(enumerate(() if classes is None else classes))
    named = [(names.get(c, str(c)), CLASS_COLOURS[c % len(CLASS_COLOURS)]) for c in sorted(present - {ignore})]
    palette = np.array([to_rgb(shade) for shade in CLASS_COLOURS])

    height, width = next(iter(panels.values())).shape[:2]
    axes = _grid(len(panels), columns, height / width, named)
    for ax, (name, values) in zip(axes, panels.items(), strict=True):
        ax.set_title(name, loc="left", size=11, color=INK)
        if name in pictures:
            _show(ax, values)
        elif name in scores:
            _show_numbers(ax, values, _limits([values], tail), _SCORES)
        elif name in numbers:
            _show_numbers(ax, values, _limits(numbers.values(), tail), _NUMBERS)
        else:
            left_out = (values == ignore)[..., None]
            colours = np.where(left_out, to_rgb(_NOTHING), palette[values.astype(int) % len(palette)])  # (H, W, 3)
            _show(ax, colours, interpolation="nearest")
    return axes[0].figure.figure


def _map(values: Values, name: str) -> np.ndarray:
    """(H, W), from one image with or without dimensions of length 1 before them."""
    found = values.detach().cpu() if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values))
    while found.dim() > 2 and len(found) == 1:
        found = found[0]
    if found.dim() != 2 or not found.numel():
        raise ValueError(f"{name} must be the map of one image, (H, W), got shape {tuple(found.shape)}.")
    return found.double().numpy() if found.is_floating_point() else found.numpy()


def _colours_of(image: Values) -> np.ndarray:
    """(H, W, 3), from 0 to 1."""
    found = image.detach().cpu() if isinstance(image, torch.Tensor) else torch.from_numpy(np.array(image))
    shape = tuple(found.shape)
    if found.dim() == 4 and len(found) == 1:
        found = found[0]
    if found.dim() == 3 and len(found) in (1, 3):
        found = found.permute(1, 2, 0)
    found = found[..., None] if found.dim() == 2 else found
    if found.dim() != 3 or found.shape[-1] not in (1, 3) or not found.numel():
        raise ValueError(f"image must be (3, H, W), (H, W, 3) or (H, W), got shape {shape}.")
    colours = found.double() if found.is_floating_point() else found.double() / 255
    if not (colours.min() >= 0 and colours.max() <= 1):
        low, high = float(colours.min()), float(colours.max())
        raise ValueError(f"image must hold bytes, or numbers from 0 to 1, got {low:g} to {high:g}: undo the scaling.")
    return colours.expand(-1, -1, 3).numpy()


def _grid(count: int, columns: int, shape: float, names: Sequence[tuple[str, str]]) -> list[Axes]:
    """Empty panels of a height by width, in even rows; below, the names of colours."""
    rows = math.ceil(count / max(columns, 1))
    across = math.ceil(count / rows)
    width = 2.6 / math.sqrt(shape)  # inches; every shape of image gets the same area
    total = across * (width + 0.2)
    fits = max(1, int(total / (0.35 + 0.085 * max((len(name) for name, _ in names), default=0))))
    foot = 0.2 * math.ceil(len(names) / fits)
    figure = Figure(figsize=(total, rows * (width * shape + 0.7) + foot), layout="constrained", facecolor="white")
    panels = [figure.add_subplot(rows, across, place) for place in range(1, count + 1)]
    for ax in panels:
        ax.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], box_aspect=shape, anchor="N")
        ax.spines[:].set(color=GREY, linewidth=0.6)
    if names:
        how: dict[str, Any] = {"handlelength": 0.9, "handleheight": 0.9, "handletextpad": 0.4, "columnspacing": 1.2}
        how |= {"frameon": False, "fontsize": 9, "labelcolor": INK}
        handles = [Patch(facecolor=shade, label=name) for name, shade in names]
        figure.legend(handles=handles, loc="outside lower left", ncols=min(len(names), fits), **how)
    return panels


def _limits(maps: Iterable[np.ndarray], tail: float) -> tuple[float, float]:
    finite = np.concatenate([values[np.isfinite(values)] for values in maps])
    if not len(finite):
        return 0.0, 1.0
    low, high = np.quantile(finite, [tail, 1 - tail])
    # A map that is nearly all one number, such as an entropy of 0, has its quantiles there.
    low, high = (low, high) if low < high else (finite.min(), finite.max())
    room = 0.0 if low < high else 0.5 * max(1.0, abs(low))
    return float(low - room), float(high + room)


def _show(ax: Axes, values: np.ndarray, **how: Any) -> None:
    ax.imshow(values, extent=(0, 1, 1, 0), aspect="auto", **how)


def _show_numbers(ax: Axes, values: np.ndarray, limits: tuple[float, float], colours: str) -> None:
    low, high = limits
    ax.set_facecolor(_NOTHING)
    _show(ax, np.clip(values, low, high), vmin=low, vmax=high, cmap=colours)
    beyond = bool((values < low).any()), bool((values > high).any())
    ends = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[beyond]
    bar = ax.figure.colorbar(ax.images[0], ax=ax, location="bottom", extend=ends, aspect=30, pad=0.02)
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(5, steps=[1, 2, 5, 10])
    bar.ax.tick_params(labelsize=9, color=GREY, labelcolor=INK, length=2.5)
