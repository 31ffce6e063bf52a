"""Threads, clocks, and how fast this machine multiplies matrices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

Seconds = dict[str, list[float]]


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """As many threads for torch and for the BLAS and OpenMP under scikit-learn."""
    before = torch.get_num_threads()
    with threadpool_limits(count):
        torch.set_num_threads(count)  # inside: torch's MKL is linked statically, where threadpoolctl does not see it
        try:
            yield
        finally:
            torch.set_num_threads(before)


def alternate(
    sides: Mapping[str, Callable[[], Any]],
    rounds: int,
    pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Seconds:
    """Time each side once a round, turn by turn, so that whatever disturbs the machine disturbs all of them.

    Threads of one library spin for up to 0.2 s after its last product, and take the cores from the next one's: sides
    that use different libraries need a pause between them.
    """
    seconds: Seconds = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            time.sleep(pause)
            start = clock()
            side()
            seconds[name].append(clock() - start)
    return seconds


def compare(seconds: Seconds) -> dict[str, Any]:
    """The fields of an entry that holds `ours` beside `sklearn`, each at its median round: the best is luck."""
    ours, theirs = median(seconds["ours"]), median(seconds["sklearn"])
    ratios = [their / own for their, own in zip(seconds["sklearn"], seconds["ours"], strict=True)]
    return {
        "ratio": theirs / ours,
        "ratio_range": [min(ratios), max(ratios)],
        "seconds": ours,
        "sklearn_seconds": theirs,
        "seconds_rounds": seconds["ours"],
        "sklearn_seconds_rounds": seconds["sklearn"],
    }


def matrix_product_peak(size: int, rounds: int = 4) -> dict[str, float]:
    """GFLOP/s of a square matrix product, the better of torch's library and numpy's (which scikit-learn uses)."""
    peak = {}
    for dtype in (torch.float32, torch.float64):
        a, out = torch.randn(2, size, size, generator=torch.Generator().manual_seed(0)).to(dtype)
        sides = {
            "torch": partial(torch.mm, a, a, out=out),
            "numpy": partial(np.dot, a.numpy(), a.numpy(), out=out.numpy()),
        }
        seconds = alternate(sides, rounds)
        bits = str(dtype).removeprefix("torch.")
        peak[f"{bits}_gflops"] = 2e-9 * size**3 / min(min(values) for values in seconds.values())
        peak |= {f"{bits}_{name}_gflops": 2e-9 * size**3 / min(values) for name, values in seconds.items()}
    return peak
