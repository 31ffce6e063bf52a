"""Memory of principal components from a stream, each measurement in a fresh process.

Run as `python -m bench.pca '{"side": "ours", …}'`, it measures one side and prints JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hidden_uncertainty.reduce.pca import StreamingPCA

from .data import signals
from .timing import use_threads

Fit = Callable[[int, int, int], tuple[Tensor, Tensor, float]]  # of rows, dim, keep: mean, basis, seconds of loading
ROOT = Path(__file__).resolve().parent.parent


def measure(rows: int, dim: int, keep: int, *, fewer: int, threads: int, beside: bool) -> dict[str, Any]:
    """Our peak memory on all rows; `beside`, on fewer of them, ours and scikit-learn's, which holds them all.

    `captured` is always the share of the variance of these fewer rows.
    """
    size = {"dim": dim, "keep": keep, "fewer": fewer, "threads": threads}
    ours = _in_fresh_process({"side": "ours", "rows": rows, **size})
    entry = {"value": ours["gb"], "unit": "GB", **ours, "rows": rows, "dim": dim, "keep": keep}
    if beside:
        entry["beside"] = {
            "rows": fewer,
            "ours": ours if fewer == rows else _in_fresh_process({"side": "ours", "rows": fewer, **size}),
            "sklearn": _in_fresh_process({"side": "sklearn", "rows": fewer, **size}),
        }
    return entry


def _in_fresh_process(job: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.pca", json.dumps(job)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring memory failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _run(side: str, rows: int, dim: int, keep: int, fewer: int) -> dict[str, Any]:
    fit = _ours if side == "ours" else _sklearn()  # imports count before, not after, as does the loader itself
    for batch in signals(min(rows, 1024), dim):
        batch.mean()
    before, start = _peak_gb(), time.perf_counter()
    mean, basis, loading = fit(rows, dim, keep)
    return {
        "gb": _peak_gb() - before,
        "seconds": time.perf_counter() - start - loading,
        "loading_seconds": loading,
        "captured": _captured(fewer, dim, mean, basis),
    }


def _ours(rows: int, dim: int, keep: int) -> tuple[Tensor, Tensor, float]:
    pca = StreamingPCA(dim, keep)
    loading = 0.0
    while pca.passes_left:
        stream, start = signals(rows, dim), time.perf_counter()
        for batch in stream:
            loading += time.perf_counter() - start
            pca.update(batch)
            start = time.perf_counter()
        pca.end_pass()
    found = pca.components
    return found.mean, found.basis, loading


def _sklearn() -> Fit:
    from sklearn.decomposition import PCA

    def fit(rows: int, dim: int, keep: int) -> tuple[Tensor, Tensor, float]:
        start = time.perf_counter()
        x = torch.empty(rows, dim)
        for part, batch in zip(x.split(256), signals(rows, dim), strict=True):
            part.copy_(batch)
        loading = time.perf_counter() - start
        found = PCA(keep, svd_solver="randomized", random_state=0).fit(x.numpy())
        return torch.from_numpy(found.mean_), torch.from_numpy(found.components_.T.copy()), loading

    return fit


def _captured(rows: int, dim: int, mean: Tensor, basis: Tensor) -> float:
    """The share of the variance of the rows that lies within the basis."""
    inside = total = 0.0
    for batch in signals(rows, dim):
        centred = batch - mean
        inside += float((centred @ basis).double().square().sum())
        total += float(centred.double().square().sum())
    return inside / total


def _peak_gb() -> float:
    """The most memory that this process ever held. (`getrusage` would count its parent's, before `exec`, as well.)"""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e9


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    with use_threads(job.pop("threads")):
        print(json.dumps(_run(**job)))
