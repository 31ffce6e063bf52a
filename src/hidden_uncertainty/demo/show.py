"""What the library does, shown in under a minute on digits that come with scikit-learn: as text and as one picture."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from .. import plots
from ..comparison.table import write_json
from .measure import ENTROPY, Demonstration, Settings, measure, most_surprising, pool

__all__ = ["Demonstration", "Settings", "draw", "measure", "run"]
SHADES = " ░▒▓█"
KEPT = ("100%", "95%", "90%", "80%", "50%", "30%")
WIDTH, HEIGHT = 10.5, 6.0  # inches; 1680×960 pixels at 160 dots per inch
SMALL, PLAIN, LARGE = 8.0, 9.0, 10.0  # points
INK, GREY, PALE = "#333333", "#6E6E6E", "#BDBDBD"
# One colour per method wherever it is drawn, and one for whatever is surprising.
COLOURS = {"accuracy": INK, "shallow": "#56B4E9", "epistemic": "#0072B2", "aleatoric": "#009E73", ENTROPY: "#CC79A7"}
SURPRISING = "#D55E00"


def run(out: str | os.PathLike[str], settings: Settings | None = None) -> dict[str, Any]:
    """Measure, print a summary, and write `demo.png` and `demo.json` to a folder; returns what the JSON holds."""
    start = time.perf_counter()
    folder, console = Path(out), Console(highlight=False)
    console.print("A network that knows what it does not know", style="bold")
    console.print(
        "A small network learns the digits 0-7 that come with scikit-learn. Densities of\n"
        "its hidden activations, fitted without labels, then tell what it never learned.\n"
    )
    found = measure(Settings() if settings is None else settings)
    before = time.perf_counter()
    plots.save(draw(found), folder / "demo.png")
    found.numbers["seconds"]["picture"] = time.perf_counter() - before
    found.numbers["seconds"]["total"] = time.perf_counter() - start
    numbers = _rounded(found.numbers)
    summarise(found, [folder / "demo.png", write_json(numbers, folder / "demo.json")], console)
    return numbers


def summarise(shown: Demonstration, files: Sequence[Path], console: Console) -> None:
    """Print what the demonstration found, and where the files are."""
    numbers, layer = shown.numbers, shown.settings.layer
    alarms, sizes = numbers["false_alarm"], numbers["data"]
    console.print(
        f"Learned from {sizes['train']} digits, "
        f"right on {numbers['accuracy']['test']:.1%} of {sizes['test']} test digits.\n"
        f"Layer {layer!r}, threshold from {sizes['calibration']} digits that the network has not seen:\n"
        f"{alarms['asked']:.0%} false alarms requested, {alarms['seen'][layer]:.1%} measured on the test digits."
    )
    for table in (_rotation(shown), _detection(shown), _rejection(shown)):
        console.print()
        console.print(table)
    console.print()
    _gallery(shown, console)
    seconds = {name: f"{value:.0f} s" for name, value in numbers["seconds"].items()}
    spent = ", ".join(f"{name} {text}" for name, text in seconds.items() if name != "total")
    console.print(f"\n{seconds['total']} in all ({spent}). Written:")
    for path in files:
        console.print(f"  {path}", soft_wrap=True, markup=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {str(name): _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _rotation(shown: Demonstration) -> Table:
    layer = shown.settings.layer
    heads = ("degrees", "accuracy", "", "surprising", "", "AUROC")
    table = _table(f"Test digits, turned: accuracy falls, surprise in '{layer}' rises", heads)
    for row in shown.numbers["rotation"]:
        right, odd = row["accuracy"], row["surprising"][layer]
        bars = Text(_bar(right), "blue"), Text(_bar(odd), "red")
        area = f"{row['auroc'][layer]:.3f}"
        table.add_row(str(row["degrees"]), f"{right:.1%}", bars[0], f"{odd:.1%}", bars[1], area)
    return table


def _detection(shown: Demonstration) -> Table:
    """AUROC: one row per change, one column per score."""
    numbers, settings = shown.numbers, shown.settings
    changes = {
        "left-out digits 8, 9": numbers["left_out"],
        **{f"turned {row['degrees']}°": row for row in numbers["rotation"] if row["degrees"] in (15, 45, 90, 180)},
        **{f"noise, deviation {row['deviation']:g}": row for row in numbers["noise"]},
        **{f"flipped {row['direction']}ly": row for row in numbers["flip"]},
    }
    heads = ("", *settings.layers, _short(ENTROPY))
    table = _table("AUROC against unchanged digits, by layer and by softmax entropy", heads)
    for name, row in changes.items():
        values = {score: row["auroc"][score] for score in (*settings.layers, ENTROPY)}
        best = max(values.values())
        table.add_row(name, *(Text(f"{value:.3f}", "bold" if value == best else "") for value in values.values()))
    return table


def _rejection(shown: Demonstration) -> Table:
    heads = ("digits", "kept by", *KEPT, "AURC")
    table = _table("Accuracy of the share that is kept when the most uncertain are dropped", heads)
    for which, label in (("test", "test"), ("rotated", "turned")):
        for name, found in shown.numbers["rejection"][which].items():
            kept: dict[str, Any] = found["accuracy_of_kept"]
            table.add_row(label, _short(name), *(f"{kept[share]:.1%}" for share in KEPT), f"{found['aurc']:.4f}")
    return table


def _short(name: str) -> str:
    return name.removesuffix(" entropy")


def _gallery(shown: Demonstration, console: Console, count: int = 4) -> None:
    """The most surprising test digits, drawn in shades."""
    console.print("The most surprising test digits", style="bold")
    listed = shown.numbers["most_surprising"]["test"][:count]
    cells = [
        [
            *_shades(shown.test.data.images[each["position"], 0]),
            f"{each['label']}, read as {each['prediction']}",
            f"p = {each['p_value']:.3f}",
        ]
        for each in listed
    ]
    for line in zip(*cells, strict=True):
        console.print("   ".join(part.ljust(16) for part in line).rstrip(), markup=False)


def _shades(image: Tensor) -> list[str]:
    """An image (H, W) in [0, 1] as lines of text, two characters per pixel."""
    steps = (image.clamp(0, 1) * (len(SHADES) - 1)).round().to(torch.long)
    return ["".join(2 * SHADES[step] for step in row) for row in steps.tolist()]


def _bar(share: float, width: int = 16) -> str:
    return ("█" * round(share * width)).ljust(width)


def _table(title: str, heads: Sequence[str]) -> Table:
    """An empty table; words are on the left, numbers on the right."""
    how: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "show_edge": False, "padding": (0, 1, 0, 0)}
    table = Table(title=title, box=box.SIMPLE_HEAD, **how)
    for name in heads:
        table.add_column(name, justify="left" if name in ("", "digits", "kept by") else "right")
    return table


def draw(shown: Demonstration) -> Figure:
    """What the demonstration found: rotation, histograms, detection by layer, images, accuracy against rejection."""
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor="white")
    numbers, layer = shown.numbers, shown.settings.layer
    _text(figure, 0.3, 0.42, "A network that knows what it does not know", size=17, weight="bold")
    lines = (
        f"Trained on {numbers['data']['train']} digits 0–7, right on {numbers['accuracy']['test']:.1%} of new ones. "
        "The density of its hidden activations, fitted without labels, tells what it never learned.",
        f"Orange frames: surprising to the {layer} layer, at a threshold chosen from familiar digits alone "
        f"({shown.settings.false_alarm:.0%} alarms requested, {numbers['false_alarm']['seen'][layer]:.1%} measured).",
    )
    for i, line in enumerate(lines):
        _text(figure, 0.3, 0.69 + 0.19 * i, line, size=PLAIN, color=GREY)
    _heading(figure, 0.3, 1.22, "Turned digits: accuracy falls, surprise rises")
    curves = _axes(figure, 0.62, 2.72, 3.38, 2.72)
    _draw_rotation(curves, shown)
    _draw_strip(figure, curves, shown, top=1.36)
    _heading(figure, 4.4, 1.22, f"Surprise in the {layer} layer")
    _draw_histograms(_axes(figure, 4.4, 1.36, 2.65, 1.5), shown)
    _heading(figure, 4.4, 3.62, "Detection (AUROC), by layer")
    _draw_detection(_axes(figure, 5.12, 3.76, 1.93, 1.68), shown)
    _heading(figure, 7.5, 1.22, "Prediction and p-value of each digit")
    _draw_gallery(figure, shown, left=7.5, top=1.36)
    _heading(figure, 7.5, 3.62, "Dropping the most uncertain")
    _draw_rejection(_axes(figure, 7.95, 3.76, 2.35, 1.68), shown)
    return figure


def _draw_rotation(ax: Axes, shown: Demonstration) -> None:
    """Accuracy, and the share of surprising inputs by three scores, against the angle."""
    rows, layer, shallow = shown.numbers["rotation"], shown.settings.layer, shown.settings.layers[0]
    lines = {
        "accuracy": ("accuracy", [row["accuracy"] for row in rows]),
        "epistemic": (f"surprising: {layer} layer", [row["surprising"][layer] for row in rows]),
        "shallow": (f"surprising: {shallow} layer", [row["surprising"][shallow] for row in rows]),
        ENTROPY: (f"surprising: {ENTROPY}", [row["surprising"][ENTROPY] for row in rows]),
    }
    degrees = [row["degrees"] for row in rows]
    for name, (label, shares) in lines.items():
        style = {"linewidth": 2.6} if name == "accuracy" else {"linewidth": 1.8, "marker": "o", "markersize": 3}
        ax.plot(degrees, [100 * share for share in shares], color=COLOURS[name], label=label, **style)
    margin = (degrees[-1] - degrees[0]) / (len(degrees) - 1) / 2
    ax.set(xlim=(degrees[0] - margin, degrees[-1] + margin), ylim=(-2, 103))
    ax.set_xticks(degrees[:: 1 if len(degrees) < 8 else 2])
    ax.set(xlabel="rotation (degrees)", ylabel="% of test digits")
    _finish(ax)
    _legend(ax, loc="lower left", bbox_to_anchor=(-0.03, 0.99), ncols=2, columnspacing=1.2)


def _draw_strip(figure: Figure, curves: Axes, shown: Demonstration, *, top: float) -> None:
    """The first test digits of three classes at every angle, above that angle of the curves."""
    labels = shown.test.data.labels
    examples = [int((labels == label).nonzero()[0]) for label in (2, 4, 7)]
    low, high = curves.get_xlim()
    box = curves.get_position()
    side = min(0.25, 0.94 * WIDTH * box.width / len(shown.rotated))
    for row, i in enumerate(examples):
        for angle, scored in shown.rotated.items():
            centre = WIDTH * (box.x0 + box.width * (angle - low) / (high - low))
            ax = _axes(figure, centre - side / 2, top + row * (side + 0.03), side, side)
            _digit(ax, scored.data.images[i], bool(scored.uncertainty.surprising[i]))


def _draw_histograms(ax: Axes, shown: Demonstration) -> None:
    sigma = _middle(shown)
    groups = {
        "test digits 0–7": shown.test,
        "left-out digits 8, 9": shown.left_out,
        f"noise σ = {sigma:g}": shown.noisy[sigma],
    }
    scores = {name: scored.uncertainty.epistemic for name, scored in groups.items()}
    plots.plot_scores(scores, ax=ax, threshold=shown.threshold)
    ax.lines[-1].set_label("threshold")
    ax.set(yticks=[], ylabel="")
    _finish(ax)
    _legend(ax, loc="upper right")


def _draw_detection(ax: Axes, shown: Demonstration) -> None:
    """AUROC of every score for every kind of change, as a table with shades."""
    numbers, sigma = shown.numbers, _middle(shown)
    columns = {
        "digits\n8, 9": numbers["left_out"],
        "turned\n90°": next(row for row in numbers["rotation"] if row["degrees"] == 90),
        f"noise\nσ = {sigma:g}": next(row for row in numbers["noise"] if row["deviation"] == sigma),
        "flip\n↔": numbers["flip"][0],
        "flip\n↕": numbers["flip"][1],
    }
    names = [*shown.settings.layers, ENTROPY]
    values = [[column["auroc"][name] for column in columns.values()] for name in names]
    ax.imshow(values, cmap="Blues", vmin=0.45, vmax=1.1, aspect="auto")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", size=SMALL, color="white" if value > 0.8 else INK)
    ax.axhline(len(names) - 1.5, color="white", linewidth=4)
    _finish(ax)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_xticks(range(len(columns)), list(columns), multialignment="center")
    ax.set_yticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    ax.get_yticklabels()[names.index(shown.settings.layer)].set_fontweight("bold")
    ax.tick_params(length=0)


def _draw_gallery(figure: Figure, shown: Demonstration, *, left: float, top: float, count: int = 5) -> None:
    """The most familiar and the most surprising test digits, and the first of those left out."""
    test, everything = shown.test, len(shown.test.data)
    rows = {
        "most familiar of the test digits": (test, most_surprising(test, everything)[::-1][:count]),
        "most surprising of the test digits": (test, most_surprising(test, count)),
        "left-out digits, as they come": (shown.left_out, list(range(count))),
    }
    side, step, pitch = 0.32, (WIDTH - 0.2 - left) / count, 0.69
    for i, (name, (scored, positions)) in enumerate(rows.items()):
        _text(figure, left, top + i * pitch + 0.09, name, size=SMALL, color=GREY)
        for j, position in enumerate(positions):
            x, y = left + j * step, top + i * pitch + 0.14
            u = scored.uncertainty[position]
            assert u.p_value is not None
            _digit(_axes(figure, x, y, side, side), scored.data.images[position], bool(u.surprising))
            p = float(u.p_value)
            short = f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"
            _text(figure, x, y + side + 0.13, f"{int(u.prediction)}, p {short.removeprefix('0')}", size=SMALL)


def _draw_rejection(ax: Axes, shown: Demonstration) -> None:
    found = pool(list(shown.rotated.values()))
    plots.plot_accuracy_rejection(found, ax=ax)
    for name, line in zip(found, ax.lines, strict=True):
        line.set(color=COLOURS[name], label=f"{name}: AURC {shown.numbers['rejection']['rotated'][name]['aurc']:.2f}")
    ax.set_ylim(-0.15, 1.03)  # room for the legend, below every curve
    ax.set(yticks=[0, 0.5, 1], xlabel="share kept, of the digits at all angles")
    _finish(ax)
    _legend(ax, loc="lower right")


def _digit(ax: Axes, image: Tensor, surprising: bool) -> None:
    """An image; its frame shows whether it is surprising."""
    ax.imshow(image[0].clamp(0, 1).numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(color=SURPRISING if surprising else PALE, linewidth=1.8 if surprising else 0.8)


def _middle(shown: Demonstration) -> float:
    return shown.settings.deviations[len(shown.settings.deviations) // 2]


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """An Axes placed in inches from the top left corner."""
    return figure.add_axes((left / WIDTH, 1 - (top + height) / HEIGHT, width / WIDTH, height / HEIGHT))


def _text(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    figure.text(left / WIDTH, 1 - top / HEIGHT, text, **{"color": INK, "va": "baseline", **style})


def _heading(figure: Figure, left: float, top: float, text: str) -> None:
    _text(figure, left, top, text, size=LARGE, weight="bold")


def _finish(ax: Axes) -> None:
    """The style of `plots`, in the smaller sizes of a panel."""
    plots.dress(ax)
    ax.tick_params(labelsize=SMALL)
    ax.xaxis.label.set_fontsize(SMALL)
    ax.yaxis.label.set_fontsize(SMALL)


def _legend(ax: Axes, **place: Any) -> None:
    legend = ax.legend(fontsize=SMALL, labelcolor=INK, handlelength=1.3, **place)
    legend.get_frame().set(linewidth=0, alpha=0.9)
