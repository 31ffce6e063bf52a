"""What the library does, shown in under a minute on digits that come with scikit-learn."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from .. import plots
from ..comparison.table import write_json
from .measure import ENTROPY, Demonstration, Settings, measure
from .picture import draw

__all__ = ["Demonstration", "Settings", "draw", "measure", "run"]
SHADES = " ░▒▓█"
KEPT = ("100%", "95%", "90%", "80%", "50%", "30%")


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
