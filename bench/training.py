"""`python -m bench.training`: whole trainings of ten residual networks side by side, as in the study of table 1.

Times are from untrained networks to weights on the host, on SVHN and CIFAR10; the first includes loading and compiling.
Then the time of a step, with fused norms and with torch's own. Data are read from where `python -m reproduction data`
puts them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn

from reproduction.datasets.images import Images, cifar10, svhn, unit
from reproduction.nets import ResNet
from reproduction.studies.table_1_resnet.study import MEMBERS, WIDTHS, group
from reproduction.training.lane import Data, Recipe
from reproduction.training.many import train_many
from reproduction.training.module_lane import ModuleLane
from reproduction.training.share import matrix_peak, step_operations, wait

from .gpu import describe, write

HERE = Path(__file__).resolve().parent
SETS: dict[str, Callable[[str], Images]] = {"SVHN": svhn, "CIFAR10": cifar10}
ROUNDS = 5
Parts = tuple[Images, Images]  # to train on, and to test with


def drawn(rows: int) -> Images:
    """Images of noise, whose classes differ in brightness."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (rows,), generator=generator)
    images = torch.randint(128, (rows, 3, 32, 32), generator=generator) + 12 * labels[:, None, None, None]
    return Images(images.to(torch.uint8), labels, "drawn", official=False)


def steps(networks: Sequence[nn.Module], data: Data, *, fused: bool) -> list[float]:
    """Milliseconds per step and network, of each round through the data."""
    lanes = [ModuleLane(network, ModuleLane.channels_last(data), Recipe()) for network in networks]
    times = []
    for _ in range(1 + ROUNDS):  # the first records
        for lane in lanes:
            if not fused:
                vars(lane.network).pop("forward", None)
            with lane.on_stream():
                lane.begin()
        wait(data.images.device)
        start = time.perf_counter()
        for _ in range(lanes[0].steps):
            for lane in lanes:
                with lane.on_stream():
                    lane.step()
        wait(data.images.device)
        times.append(1e3 * (time.perf_counter() - start) / lanes[0].steps / len(lanes))
        for lane in lanes:
            lane.prepare()
    return times[1:]


@torch.no_grad()
def accuracy(network: nn.Module, images: Images, device: torch.device) -> float:
    """The accuracy of a network on test images."""
    assert images.labels is not None
    right = [
        network(unit(part.to(device))).argmax(1).cpu() == labels
        for part, labels in zip(images.images.split(2000), images.labels.split(2000), strict=True)
    ]
    return float(torch.cat(right).float().mean())


def whole(
    name: str, networks: Sequence[nn.Module], parts: Parts, recipe: Recipe, device: torch.device
) -> dict[str, Any]:
    """Train to the end, and measure time and accuracy."""
    train, test = parts
    assert train.labels is not None
    wait(device)
    start = time.perf_counter()
    what = group(name, networks, train.images.to(device), train.labels.to(device), train.digest, recipe)
    (trained,) = train_many([what], device=device)
    wait(device)
    seconds = time.perf_counter() - start
    epochs = [each["loss"] for each in trained.epochs]
    right = [accuracy(network, test, device) for network in trained.networks("loss", "last", device)]
    return {
        "seconds": seconds,
        "networks": len(networks),
        "epochs": epochs,
        "steps": sum(epochs) * (len(what.data.images) // recipe.batch_size),
        "accuracy": {"mean": mean(right), "std": stdev(right)},
        "data": train.digest,
    }


def main(arguments: list[str] | None = None) -> int:
    """Train, and write the times; returns 2 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny version on random images, whose times mean nothing"
    )
    parser.add_argument("--out", type=Path, help="where to write; a whole run has a default, bench/training.json")
    options = parser.parse_args(arguments)
    if not options.quick and not torch.cuda.is_available():
        print("bench.training needs a CUDA device; --quick runs a tiny version on the CPU.", file=sys.stderr)
        return 2
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # as the studies do
    device = torch.device("cpu" if options.quick else "cuda")
    out = options.out or (None if options.quick else HERE / "training.json")
    recipe = Recipe(epochs=2) if options.quick else Recipe()
    widths, members = ((4, 4, 4), 2) if options.quick else (WIDTHS, MEMBERS)
    networks = [ResNet(widths, initialisation="glorot", seed=seed) for seed in range(members)]
    result: dict[str, Any] = {
        "command": " ".join(["python -m bench.training", *(["--quick"] if options.quick else [])]),
        **describe(device),
        "seeds": [network.seed for network in networks],
        "steps": {},
        "sets": {},
    }
    each = step_operations(ResNet(widths), (3, 32, 32), recipe.batch_size)
    for name, read in SETS.items():
        parts = (drawn(80), drawn(20)) if options.quick else (read("train"), read("test"))
        found = whole(name, networks, parts, recipe, device)
        result["sets"][name] = found | {"tflops": 1e-12 * found["steps"] * each / found["seconds"]}
        print(f"{name}: {result['sets'][name]}", flush=True)
        if out is not None:
            write(result, out)
    result |= {
        "gflop_a_step": 1e-9 * each,
        "peak_tflops": 1e-12 * matrix_peak(device, size=64 if options.quick else 8192),
    }
    images = drawn(64 if options.quick else 3200)
    data = Data(images.images, images.labels, images.images[:8], images.labels[:8]).to(device)  # type: ignore[arg-type]
    for count in (1, members):
        for kind in ("fused", "plain"):
            times = steps(networks[:count], data, fused=kind == "fused")
            result["steps"][f"{kind}, {count}"] = times
            print(f"{kind} norms, networks at once: {count}: {min(times):.3f} ms per step and network", flush=True)
    if out is not None:
        write(result, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
