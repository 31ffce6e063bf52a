"""The demonstration as one picture."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .. import plots
from .measure import ENTROPY, Demonstration, most_surprising, pool

WIDTH, HEIGHT = 10.5, 6.0  # inches; 1680×960 pixels at 160 dots per inch
SMALL, PLAIN, LARGE = 8.0, 9.0, 10.0  # points
INK, GREY, PALE = "#333333", "#6E6E6E", "#BDBDBD"
# One colour per method wherever it is drawn, and one for whatever is surprising.
COLOURS = {"accuracy": INK, "shallow": "#56B4E9", "epistemic": "#0072B2", "aleatoric": "#009E73", ENTROPY: "#CC79A7"}
SURPRISING = "#D55E00"


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
    _rotation(curves, shown)
    _strip(figure, curves, shown, top=1.36)
    _heading(figure, 4.4, 1.22, f"Surprise in the {layer} layer")
    _histograms(_axes(figure, 4.4, 1.36, 2.65, 1.5), shown)
    _heading(figure, 4.4, 3.62, "Detection (AUROC), by layer")
    _detection(_axes(figure, 5.12, 3.76, 1.93, 1.68), shown)
    _heading(figure, 7.5, 1.22, "Prediction and p-value of each digit")
    _gallery(figure, shown, left=7.5, top=1.36)
    _heading(figure, 7.5, 3.62, "Dropping the most uncertain")
    _rejection(_axes(figure, 7.95, 3.76, 2.35, 1.68), shown)
    return figure


def _rotation(ax: Axes, shown: Demonstration) -> None:
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


def _strip(figure: Figure, curves: Axes, shown: Demonstration, *, top: float) -> None:
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


def _histograms(ax: Axes, shown: Demonstration) -> None:
    sigma = _middle(shown)
    groups = {
        "test digits 0–7": shown.test,
        "left-out digits 8, 9": shown.left_out,
        f"noise σ = {sigma:g}": shown.noisy[sigma],
    }
    plots.plot_scores(
        {name: scored.uncertainty.epistemic for name, scored in groups.items()}, ax=ax, threshold=shown.threshold
    )
    ax.lines[-1].set_label("threshold")
    ax.set(yticks=[], ylabel="")
    _finish(ax)
    _legend(ax, loc="upper right")


def _detection(ax: Axes, shown: Demonstration) -> None:
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


def _gallery(figure: Figure, shown: Demonstration, *, left: float, top: float, count: int = 5) -> None:
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


def _rejection(ax: Axes, shown: Demonstration) -> None:
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
