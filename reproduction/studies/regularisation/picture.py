"""The paper's two figures of regularisation: the effect of the weight, and detection of perturbed images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hidden_uncertainty.plots import dress
from hidden_uncertainty.plots.style import COLOURS, GREY, INK

from ..layer_depth.data import SHIFTS

Row = Mapping[str, Any]
PLAIN = "weight 0"
WIDTH = 1.8
# From small to large weights; they differ in lightness as well.
SHADES = ("#F4B183", "#E8853D", "#C8500F", "#8A2C00", "#4A1500")
AXIS = {"rotation": "rotation (degrees)", "noise": "deviation of noise (pixels 0 to 255)"}


def draw_weights(rows: Sequence[Row], chosen: Mapping[str, float]) -> Figure:
    """One row per set: accuracy, PSNR and AUROC against the weight; weight 0 is a line with a band.

    Args:
        rows: of the study.
        chosen: the largest weight that costs no accuracy, by set; marked.

    Example:
        >>> row = {"train": "MNIST", "ood": None, "metric": "accuracy", "mean": 0.97, "std": 0.01, "n": 5}
        >>> figure = draw_weights([{**row, "method": f"weight {w}"} for w in (0, 1)], {"MNIST": 1.0})
        >>> [ax.get_title() for ax in figure.axes]
        ['MNIST: accuracy', 'MNIST: reconstructions', 'MNIST: detection']
    """
    figure = Figure(figsize=(12.5, 0.7 + 3.3 * len(chosen)), layout="constrained", facecolor="white")
    grid = figure.subplots(len(chosen), 3, squeeze=False)
    for line, (train, best) in zip(grid, chosen.items(), strict=True):
        own = [row for row in rows if row["train"] == train]
        steps = {row["ood"] for row in own} & {*SHIFTS[train].names, None}
        unknown = next((r["ood"] for r in own if r["metric"] == "auroc" and r["ood"] not in steps), None)
        panels = (
            ("accuracy", None, "accuracy", "test accuracy", COLOURS[0]),
            ("psnr", None, "reconstructions", "PSNR of test images (dB)", COLOURS[2]),
            ("auroc", unknown, "detection" + f" of {unknown}" * (unknown is not None), "AUROC", COLOURS[1]),
        )
        for ax, (metric, ood, title, label, colour) in zip(line, panels, strict=True):
            found = {r["method"]: r for r in own if r["metric"] == metric and r["ood"] == ood}
            names = [name for name in dict.fromkeys(r["method"] for r in own) if name != PLAIN]
            dress(ax)
            _against_weight(ax, found, names, colour)
            if f"weight {best:g}" in names:
                mark = ax.axvline(names.index(f"weight {best:g}"), color=GREY, linewidth=1.2, linestyle=":")
                mark.set_label("largest without loss of validation accuracy")
            ax.set_xticks(range(len(names)), [name.removeprefix("weight ") for name in names])
            ax.set_title(f"{train}: {title}")
            ax.set_xlabel("weight of the reconstruction")
            ax.set_ylabel(label)
            ax.margins(x=0.08, y=0.15)
        line[0].yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        line[0].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    handles = {
        label: h for ax in reversed(figure.axes) for h, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if handles:
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=len(handles), frameon=False, labelcolor=INK
        )
    return figure


def draw_steps(rows: Sequence[Row], chosen: Mapping[str, float]) -> Figure:
    """One row per set: accuracy and AUROC against the perturbation, one curve per weight, weight 0 in grey.

    Weights above the chosen one are dashed.

    Args:
        rows: of the study.
        chosen: the largest weight that costs no accuracy, by set.
    """
    figure = Figure(figsize=(10.5, 0.7 + 3.4 * len(chosen)), layout="constrained", facecolor="white")
    grid = figure.subplots(len(chosen), 2, squeeze=False)
    for line, (train, best) in zip(grid, chosen.items(), strict=True):
        shift = SHIFTS[train]
        places = dict(zip(shift.names, shift.amounts, strict=True))
        own = [row for row in rows if row["train"] == train]
        names = list(dict.fromkeys(row["method"] for row in own))
        for ax, metric in zip(line, ("accuracy", "auroc"), strict=True):
            dress(ax)
            for name in names:
                found = {
                    places[r["ood"]]: r
                    for r in own
                    if (r["method"], r["metric"]) == (name, metric) and r["ood"] in places
                }
                _curve(ax, name, names, [(place, found[place]) for place in sorted(found)], best)
            ax.set_title(f"{train}: {'accuracy' if metric == 'accuracy' else 'AUROC of perturbed images'}")
            ax.set_xlabel(AXIS[shift.kind])
            ax.set_xticks(list(shift.amounts))
        line[0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        title = "weight" + "\n(dashed: less\naccurate)" * any(_weight(name) > best for name in names)
        legend = line[1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title=title, frameon=False)
        legend.get_title().set_color(INK)
        for text in legend.get_texts():
            text.set_color(INK)
    return figure


def _against_weight(ax: Axes, found: Mapping[str, Row], names: Sequence[str], colour: str) -> None:
    plain = found.get(PLAIN)
    if plain is not None:
        ax.axhline(plain["mean"], color=GREY, linewidth=WIDTH, linestyle="--", label="without reconstruction")
        ax.axhspan(plain["mean"] - plain["std"], plain["mean"] + plain["std"], color=GREY, alpha=0.15, linewidth=0)
    own = [(names.index(name), row) for name, row in found.items() if name in names]
    if own:
        places, values = zip(*sorted(own, key=lambda pair: pair[0]), strict=True)
        means, spreads = [row["mean"] for row in values], [row["std"] for row in values]
        ax.errorbar(
            places, means, yerr=spreads, color=colour, marker="o", markersize=5, linewidth=WIDTH, elinewidth=1.2
        )


def _curve(ax: Axes, name: str, names: Sequence[str], points: Sequence[tuple[int, Row]], best: float) -> None:
    if not points:
        return
    places, rows = zip(*points, strict=True)
    weight = _weight(name)
    colour, shown = GREY, f"{weight:g}"
    if weight:
        others = [other for other in names if other != PLAIN]
        colour = SHADES[round(others.index(name) * (len(SHADES) - 1) / max(1, len(others) - 1))]
    means = [row["mean"] for row in rows]
    style = "-" if weight <= best else (0, (3, 2))
    width = 2.6 if not weight else WIDTH
    ax.plot(places, means, color=colour, linestyle=style, linewidth=width, marker="o", markersize=3.5, label=shown)
    low, high = ([row["mean"] + sign * row["std"] for row in rows] for sign in (-1, 1))
    ax.fill_between(places, low, high, color=colour, alpha=0.10, linewidth=0)


def _weight(name: str) -> float:
    return float(name.removeprefix("weight "))
