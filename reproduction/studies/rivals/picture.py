"""Pictures of the rivals: curves of perturbed images, two moons, and ambiguous digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hidden_uncertainty.plots import dress
from hidden_uncertainty.plots.style import COLOURS, DASHES, GREY, INK

Record = Mapping[str, Any]
AXIS = {"rotation": "rotation (degrees)", "noise": "deviation of noise (pixels 0 to 255)"}
MOONS = ("DUQ", "DUQ without penalty", "SNGP's variance", "softmax entropy")
# Scores by the colour that they share, in the order of their dashes.
SHOWN = (
    ("library's default", "latent density, layer 10", "latent density, layer 1"),
    ("reconstruction, library's default", "reconstruction, layer 10"),
    ("VIB", "VIB, learnt marginal"),
    ("DUQ",),
    ("SNGP",),
    ("DDU",),
    ("distance",),
)
LINES = (COLOURS[6], *COLOURS[:6], GREY)  # plain networks are black, and those not named above grey
PARTS = ("digits", "ambiguous digits", "clothes")


def draw_steps(records: Sequence[Record]) -> Figure:
    """One row per set: accuracy and AUROC against each perturbation, one colour per network, one dash per score of it.

    Args:
        records: of all networks.
    """
    sets = list(dict.fromkeys(each["train"] for each in records))
    figure = Figure(figsize=(15, 0.8 + 3.1 * max(1, len(sets))), layout="constrained", facecolor="white")
    if not sets:
        return figure
    names = sorted({name for each in records for name in each["scores"] if "entropy" not in name}, key=_order)
    rivals = {name: each["rival"] for each in records for name in each["scores"]}
    for line, train in zip(figure.subplots(len(sets), 4, squeeze=False), sets, strict=True):
        own = [each for each in records if each["train"] == train]
        kinds = own[0]["near"]
        for place, kind in enumerate(kinds):
            left, right = line[2 * place], line[2 * place + 1]
            steps = kinds[kind]["steps"]
            for ax, what in ((left, "accuracy"), (right, "AUROC")):
                dress(ax)
                ax.set_title(f"{train}: {what}")
                ax.set_xlabel(AXIS[kind])
            drawn = set()
            for name in names:
                curves = [each["near"][kind] for each in own if name in each["scores"]]
                if not curves:
                    continue
                style = _style(name)
                if rivals[name] not in drawn:  # once per network
                    left.plot(steps, _mean([each["accuracy"] for each in curves]), **style)
                    drawn.add(rivals[name])
                right.plot(steps[1:], _mean([each["auroc"][name] for each in curves]), label=name, **style)
            left.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    handles, labels = figure.axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, labelcolor=INK)
    return figure


def _order(name: str) -> tuple[int, int]:
    return next(((number, of.index(name)) for number, of in enumerate(SHOWN) if name in of), (len(SHOWN), 0))


def _style(name: str) -> dict[str, Any]:
    number, of = _order(name)
    return {"color": LINES[number], "linestyle": DASHES[of], "marker": "o", "markersize": 3}


def draw_checks(records: Sequence[Record]) -> dict[str, Figure]:
    """Two moons and ambiguous digits, of the first seed of each; what was not run is left out."""
    first: dict[str, Record] = {}
    for each in records:
        first.setdefault(each["check"], each)
    drawn = {
        name: values for each in first.values() if "moons" in each["check"] for name, values in each["drawn"].items()
    }
    figures = {"moons": _moons(drawn)} if drawn else {}
    if "DDU ambiguous" in first:
        figures["ambiguous"] = _ambiguous(first["DDU ambiguous"]["drawn"])
    return figures


def _moons(drawn: Mapping[str, Sequence[float]]) -> Figure:
    from .sanity import moons, plane

    names = [name for name in MOONS if name in drawn]
    figure = Figure(figsize=(4.1 * len(names), 4.2), layout="constrained", facecolor="white")
    where, (x, y) = plane().numpy(), moons(300, 0)
    for ax, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        values = np.asarray(drawn[name])
        sure = values if name.startswith("DUQ") else -values  # bright where the network is sure
        side = round(len(values) ** 0.5)
        grid = [part.reshape(side, side) for part in (where[:, 0], where[:, 1], sure)]
        ax.contourf(*grid, levels=20, cmap="cividis")
        for label, colour in ((0, COLOURS[1]), (1, "white")):
            ax.scatter(*x[y == label].T.numpy(), s=14, color=colour, edgecolors="black", linewidths=0.4)
        ax.set_title(f"{name}{' (kernel)' * name.startswith('DUQ')}: bright is sure", fontsize=10, color=INK)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(False)
    return figure


def _ambiguous(drawn: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> Figure:
    figure = Figure(figsize=(11, 0.6 + 3 * len(drawn)), layout="constrained", facecolor="white")
    for line, (name, scores) in zip(figure.subplots(len(drawn), 2, squeeze=False), drawn.items(), strict=True):
        _histogram(line[0], scores["entropy"], f"{name}: entropy of the softmax", "nats")
        # Densities reach very far: the scale is logarithmic above the lowest score.
        lowest = min(min(each) for each in scores["density"])
        shifted = [np.log10(1 + np.asarray(each) - lowest) for each in scores["density"]]
        _histogram(line[1], shifted, f"{name}: density of its features", "log10 of nats above the lowest -log p(z)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, labelcolor=INK)
    return figure


def _histogram(ax: Axes, parts: Sequence[Any], title: str, label: str) -> None:
    dress(ax)
    low, high = min(float(np.min(each)) for each in parts), max(float(np.max(each)) for each in parts)
    bins = np.linspace(low, high if high > low else low + 1, 40).tolist()
    for part, name, colour in zip(parts, PARTS, (COLOURS[0], COLOURS[5], COLOURS[6]), strict=True):
        weights = np.full(len(part), 1 / len(part))
        common: dict[str, Any] = {"bins": bins, "weights": weights, "color": colour}
        ax.hist(part, histtype="stepfilled", alpha=0.25, label=name, **common)
        ax.hist(part, histtype="step", linewidth=1.5, **common)
    ax.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))  # small shares are seen
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylabel("share of images")
    ax.set_title(title)
    ax.set_xlabel(label)


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(values) for values in zip(*curves, strict=True)]
