"""`python -m bench.export`: what uncertainty adds to the network in one graph, in onnxruntime and compiled by torch.

Each number of threads has a process of its own, as compiled code is made for one. In it, the bare network and the graph
take turns, both in the same runtime. `--rounds 30` is enough to see that it runs; the default is for a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hidden_uncertainty import LatentDensity, export

from .record import machine, now
from .resnet import resnet18
from .timing import alternate

HERE = Path(__file__).resolve().parent
SIDES = ("bare", "graph")
FREEZE = {"freezing": True}
Sides = dict[str, Callable[[Tensor], Any]]


def detector_of(width: int, rows: int) -> tuple[LatentDensity, Tensor]:
    """The default detector of a ResNet18 of random weights, whose classes are all told, and images."""
    model, images = resnet18(width), torch.randn(rows, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = torch.cat([model(some) for some in images[:200].split(50)])
        last: Any = model.fc
        last.weight.div_(logits.std(0)[:, None])
        last.bias.copy_((last.bias - logits.mean(0)) / logits.std(0))
    cut = 2 * rows // 3
    detector = LatentDensity(model, task="classification", progress=False)
    detector.fit(images[:cut].split(50), calibration=images[cut:].split(50)).threshold(0.05)
    return detector, images


def quietly(work: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


def programs(detector: LatentDensity, images: Tensor) -> dict[str, torch.export.ExportedProgram]:
    batch: Any = ({0: torch.export.Dim.DYNAMIC},)
    with torch.no_grad():
        bare = torch.export.export(detector.model, (images[:2],), dynamic_shapes=batch, strict=False)
    return {"bare": bare, "graph": export(detector, images[:2])}


def in_onnxruntime(made: Mapping[str, Any], folder: Path, threads: int) -> Sides:
    import onnxruntime

    sides: Sides = {}
    for name, program in made.items():
        path = folder / f"{name}.onnx"
        quietly(partial(torch.onnx.export, program, f=path, dynamo=True, verbose=False, external_data=False))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        key = session.get_inputs()[0].name
        sides[name] = lambda x, session=session, key=key: session.run(None, {key: x.numpy()})  # type: ignore[misc]
    return sides


def compiled(made: Mapping[str, Any], folder: Path, threads: int) -> Sides:
    """As `detector.compile()` does it, without what makes an `Uncertainty` of tensors."""
    sides: Sides = {}
    for name, program in made.items():
        work = partial(torch._inductor.aoti_compile_and_package, program, inductor_configs=FREEZE)
        path = quietly(partial(work, package_path=str(folder / f"{name}.pt2")))
        sides[name] = torch._inductor.aoti_load_package(path)
    return sides


def products(path: Path, images: Tensor) -> float:
    """Seconds that the products with the densities' factors take for one image, by the runtime's own clock."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling, options.log_severity_level = 1, True, 3
    options.profile_file_prefix = str(path.with_suffix(""))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for _ in range(30):
        session.run(None, {session.get_inputs()[0].name: images[:1].numpy()})
    times: dict[str, list[float]] = {}
    for event in json.loads(Path(session.end_profiling()).read_text()):
        if event.get("args", {}).get("op_name") == "Gemm" and "linear" not in event["name"]:
            times.setdefault(event["name"], []).append(1e-6 * event["dur"])
    return sum(statistics.median(values) for name, values in times.items() if name.endswith("kernel_time"))


def measure(threads: int, rounds: int, width: int, rows: int, batches: tuple[int, ...]) -> dict[str, Any]:
    torch.set_num_threads(threads)
    detector, images = detector_of(width, rows)
    made, entries = programs(detector, images), []
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        for runtime, build in {"onnxruntime": in_onnxruntime, "torch, compiled": compiled}.items():
            sides = build(made, folder, threads)
            for batch in batches:
                x = images[:batch]
                count = max(5, rounds // (1 if batch == 1 else 20))
                calls = {name: partial(side, x) for name, side in sides.items()}
                alternate(calls, 3)
                entries.append(
                    {"runtime": runtime, "threads": threads, "batch": batch, **summary(alternate(calls, count))}
                )
        floor = products(folder / "graph.onnx", images)
    sizes = {name: sum(part.nbytes for part in program.state_dict.values()) for name, program in made.items()}
    return {"entries": entries, "products_seconds": floor, "network_mb": sizes["bare"] / 1e6}


def summary(seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    extra = [100 * (ours - own) / own for ours, own in zip(seconds["graph"], seconds["bare"], strict=True)]
    low, middle, high = statistics.quantiles(extra, n=4)
    times = {f"{side}_p{q}": float(np.percentile(seconds[side], q)) for side in SIDES for q in (50, 99)}
    return {"extra_percent": middle, "quartiles": [low, high], "rounds": len(extra), **times}


def main() -> None:
    """Measure in one process per number of threads, and write bench/export.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="turns of one image; of many, a twentieth")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=2400)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sizes = (1, 256) if options.width == 64 else (1, 4)
        print(json.dumps(measure(options.threads[0], options.rounds, options.width, options.rows, sizes)))
        return
    given = [f"--{name}={getattr(options, name)}" for name in ("rounds", "width", "rows")]
    parts = []
    for count in options.threads:
        environment = {**os.environ, "OMP_NUM_THREADS": str(count)}
        command = [sys.executable, "-m", "bench.export", "--child", f"--threads={count}", *given]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, cwd=HERE.parent)
        parts.append(json.loads(done.stdout.splitlines()[-1]))
    found = {"command": " ".join(["python -m bench.export", *given[:1]]), "date": now(), "machine": machine()}
    found |= {"entries": [entry for part in parts for entry in part["entries"]]}
    found |= {key: parts[0][key] for key in ("products_seconds", "network_mb")}
    (HERE / "export.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
