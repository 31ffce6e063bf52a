"""`python -m bench.scale`: time and memory of a fit, however many rows there are, in one process and in several.

A network hands on rows of 512 numbers that are drawn as they are read, so that no data set is held. Every line of the
table has fresh processes, one thread each. Memory is the most that one of them held above what it held after reading
some batches. With `--gpu` the rows are drawn on a GPU, more at a time, and memory is the GPU's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from hidden_uncertainty import Detector, GaussianMixture, LatentDensity
from hidden_uncertainty.baselines import Mahalanobis
from hidden_uncertainty.progress import bars

from . import record
from .gpu_cases import Handing
from .growth_point import memory_mb, settled_mb

HERE = Path(__file__).resolve().parent
DIM, CLASSES, BATCH, STEPS, APART = 512, 10, 1024, 10, 6.0
GPU, GPU_BATCH = ", on a GPU", 1 << 16
NAMES = ("pooled", "full Gaussians", "mixtures, spilled")
FULL = {
    "pooled": ([10_000, 100_000, 1_000_000, 10_000_000], [1, 2, 4]),
    "full Gaussians": ([10_000, 100_000, 1_000_000], [1, 2, 4]),
    "mixtures, spilled": ([10_000, 100_000, 1_000_000], [1]),
}
ON_A_GPU = {name: (sizes, [1]) for name, (sizes, _) in FULL.items() if "spilled" not in name}
QUICK = {name: ([2000, 4000], [1, 2] if name == "pooled" else [1]) for name in NAMES}


class Drawn:
    """Batches that are drawn as they are read, the same in every pass: classes, each of two clusters."""

    def __init__(self, rows: int, seed: int, device: str = "cpu") -> None:
        self.rows, self.seed, self.device = rows, seed, device
        self.batch = BATCH if device == "cpu" else GPU_BATCH
        self.middle = (torch.randn(2, DIM, generator=torch.Generator().manual_seed(0)) / 8).to(device)

    def __iter__(self) -> Iterator[Tensor]:
        random = torch.Generator(self.device).manual_seed(self.seed)
        for start in range(0, self.rows, self.batch):
            size = min(self.batch, self.rows - start)
            x = torch.randn(size, DIM, generator=random, device=self.device)
            which = torch.arange(size, device=self.device)
            x += self.middle[(which // CLASSES) % 2]
            x[which, which % CLASSES] += APART
            yield x

    def __len__(self) -> int:
        return -(-self.rows // self.batch)


def detector(name: str) -> Detector:
    """What is fitted; mixtures take as many steps as are asked for, and no fewer."""
    if name == "pooled":
        return Mahalanobis(Handing(CLASSES), "hidden", task="classification")
    density = GaussianMixture(1) if name == "full Gaussians" else GaussianMixture(2, tol=0.0, max_iter=STEPS)
    return LatentDensity(Handing(CLASSES), "hidden", density, task="classification")


def measure(name: str, rows: int, rank: int, processes: int, folder: str) -> dict[str, float]:
    """Seconds and MB of one process, whose shard is its part of the rows."""
    torch.set_num_threads(1)
    if processes > 1:
        store = f"file://{folder}/store"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
    options = {"spill": folder} if name == "mixtures, spilled" else {}
    mine = Drawn(rows // processes + (rank < rows % processes), seed=rank)
    with warnings.catch_warnings(), bars(False), torch.no_grad():
        warnings.simplefilter("ignore")  # mixtures stop before they have converged
        detector(name).fit(Drawn(1000, seed=99), process_group=False, **options)  # code is read from disk
        for _, x in zip(range(8), Drawn(8 * BATCH, seed=98), strict=True):
            Handing(CLASSES)(x)
        before, start = settled_mb(), time.perf_counter()
        detector(name).fit(mine, **options)
        return {"seconds": time.perf_counter() - start, "peak_mb": memory_mb("VmHWM") - before}


def on_a_gpu(name: str, rows: int) -> dict[str, Any]:
    """One row of the table, in this process."""

    def run(count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        detector(name).fit(Drawn(count, seed=0, device="cuda"))
        torch.cuda.synchronize()
        return time.perf_counter() - start

    with warnings.catch_warnings(), bars(False), torch.no_grad():
        warnings.simplefilter("ignore")
        run(1000)  # libraries are loaded
        gc.collect()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        seconds = run(rows)
        peak = torch.cuda.max_memory_allocated() - before
        one = next(iter(Drawn(rows, seed=0, device="cuda"))).nbytes  # the loader's own
    return {
        "name": f"{name}{GPU}",
        "rows": rows,
        "processes": 1,
        "seconds": round(seconds, 3),
        "peak_mb": round((peak - one) / 1e6, 2),
        "batch_mb": round(one / 1e6, 2),
    }


def in_processes(name: str, rows: int, processes: int) -> dict[str, Any]:
    """One row of the table: the slowest process, and the one that held most."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.scale", "--one", name, str(rows), str(processes), folder]
        started = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, env=environment, text=True)
            for rank in range(processes)
        ]
        said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"{name}, {rows:,} rows, {processes} processes: a process failed.")
    found = [json.loads(text.splitlines()[-1]) for text in said]
    worst = {key: round(max(one[key] for one in found), 2) for key in ("seconds", "peak_mb")}
    return {"name": name, "rows": rows, "processes": processes, **worst}


def main(arguments: list[str] | None = None) -> int:
    """Measure what is missing in the file, and write it after every row."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; the times mean nothing")
    parser.add_argument("--gpu", action="store_true", help="measure on a GPU; other rows in the file are kept")
    parser.add_argument("--most", type=int, default=10**9, help="leave out rows beyond this")
    parser.add_argument("--out", type=Path, help="where to write; a whole run has a default, bench/scale.json")
    parser.add_argument("--one", nargs=5, metavar=("NAME", "ROWS", "PROCESSES", "FOLDER", "RANK"), help="one process")
    options = parser.parse_args(arguments)
    if options.one:
        name, rows, processes, folder, rank = options.one
        print(json.dumps(measure(name, int(rows), int(rank), int(processes), folder)), flush=True)
        return 0
    out = options.out or (None if options.quick else HERE / "scale.json")
    about = {"command": "python -m bench.scale", "machine": record.machine(), "dim": DIM, "classes": CLASSES}
    result: dict[str, Any] = {**about, "date": record.now(), "rows": []}
    if out is not None and out.is_file():
        before = json.loads(out.read_text(encoding="utf-8"))
        if options.gpu:
            result = before
        else:
            same = before["machine"] == about["machine"]
            result["rows"] = [row for row in before["rows"] if same or row["name"].endswith(GPU)]
            result |= {key: before[key] for key in ("gpu",) if key in before}
    if options.gpu:
        result["gpu"] = {"device": torch.cuda.get_device_name(), "date": record.now(), "machine": about["machine"]}
        result["rows"] = [row for row in result["rows"] if not row["name"].endswith(GPU)]
    done = {(row["name"], row["rows"], row["processes"]) for row in result["rows"]}
    asked = ON_A_GPU if options.gpu else QUICK if options.quick else FULL
    for name, (sizes, counts) in asked.items():
        for rows in [size for size in sizes if size <= options.most]:
            for processes in counts:
                if (name + GPU * options.gpu, rows, processes) not in done:
                    found = on_a_gpu(name, rows) if options.gpu else in_processes(name, rows, processes)
                    result["rows"].append(found)
                    print(found, flush=True)
                    if out is not None:
                        record.write(result, out)  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main())
