"""`python -m bench.gpu`: what one GPU needs for fits, scores and principal components, beside what it must need.

A case that fails or that there was no time left for is noted, and the others go on: time on such a machine is dear.
What was measured is written after every case.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import gpu_cases as cases
from .gpu_timing import Device

HERE = Path(__file__).resolve().parent
Case = Callable[[Device], Iterator[cases.Entry]]

FULL: dict[str, Any] = {
    "device": {"size": 8192, "copied": 1 << 32},
    "em-d100": {"dim": 100, "rows": 60_000, "steps": 10, "sklearn_seconds": 20.0},
    "em-d512": {"dim": 512, "rows": 50_000, "steps": 10},
    "fit-d512": {"dim": 512, "rows": 50_000},
    "score-10k": {"dim": 512, "rows": 10_000, "train_rows": 20_000},
    "score-1m": {"dim": 512, "rows": 1_000_000, "train_rows": 20_000, "tried_rows": 100_000},
    "pca": {"rows": 50_000, "dim": 16_384, "keep": 512},
    "imagenet": {"classes": 1000, "dim": 2048, "rows": 1_280_000, "scored": 50_000, "profiled": 4096},
}
QUICK: dict[str, Any] = {
    "device": {"size": 64, "copied": 1 << 16},
    "em-d100": {"dim": 4, "rows": 2000, "steps": 2, "sklearn_seconds": 20.0},
    "em-d512": {"dim": 8, "rows": 2000, "steps": 1},
    "fit-d512": {"dim": 8, "rows": 1000, "max_iter": 2},
    "score-10k": {"dim": 8, "rows": 50, "train_rows": 500},
    "score-1m": {"dim": 8, "rows": 200, "train_rows": 500, "tried_rows": 50},
    "pca": {"rows": 200, "dim": 2304, "keep": 4},
    "imagenet": {"classes": 20, "dim": 24, "rows": 600, "scored": 100, "profiled": 40},
}
KINDS: dict[str, Callable[..., Iterator[cases.Entry]]] = {
    "em": cases.em,
    "fit": cases.fit,
    "score": cases.score,
    "pca": cases.pca,
    "imagenet": cases.many,
}


def describe(device: torch.device) -> dict[str, Any]:
    """When, where and with what numbers are made."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("scikit-learn", "numpy", "pytorch-ood"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    machine: dict[str, Any] = {"device": "cpu", "cores": os.cpu_count(), "versions": versions}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        machine |= {"device": properties.name, "memory_gb": 1e-9 * properties.total_memory}
        versions["cuda"] = str(torch.version.cuda)
    return {"date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()), "machine": machine}


def row(entry: cases.Entry) -> str:
    """One line of the table."""
    if "seconds" not in entry:
        return f"{entry['name']:24}{entry['note']}"
    low, high = entry["seconds_range"]
    memory = f"{entry['peak_gb']:7.1f} GB" if "peak_gb" in entry else ""
    held = sorted(entry["holds"].items(), key=lambda item: -item[1])[:3]
    text = ", ".join(f"{name} {share:.0%}" for name, share in held)
    return (
        f"{entry['name']:24}{entry['seconds']:10.4f} s [{low:.4f}, {high:.4f}]  floor {entry['floor_seconds']:.4f} s "
        f"({entry['floor_set_by']}), reached {entry['share_of_floor']:.0%} {memory}  {text}"
    )


def run(case: Case, name: str, device: Device) -> Iterator[cases.Entry]:
    """The entries of a case; what went wrong is one of them."""
    try:
        yield from case(device)
    except (RuntimeError, ValueError) as error:  # no memory left is one, a singular covariance another
        yield {"name": name, "note": f"failed: {str(error).splitlines()[0]}"}
    gc.collect()
    if device.cuda:
        torch.cuda.empty_cache()


def write(result: dict[str, Any], path: Path) -> None:
    """Write the whole file, or leave it as it was."""
    partial_path = path.with_name(f".{path.name}.partial")
    partial_path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(partial_path, path)


def append(result: dict[str, Any], path: Path) -> None:
    """Add one line for the run: its date, its machine, and the time and the share of the floor of each entry."""
    numbers = {e["name"]: [e["seconds"], e["share_of_floor"]] for e in result["entries"] if "seconds" in e}
    line = {"date": result["date"], "machine": result["machine"], "ceilings": result["ceilings"], "numbers": numbers}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; 1 when one of them failed, 2 when there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, on the CPU if need be; times mean nothing")
    parser.add_argument(
        "--only", default="", help="names that begin so, such as 'em' or 'imagenet'; nothing is written"
    )
    parser.add_argument("--out", type=Path, help="where to write; only a whole run has a default, bench/gpu.json")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which no case begins any more")
    options = parser.parse_args(arguments)
    if not options.quick and not torch.cuda.is_available():
        print("bench.gpu needs a CUDA device; --quick tries it out on the CPU.", file=sys.stderr)
        return 2
    size, start = QUICK if options.quick else FULL, time.monotonic()
    whole = not options.quick and not options.only
    out = options.out or (HERE / "gpu.json" if whole else None)
    device = Device("cuda" if torch.cuda.is_available() else "cpu", **size["device"])
    result: dict[str, Any] = {
        "command": " ".join(["python -m bench.gpu", *(["--quick"] if options.quick else [])]),
        **describe(device.torch),
        "ceilings": device.ceilings,
        "notes": [],
        "entries": [],
    }
    print(f"{result['machine']}\n{device.ceilings}", flush=True)
    for name in [name for name in size if name != "device" and name.startswith(options.only)]:
        if time.monotonic() - start > options.limit:
            found: Iterator[cases.Entry] = iter([{"name": name, "note": f"no time left after {options.limit:g} s."}])
        else:
            found = run(partial(KINDS[name.split("-")[0]], name=name, **size[name]), name, device)
        for entry in found:
            result["entries"].append(entry)
            print(f"{row(entry)}  ({time.monotonic() - start:.0f} s)", flush=True)
            result["seconds"] = time.monotonic() - start
            if out is not None:
                write(result, out)
    result["ceilings_after"] = device.measure_ceilings()
    result["seconds"] = time.monotonic() - start
    if out is not None:
        write(result, out)
    if whole and out is not None:
        append(result, out.with_name("gpu-history.jsonl"))
    failed = [entry["name"] for entry in result["entries"] if entry.get("note", "").startswith("failed")]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
