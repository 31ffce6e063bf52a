"""`python -m bench.default`: what `LatentDensity(model)`, with nothing to choose, adds to a small ResNet18.

The plain network and the default take turns in one process, on one thread. Times are of the processor, not of the clock
on the wall, and the lowest tenth of the rounds: a machine that others use too makes rounds slower, never faster. With
`--gpu` the network and its images are on a GPU, times are of the clock once the GPU is done, and those of the processor
that are in the file are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hidden_uncertainty import LatentDensity, suggest

from .head import Inside
from .record import machine, now
from .resnet import resnet18
from .timing import alternate, use_threads

HERE = Path(__file__).resolve().parent
CLASSES = 10
LOWEST = 0.1  # quantile of the rounds
FULL: dict[str, Any] = {
    "width": 64,
    "batch": 32,
    "images": {"fit": 2048, "calibrate": 512},
    "rounds": {"fit": 3, "call": {256: 12, 1: 200}},
}
ON_A_GPU: dict[str, Any] = {
    "width": 64,
    "batch": 256,
    "images": {"fit": 20_480, "calibrate": 5120},
    "rounds": {"fit": 5, "call": {256: 50, 1: 200}},
}
QUICK: dict[str, Any] = {
    "width": 4,
    "batch": 64,
    "images": {"fit": 640, "calibrate": 320},
    "rounds": {"fit": 1, "call": {256: 2, 1: 3}},
}


class Default:
    """A ResNet18 with random weights whose last layer tells ten patterns apart, images of these, and the default."""

    def __init__(self, width: int, batch: int, images: dict[str, int], device: str = "cpu") -> None:
        self.device, self.clock = device, time.process_time if device == "cpu" else done
        self.random = torch.Generator().manual_seed(0)
        self.patterns = 3 * torch.randn(CLASSES, 3, 4, 4, generator=self.random).repeat_interleave(8, 2)
        self.patterns = self.patterns.repeat_interleave(8, 3)  # (10, 3, 32, 32)
        self.model = resnet18(width, CLASSES).to(device)
        with torch.no_grad():  # the class is that of the nearest mean
            means = self.model[:-1](self.draw(20 * CLASSES)).view(20, CLASSES, -1).mean(0)
            self.model.fc.weight.copy_(means)
            self.model.fc.bias.copy_(-means.square().sum(1) / 2)
        self.train, self.unseen = (self.draw(count).split(batch) for count in images.values())
        self.detector = LatentDensity(self.model, task="classification", progress=False)
        self.fit()

    def draw(self, count: int) -> Tensor:
        """Noisy images of all patterns in turn."""
        noise = torch.randn(count, 3, 32, 32, generator=self.random)
        return (self.patterns[torch.arange(count) % CLASSES] + noise).to(self.device)

    def fit(self) -> None:
        """Fit the default as a user would, without unseen data."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of patterns that are seldom predicted
            self.detector.fit(self.train)

    @torch.no_grad()
    def plain(self, loader: tuple[Tensor, ...]) -> None:
        """The network alone."""
        for images in loader:
            self.model(images)

    def measure(self, rounds: dict[str, Any]) -> list[dict[str, Any]]:
        """Four entries: fit, calibration, and calls at two sizes of a batch."""
        steps: dict[str, tuple[tuple[Tensor, ...], Callable[[], Any]]] = {
            "fit": (self.train, self.fit),
            "calibrate": (self.unseen, lambda: self.detector.calibrate(self.unseen)),
        }
        entries = [self._entry(name, *step, rounds["fit"]) for name, step in steps.items()]
        for batch, count in rounds["call"].items():
            images = self.draw(batch)
            entries.append(self._entry("call", (images,), partial(self.detector, images), count))
        return entries

    def _entry(self, name: str, loader: tuple[Tensor, ...], step: Callable[[], Any], rounds: int) -> dict[str, Any]:
        """Seconds of the plain network and of the default on the same images, and what is outside the network."""
        inside = Inside(self.model, self.clock)
        within: list[float] = []

        def ours() -> None:
            inside.total = 0.0
            step()
            within.append(inside.total)

        sides: dict[str, Callable[[], Any]] = {"plain": partial(self.plain, loader), "ours": ours}
        seconds = alternate(sides, rounds, clock=self.clock)
        inside.remove()
        plain, own = (float(np.quantile(seconds[side], LOWEST)) for side in ("plain", "ours"))
        outside = [whole - part for whole, part in zip(seconds["ours"], within, strict=True)]
        return {
            "name": name,
            "images": sum(map(len, loader)),
            "batch": len(loader[0]),
            "rounds": rounds,
            "plain_seconds": plain,
            "seconds": own,
            "ratio": own / plain,
            "outside_percent": 100 * float(np.quantile(outside, LOWEST)) / plain,
            "plain_rounds": seconds["plain"],
            "rounds_seconds": seconds["ours"],
        }


def done() -> float:
    """The clock, once the GPU has done all that was asked of it."""
    torch.cuda.synchronize()
    return time.perf_counter()


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write `bench/default.json`."""
    parser = argparse.ArgumentParser(prog="python -m bench.default", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny network, to see that it works; writes nothing")
    parser.add_argument("--gpu", action="store_true", help="measure on a GPU")
    parser.add_argument("--out", type=Path, help="where to write; a full run writes bench/default.json")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else ON_A_GPU if options.gpu else FULL
    start = time.monotonic()
    with use_threads(1):
        bench = Default(size["width"], size["batch"], size["images"], "cuda" if options.gpu else "cpu")
        entries = bench.measure(size["rounds"])
        layers = [str(choice) for choice in suggest(bench.model, bench.train)]
    for entry in entries:
        text = f"{entry['name']:10}{entry['images']:6,} images of {entry['batch']:3}  {entry['plain_seconds']:9.4f} s"
        print(f"{text} {entry['seconds']:9.4f} s  {entry['ratio']:.3f} ×  outside {entry['outside_percent']:.2f} %")
    result = {
        "command": f"python -m bench.default{' --gpu' * options.gpu}",
        "date": now(),
        "machine": machine(),
        "seconds": round(time.monotonic() - start, 1),
        "quantile": LOWEST,
        "layers": layers,
        "entries": entries,
    }
    if options.gpu:
        result["gpu"] = torch.cuda.get_device_name()
    out = options.out or (None if options.quick else HERE / "default.json")
    if out is not None:
        before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
        if options.gpu:
            result = {**before, "on a gpu": result}
        elif "on a gpu" in before:
            result["on a gpu"] = before["on a gpu"]
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
