"""As many threads as help. On busy cores threads wait for each other, a thousand times as long as they work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .notes import note

TRIES = 8
LONGEST = 5e-4  # seconds that a small operation may take on average: on a quiet core it is a hundredth of that
LARGE = 1 << 20  # numbers to fit to, from which on the share of the cores is measured, which takes longer
PROBE = 0.02  # seconds that this takes
LEAST = 0.7  # of the threads' cores


@contextmanager
def helpful_threads(size: int) -> Iterator[None]:
    """Run a block of many small operations on one thread, where several are slower: where other work has the cores.

    Args:
        size: how many numbers are fitted to.

    The threads of one operation end together. Where one of them waits for its core, the others spin until their own
    time is up, so that an operation takes as long as the system lets a process run. The environment variable
    `OMP_WAIT_POLICY=passive`, set before Python starts, has them sleep instead.

    Example:
        >>> threads = torch.get_num_threads()
        >>> with helpful_threads(size=1000):
        ...     few = torch.get_num_threads()
        >>> few in (1, threads), torch.get_num_threads() == threads
        (True, True)
    """
    threads = torch.get_num_threads()
    if threads == 1 or (_seconds() < LONGEST and (size < LARGE or _cores() >= LEAST * threads)):
        yield
        return
    note(
        f"other work keeps the cores busy, so that {threads} threads would wait for each other: fitting on one. "
        "OMP_WAIT_POLICY=passive in the environment lets them share."
    )
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _seconds() -> float:
    """How long a small operation takes that all threads share, on average."""
    x = torch.zeros(1 << 17, device="cpu")
    start = time.perf_counter()
    for _ in range(TRIES):
        x.add_(1.0)
    return (time.perf_counter() - start) / TRIES


def _cores() -> float:
    """How many cores all threads together get."""
    x = torch.zeros(LARGE, device="cpu")
    start, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < PROBE:
        x.sin_()
    return (time.process_time() - used) / (time.perf_counter() - start)
