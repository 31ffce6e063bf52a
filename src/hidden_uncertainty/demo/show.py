"""The demonstration: a small network that knows what it does not know, as a short table and one picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributions import Categorical

from .. import metrics, plots
from ..latent import LatentDensity
from ..precision import one_thread
from ..scoring.calibration import Calibration
from .training import DigitsNet, Split, add_noise, digits, rotate, train

LAYERS = ("conv1", "conv2", "conv3", "hidden", "output")  # with densities, shallow to deep
LAYER = "hidden"  # the one whose scores are the detector's
ENTROPY = "softmax entropy"  # what the network itself says, to compare with
RATE = 0.05  # share of familiar digits that may be called surprising
NOISE = 0.3  # standard deviation, of pixels in [0, 1]
KNOWN, LEFT_OUT = "digits 0 to 7", "left-out 8 and 9"
EXAMPLES = (2, 4, 7)  # classes whose first test digits are drawn
INK, PALE, SURPRISING = "#333333", "#BDBDBD", "#D55E00"
LINES = {LAYER: "#0072B2", "conv1": "#56B4E9", ENTROPY: "#CC79A7"}  # shares of surprising digits that are drawn


class Seen(NamedTuple):
    """Digits, and what the network and each score say of them."""

    data: Split
    right: Tensor  # (n,), whether the network is
    scores: dict[str, Tensor]  # by layer, and the softmax entropy, (n,) each
    surprising: dict[str, Tensor]  # whether a score is among the highest `RATE` of familiar digits


class Found(NamedTuple):
    """What was measured."""

    trained_on: int  # digits
    threshold: float  # of the detector's epistemic uncertainty
    turned: dict[int, Seen]  # test digits by angle
    changed: dict[str, Seen]  # digits by what was done to them, from `KNOWN` to `LEFT_OUT`

    def auroc(self, what: str, score: str) -> float:
        """How well a score tells changed digits from test digits."""
        return metrics.auroc(negative=self.changed[KNOWN].scores[score], positive=self.changed[what].scores[score])


def run(out: str | os.PathLike[str], *, seed: int = 0, quick: bool = False) -> Found:
    """Measure, print a table, and write `demo.png` to a folder."""
    console = Console(highlight=False)
    console.print(
        "[bold]A network that knows what it does not know[/]\n"
        "A small network learns the digits 0-7 that come with scikit-learn. Densities of\n"
        "its hidden activations, fitted without labels, then tell what it never learned.\n"
    )
    found = measure(seed=seed, quick=quick)
    console.print(tabulate(found))
    path = plots.save(draw(found), Path(out) / "demo.png")
    console.print(f"\nwritten: {path}", soft_wrap=True, markup=False)
    return found


@one_thread()
def measure(*, seed: int = 0, quick: bool = False) -> Found:
    """Train a network on some digits, fit densities to its layers, and score what it does and does not know.

    Torch uses one thread meanwhile: the matrices are too small to gain from more, and the numbers then do not depend
    on the number of cores. `quick` is a rough version that takes a few seconds.
    """
    data = digits(left_out=(8, 9), seed=seed)
    network = DigitsNet(8, seed=seed)
    train(network, data.train.images, data.train.labels, epochs=5 if quick else 20, seed=seed)
    width = 32 if quick else 256
    detector = LatentDensity(network, LAYERS, task="classification", max_dim=width, combine={LAYER: 1.0})
    detector.fit(data.train.batches(), calibration=data.calibration.batches())
    threshold = detector.threshold(RATE)
    usual = Calibration().fit(_entropy(network, data.calibration)).threshold(RATE)

    def look(images: Tensor, labels: Tensor = data.test.labels) -> Seen:
        seen = Split(images, labels)
        u, entropy = detector.predict(seen.batches()), _entropy(network, seen)
        scores = {name: layer.epistemic for name, layer in u.layers.items()} | {ENTROPY: entropy}
        surprising = {name: layer.surprising for name, layer in u.layers.items()} | {ENTROPY: entropy > usual}
        return Seen(seen, u.prediction == labels, scores, surprising)

    test = data.test.images
    turned = {angle: look(rotate(test, angle)) for angle in range(0, 181, 45 if quick else 15)}
    changed = {
        KNOWN: look(test),
        **{f"turned {angle}°": turned[angle] for angle in (45, 90, 180)},
        f"noise {NOISE}": look(add_noise(test, NOISE, seed=seed)),
        "mirrored ↔": look(test.flip(3)),
        LEFT_OUT: look(data.left_out.images, data.left_out.labels),
    }
    return Found(len(data.train), threshold, turned, changed)


def tabulate(found: Found) -> Table:
    """How often the network is right about changed digits, and how surprising they are."""
    how: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "show_edge": False, "padding": (0, 1, 0, 0)}
    table = Table(title=f"Learned from {found.trained_on} digits, then shown others", box=box.SIMPLE_HEAD, **how)
    table.add_column("")
    for head in ("accuracy", f"surprising to '{LAYER}'", "AUROC", f"AUROC of {ENTROPY}"):
        table.add_column(head, justify="right")
    for name, seen in found.changed.items():
        areas = () if name == KNOWN else (f"{found.auroc(name, score):.3f}" for score in (LAYER, ENTROPY))
        table.add_row(name, f"{_share(seen.right):.1%}", f"{_share(seen.surprising[LAYER]):.1%}", *areas)
    return table


def draw(found: Found) -> Figure:
    """Turned digits, with accuracy and surprise; histograms of scores; and detection by layer."""
    figure = Figure(figsize=(10.5, 6.0), layout="constrained", facecolor="white")
    known = found.changed[KNOWN]
    text = (
        f"A network that knows what it does not know: trained on {found.trained_on} digits 0 to 7, right on "
        f"{_share(known.right):.1%} of new ones.\nOrange frames: surprising to its {LAYER} layer, at a threshold "
        f"chosen from familiar digits alone ({RATE:.0%} false alarms requested, "
        f"{_share(known.surprising[LAYER]):.1%} measured)."
    )
    figure.suptitle(text, x=0.01, ha="left", size=10, color=INK)
    ratios: dict[str, Any] = {"width_ratios": (1.25, 1), "height_ratios": (1, 2.2)}
    panels = figure.subplots(2, 2, gridspec_kw=ratios).flatten()
    for draw_panel, ax in zip((_draw_strip, _draw_scores, _draw_curves, _draw_areas), panels, strict=True):
        draw_panel(ax, found)
        ax.title.set(size=11, color=INK, fontweight="bold", ha="left", x=0)
    return figure


def _draw_strip(ax: Axes, found: Found) -> None:
    """The first test digits of three classes at every angle, framed where they are surprising."""
    step, labels = 180 / (len(found.turned) - 1), found.changed[KNOWN].data.labels
    for row, label in enumerate(EXAMPLES):
        i = int((labels == label).nonzero()[0])
        for angle, seen in found.turned.items():
            left, side, odd = angle - 0.45 * step, 0.9 * step, bool(seen.surprising[LAYER][i])
            ends = (left, left + side, row + 0.9, row)
            ax.imshow(seen.data.images[i, 0].clamp(0, 1).numpy(), cmap="gray_r", vmin=0, vmax=1, extent=ends)
            colour, width = (SURPRISING, 1.8) if odd else (PALE, 0.8)
            ax.add_patch(Rectangle((left, row), side, 0.9, fill=False, edgecolor=colour, linewidth=width))
    ax.set(xlim=(-step / 2, 180 + step / 2), ylim=(len(EXAMPLES), -0.1), aspect="auto")
    ax.set_title("Turned digits: accuracy falls, surprise rises")
    ax.set_axis_off()


def _draw_curves(ax: Axes, found: Found) -> None:
    plots.dress(ax)
    degrees = list(found.turned)
    right = [100 * _share(seen.right) for seen in found.turned.values()]
    ax.plot(degrees, right, color=INK, linewidth=2.6, label="accuracy")
    for name, colour in LINES.items():
        odd = [100 * _share(seen.surprising[name]) for seen in found.turned.values()]
        label = f"surprising to {name}" if name == ENTROPY else f"surprising to layer {name}"
        ax.plot(degrees, odd, "o-", color=colour, linewidth=1.8, markersize=3, label=label)
    step = degrees[1]
    ax.set(xlim=(-step / 2, 180 + step / 2), ylim=(-2, 103), xticks=degrees[:: 1 if step > 15 else 2])
    ax.set(xlabel="rotation (degrees)", ylabel="% of test digits")
    ax.legend(fontsize=8, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, edgecolor="none")


def _draw_scores(ax: Axes, found: Found) -> None:
    groups = {name: found.changed[name].scores[LAYER] for name in (KNOWN, LEFT_OUT, f"noise {NOISE}")}
    plots.plot_scores(groups, ax=ax, threshold=found.threshold)
    ax.set(yticks=[], ylabel="")
    ax.set_title(f"Surprise in the {LAYER} layer")
    ax.legend(fontsize=8, labelcolor=INK, loc="upper right", framealpha=0.9, edgecolor="none")


def _draw_areas(ax: Axes, found: Found) -> None:
    columns, names = [name for name in found.changed if name != KNOWN], [*LAYERS, ENTROPY]
    values = [[found.auroc(column, name) for column in columns] for name in names]
    plots.dress(ax)
    ax.imshow(values, cmap="Blues", vmin=0.45, vmax=1.1, aspect="auto")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", size=9, color="white" if value > 0.8 else INK)
    ax.set_xticks(range(len(columns)), [name.replace(" ", "\n", 1) for name in columns])
    ax.set_yticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    ax.set_title("Told from test digits (AUROC), by layer")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=9)


def _entropy(network: torch.nn.Module, data: Split) -> Tensor:
    """Of the network's own probabilities: in float32, those of confident predictions are all the same zero."""
    with torch.no_grad():
        return Categorical(logits=network(data.images).double()).entropy()


def _share(mask: Tensor) -> float:
    return int(mask.sum()) / len(mask)
