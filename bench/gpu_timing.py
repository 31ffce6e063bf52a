"""Clocks, memory, ceilings and profiles of one device; a CPU passes for one when a run is to be tried out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from hidden_uncertainty.precision import precise

Run = Callable[[], Any]
# What a kernel is for, by its name: the first that matches. Solvers call products too, which count as products.
KINDS = {
    "factorisations": r"potr?f|trsm|trtri|syev|sytr|stedc|geqr|orgqr|ormtr|larf|household|cholesky|triangular|eigh|_qr",
    "products": r"gemm|gemv|cutlass|xmma|splitk|syrk|dot_kernel|mm\b",
    "copies": r"memcpy|memset|copy|catarray|index|gather|scatter|fill|\bcat\b|sort",
    "sums": r"reduce|softmax|logsumexp|\bsum\b|norm|scan|aminmax",
    "element by element": r"elementwise|unrolled|pointwise|\b(mul|add|sub|div|pow|sqrt|exp|clamp|addcmul)_?\b",
}


class Work(NamedTuple):
    """The least that has to be done: floating-point operations in each precision, and bytes through memory."""

    float32: float = 0.0
    float64: float = 0.0
    bytes: float = 0.0


class Device:
    """Where things run, how fast it multiplies and copies, and what that says about a measurement.

    Args:
        name: `"cuda"` or `"cpu"`.
        size: rows of the square matrices whose product is timed.
        copied: bytes that are copied to see the bandwidth.
    """

    def __init__(self, name: str, size: int, copied: int) -> None:
        self.torch = torch.device(name)
        self.cuda = self.torch.type == "cuda"
        self.size, self.copied = size, copied
        self.ceilings = self.measure_ceilings()

    def wait(self) -> None:
        """Until all that was started has ended."""
        if self.cuda:
            torch.cuda.synchronize(self.torch)

    def seconds(self, run: Run, rounds: int) -> list[float]:
        """The time of each round, from a device at rest to one at rest."""
        found = []
        for _ in range(rounds):
            self.wait()
            start = time.perf_counter()
            run()
            self.wait()
            found.append(time.perf_counter() - start)
        return found

    @precise
    def measure_ceilings(self) -> dict[str, float]:
        """GFLOP/s of a square product in each precision, and GB/s of a copy, read and written."""
        found = {}
        random = torch.Generator(self.torch).manual_seed(0)
        for dtype in (torch.float32, torch.float64):
            a, b = torch.randn(2, self.size, self.size, device=self.torch, generator=random).to(dtype)
            out = torch.empty_like(a)
            best = min(self.seconds(partial(torch.mm, a, b, out=out), 6)[1:])
            found[f"{str(dtype).removeprefix('torch.')}_gflops"] = 2e-9 * self.size**3 / best
        source = torch.rand(self.copied // 4, device=self.torch, generator=random)
        target = torch.empty_like(source)
        found["bandwidth_gbs"] = 2e-9 * self.copied / min(self.seconds(partial(target.copy_, source), 6)[1:])
        return found

    def floor(self, work: Work) -> tuple[float, str]:
        """The time below which no version goes, and what sets it."""
        products = 1e-9 * (
            work.float32 / self.ceilings["float32_gflops"] + work.float64 / self.ceilings["float64_gflops"]
        )
        memory = 1e-9 * work.bytes / self.ceilings["bandwidth_gbs"]
        return max((products, "products"), (memory, "bytes"))

    def measure(
        self, name: str, run: Run, work: Work, *, rounds: int, warm: int = 1, part: Run | None = None
    ) -> dict[str, Any]:
        """An entry: the rounds of `run` beside its floor, its peak memory, and what holds the rest.

        Args:
            name: of the entry.
            run: what is timed.
            work: what it must at least do.
            rounds: how often it is timed.
            warm: how often it is run before.
            part: what is profiled, where all of it would be too much.
        """
        before = torch.cuda.memory_allocated(self.torch) if self.cuda else 0  # what was fitted here is not yet in it
        self.seconds(run, warm)
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.torch)
        seconds = self.seconds(run, rounds)
        memory = self._memory(before) if self.cuda else {}
        least, by = self.floor(work)
        return {
            "name": name,
            "seconds": median(seconds),
            "seconds_rounds": seconds,
            "seconds_range": [min(seconds), max(seconds)],
            "floor_seconds": least,
            "floor_set_by": by,
            "share_of_floor": least / median(seconds),
            "necessary": {"float32_gflop": 1e-9 * work.float32, "float64_gflop": 1e-9 * work.float64}
            | {"gb": 1e-9 * work.bytes},
            **memory,
            **self.profile(part or run),
        }

    def _memory(self, before: int) -> dict[str, float]:
        peak = torch.cuda.max_memory_allocated(self.torch)
        return {"peak_gb": 1e-9 * peak, "peak_beyond_inputs_gb": 1e-9 * (peak - before)}

    def profile(self, run: Run, top: int = 6) -> dict[str, Any]:
        """Shares of the time by what kernels are for, what is left for waiting on the host, and the longest kernels."""
        wall = self.seconds(run, 1)[0]
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])]
        try:
            with torch.profiler.profile(activities=activities, acc_events=True) as found:
                run()
                self.wait()
        except RuntimeError as error:
            return {"holds": {}, "kernels": [], "profile_note": f"no profile: {error}"}
        kernels = []
        for event in found.key_averages():
            if self.cuda and event.device_type != DeviceType.CUDA:
                continue  # the operator that started a kernel, which would count it again
            spent = 1e-6 * (event.self_device_time_total if self.cuda else event.self_cpu_time_total)
            if spent > 0:
                kernels.append({"kernel": event.key[:120], "calls": event.count, "seconds": spent})
        kernels.sort(key=lambda kernel: -kernel["seconds"])
        busy = sum(kernel["seconds"] for kernel in kernels)
        holds = dict.fromkeys([*KINDS, "other"], 0.0)
        for kernel in kernels:
            holds[kind(kernel["kernel"])] += kernel["seconds"] / max(wall, busy)
        holds["waiting for the host"] = max(0.0, 1 - busy / wall)
        return {"holds": holds, "kernels": kernels[:top]}


def kind(kernel: str) -> str:
    """What a kernel of this name is for.

    Example:
        >>> kind("sm90_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8")
        'products'
        >>> kind("void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda>")
        'copies'
    """
    lower = kernel.lower()
    return next((name for name, pattern in KINDS.items() if re.search(pattern, lower)), "other")
