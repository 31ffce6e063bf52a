"""Maps of the segmentation study: predictions, scores and what was to be found, without photographs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from hidden_uncertainty.plots.pixels import CLASS_COLOURS
from hidden_uncertainty.plots.style import GREY, INK

from ...datasets.dense.base import IGNORE
from ...datasets.dense.cityscapes import CLASSES
from .curves import plot_precision_recall
from .scores import ALEATORIC, EPISTEMIC, IN_LOG

TITLES = {
    EPISTEMIC: "epistemic, −log p(z)",
    ALEATORIC: "aleatoric, h(ŷ|z), underfit",
    IN_LOG: "aleatoric, log h(ŷ|z)",
}
FIRST = 0.02  # recall: below it, precision is that of a few pixels
TAIL = 0.01  # share of pixels beyond the colours, at both ends
TRUTH = ListedColormap(["#F2F2F2", "#000000", "#B5B5B5"])  # known, to be found, ignored: colours of no class


def draw_curves(curves: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    """Precision against recall and its region of high recall; names show the average precision.

    Args:
        curves: recall and precision as the threshold falls, by method.

    Example:
        >>> from torch import tensor
        >>> figure = draw_curves({"epistemic": (tensor([0.5, 1.0]), tensor([0.1, 0.02]))})
        >>> f"{figure.axes[0].get_ylim()[1]:.2f}"
        '0.11'
    """
    areas = {name: float((recall.diff(prepend=recall[:1] * 0) * y).sum()) for name, (recall, y) in curves.items()}
    figure = plot_precision_recall({f"{name}: {areas[name]:.3f}": curve for name, curve in curves.items()})
    # Objects are small, a few pixels per thousand: precision is far from 1.
    highest = max(float(precision[recall >= FIRST].max()) for recall, precision in curves.values())
    figure.axes[0].set_ylim(-0.02 * highest, 1.1 * highest)
    return figure


class Scene(NamedTuple):
    """Maps of one image."""

    name: str  # of the image
    what: str  # what was to be found
    prediction: Tensor  # (H, W)
    scores: dict[str, Tensor]  # (h, w), by method
    truth: Tensor  # (H, W): 1 was to be found, 255 is ignored


def draw_scenes(scenes: Sequence[Scene]) -> Figure:
    """One row per image: the prediction, three scores, bright where they are high, and what was to be found.

    Args:
        scenes: at least one.
    """
    height, width = scenes[0].prediction.shape
    across, deep = 3.0, 3.0 * height / width
    names = sorted({int(c) for scene in scenes for c in scene.prediction.unique().tolist()})
    figure = Figure(
        figsize=(5 * across + 0.6, len(scenes) * (deep + 0.35) + 0.75), layout="constrained", facecolor="white"
    )
    grid = figure.subplots(len(scenes), 2 + len(TITLES), squeeze=False)
    palette = np.array([to_rgb(CLASS_COLOURS[c % len(CLASS_COLOURS)]) for c in range(len(CLASSES))])
    for i, (line, scene) in enumerate(zip(grid, scenes, strict=True)):
        _panel(line[0], "prediction" if i == 0 else "")
        line[0].imshow(palette[scene.prediction.cpu().numpy()], aspect="auto", interpolation="nearest")
        line[0].set_ylabel(scene.name, size=10, color=INK)
        for ax, (method, title) in zip(line[1:-1], TITLES.items(), strict=True):
            _panel(ax, title if i == 0 else "")
            values = scene.scores[method].double().cpu().numpy()
            low, high = np.quantile(values, [TAIL, 1 - TAIL])
            ax.imshow(values, aspect="auto", cmap="inferno", vmin=low, vmax=high if high > low else low + 1)
        _panel(line[-1], scene.what if i == 0 or scene.what != scenes[i - 1].what else "")
        truth = scene.truth.cpu().numpy()
        line[-1].imshow(np.where(truth == IGNORE, 2, truth), aspect="auto", cmap=TRUTH, vmin=0, vmax=2)
        line[-1].images[0].set_interpolation("nearest")
    handles = [Patch(facecolor=palette[c], label=CLASSES[c]) for c in names]
    handles += [Patch(facecolor=TRUTH(1), label="to be found"), Patch(facecolor=TRUTH(2), label="ignored")]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=11, frameon=False, fontsize=9, labelcolor=INK, handlelength=1
    )
    return figure


def _panel(ax: Axes, title: str) -> None:
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(color=GREY, linewidth=0.6)
    ax.set_title(title, loc="left", size=10, color=INK)
