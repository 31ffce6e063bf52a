"""Distributions of scores; ROC curves; accuracy when the uncertain are rejected."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from .. import metrics
from ..metrics import Values
from ..uncertainty import LayerScores, Uncertainty
from .style import GREY, INK, INSIDE, array, axes, draw, legend, some, style

Scores = Values | Uncertainty | LayerScores  # of which the epistemic scores are drawn
_TAIL = 0.01  # share of a group that may fall outside the picture on each side


def plot_scores(
    groups: Mapping[str, Scores] | Uncertainty,
    *,
    ax: Axes | None = None,
    threshold: float | None = None,
    label: str = "epistemic uncertainty (nats)",
) -> Axes:
    """Histograms of scores, one per group, as densities.

    The picture covers at least the middle 98 % of every group. What falls outside is not drawn, but counts in the
    density, and the legend gives its share when it is above 2 %.

    Args:
        groups: scores by name, any shape; infinite ones are legal. As in all these pictures, an `Uncertainty` may
            stand for its epistemic scores; here also alone, with its threshold.
        ax: where to draw; a new one by default.
        threshold: a score to mark with a line.
        label: of the horizontal axis.

    Example:
        >>> ax = plot_scores({"familiar": [1.0, 2.0, 2.0, 3.0], "unknown": [4.0, 5.0, 6.0]}, threshold=3.5)
        >>> ax.get_xlabel()
        'epistemic uncertainty (nats)'
    """
    if isinstance(groups, Uncertainty):
        threshold = groups.threshold if threshold is None else threshold
        groups = {"inputs": groups}
    scores = {name: array(values, name) for name, values in some(groups).items()}
    finite = {name: values[np.isfinite(values)] for name, values in scores.items()}
    ranges = [np.quantile(values, [_TAIL, 1 - _TAIL]) for values in finite.values() if len(values)]
    if not ranges:
        raise ValueError("every score is infinite: there is nothing to draw.")
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    if threshold is not None:
        low, high = min(low, threshold), max(high, threshold)
    # Between scores that are nearly equal there would be no room for bars: floats have some 16 digits only.
    apart = high - low > 1e-9 * max(abs(low), abs(high))
    margin = 0.04 * (high - low) if apart else 0.5 * max(1.0, abs(high))
    low, high = low - margin, high + margin

    ax = axes(ax)
    for i, (name, values) in enumerate(scores.items()):
        heights, edges = _density(finite[name], len(values), low, high)
        outside = 1 - ((values >= low) & (values <= high)).mean()
        text = f"{name} ({outside:.0%} outside)" if outside > 2 * _TAIL else name
        colour, dashes = style(i)
        ax.stairs(heights, edges, fill=True, color=colour, alpha=0.25)
        ax.stairs(heights, edges, color=colour, linewidth=1.4, linestyle=dashes, label=text)
    if threshold is not None:
        ax.axvline(threshold, color=INK, linewidth=1.2, linestyle="--", label=f"threshold {threshold:.4g}")
    ax.set(xlim=(low, high), ylim=(0, None), xlabel=label, ylabel="density")
    ax.grid(visible=False, axis="x")
    legend(ax, "best")
    return ax


def plot_roc(groups: Mapping[str, tuple[Scores, Scores]], *, ax: Axes | None = None) -> Axes:
    """ROC curves, one per name, with the area under each in the legend.

    Args:
        groups: scores of in-distribution inputs and of the inputs to be detected, by name.
        ax: where to draw; a new one by default.

    Example:
        >>> ax = plot_roc({"epistemic": ([1.0, 2.0, 3.0], [2.5, 4.0, 5.0])})
        >>> ax.get_legend().get_texts()[0].get_text()
        'epistemic: 0.889'
    """
    ax = axes(ax, width=4.6 if len(groups) <= INSIDE else 6.6, height=4.6)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (2, 2)))
    for i, (name, (negative, positive)) in enumerate(some(groups).items()):
        fpr, tpr = metrics.roc_curve(negative=negative, positive=positive)
        area = metrics.auroc(negative=negative, positive=positive)
        draw(ax, i, fpr, tpr, along=fpr + tpr, label=f"{name}: {area:.3f}")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    ax.set(xlabel="false positive rate", ylabel="true positive rate")
    legend(ax, "lower right", title="AUROC")
    return ax


def plot_accuracy_rejection(groups: Mapping[str, tuple[Scores, Values]], *, ax: Axes | None = None) -> Axes:
    """Accuracy against the share of inputs kept, the most uncertain rejected first, with AURC in the legend.

    Drawn from 1 % of the inputs on: below that a handful of inputs decides.

    Args:
        groups: uncertainty and whether the prediction was right, by name.
        ax: where to draw; a new one by default.

    Example:
        >>> ax = plot_accuracy_rejection({"aleatoric": ([0.1, 0.2, 0.3, 0.9], [True, True, True, False])})
        >>> ax.get_legend().get_texts()[0].get_text()
        'aleatoric: 0.0625'
    """
    ax = axes(ax)
    bottom = 1.0
    for i, (name, (uncertainty, correct)) in enumerate(some(groups).items()):
        kept, accuracy = metrics.accuracy_rejection(uncertainty, correct)
        area = metrics.aurc(uncertainty, correct)
        drawn = kept >= 0.01
        draw(ax, i, kept[drawn], accuracy[drawn], along=kept[drawn], label=f"{name}: {area:.4f}")
        # The left end is still noisy, and must not set the range.
        bottom = min(bottom, float(accuracy[kept >= 0.05].min()))
    height = 1 - bottom or 1.0
    # Curves fall to the right and may run flat along the bottom: the legend gets room below them.
    room = 0.12 * (len(groups) + 1) if len(groups) <= INSIDE else 0.05
    ax.set(xlim=(-0.02, 1.02), ylim=(bottom - room * height, 1 + 0.05 * height))
    ax.set(xlabel="share of inputs kept", ylabel="accuracy of the kept")
    legend(ax, "lower left", title="AURC (lower is better)")
    return ax


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
