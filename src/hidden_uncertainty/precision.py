"""Numbers in the precision they are written in, and the settings of torch that a function runs under.

An interrupt may come after every call that Python makes, also on the way into and out of a context manager that is
written in Python. What is set here is put back by context managers of torch that are written in C++, or by `finally`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .notes import note

P = ParamSpec("P")
T = TypeVar("T")
_FULL = frozenset(["highest", "ieee", "none"])  # what multiplies float32 as float32; "none" is torch's default
_BACKENDS: list[Any] = (  # torch < 2.9 has one setting for all
    [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
    if hasattr(torch.backends.cuda.matmul, "fp32_precision")
    else []
)
TRIES = 8
LONGEST = 5e-4  # seconds that a small operation may take on average: on a quiet core it is a hundredth of that
LARGE = 1 << 20  # numbers to fit to, from which on the share of the cores is measured, which takes longer
PROBE, LEAST = 0.02, 0.7  # seconds that this takes, and what it must be of the threads' cores


class Setting:
    """A setting of the whole process, changed by the first thread that needs it and put back after the last.

    `needed` says what it must be instead of what it is, and None where it can stay.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], needed: Callable[[Any], Any]) -> None:
        self._read, self._write, self._needed = read, write, needed
        self._lock = threading.Lock()
        self._users: set[tuple[int, object]] = set()  # with their threads
        self._before: Any = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def around(self, work: Callable[[], T]) -> T:
        """Call `work` with the setting as it must be."""
        user = (threading.get_ident(), object())

        def with_setting() -> T:
            with self._lock:
                self._users.add(user)
                if self._before is None:
                    now = self._read()
                    value = self._needed(now)
                    if value is not None:
                        self._before = now
                        self._write(value)
            return work()

        return put_back_after(with_setting, lambda: self._free(user))

    def _free(self, user: tuple[int, object]) -> None:
        """May be called again, where an interrupt cut it short."""
        with self._lock:
            self._users.discard(user)
            if not self._users and self._before is not None:
                self._write(self._before)
                self._before = None

    def _after_fork(self) -> None:
        """Of the threads that used it, the child has at most the one that forked."""
        self._lock = threading.Lock()
        self._users = {user for user in self._users if user[0] == threading.get_ident()}
        self._free((0, None))


def _current() -> list[str]:
    return [backend.fp32_precision for backend in _BACKENDS] or [torch.get_float32_matmul_precision()]


def _set_precision(values: list[str]) -> None:
    if not _BACKENDS:
        torch.set_float32_matmul_precision(values[0])
    for backend, value in zip(_BACKENDS, values, strict=False):
        backend.fp32_precision = value


_products = Setting(
    _current,
    _set_precision,
    lambda now: None if _FULL.issuperset(now) else ["ieee", "ieee"] if _BACKENDS else ["highest"],
)


def precise(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose products of float32 matrices are in float32: no TF32, no bfloat16, no autocast.

    The setting of TF32 belongs to the process. It is restored when the last thread has left, so that threads that come
    and go in any order leave the user's setting as it was. While a graph is traced (`torch.export`, `torch.compile`)
    nothing is changed: the setting when the graph runs decides.
    """

    @wraps(function)
    def exactly(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        with torch._C._DisableAutocast():
            return _products.around(lambda: function(*args, **kwargs))

    return exactly


def put_back_after(work: Callable[[], T], put_back: Callable[[], None]) -> T:
    """Call `work`, then `put_back` whatever came of it: twice, since an interrupt may cut it short once."""
    try:
        return work()
    finally:
        try:
            put_back()
        finally:
            put_back()


def gradients(enabled: bool, *, lasting: bool = False) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function that runs with gradients on or off; as `torch.no_grad`, but no interrupt leaves them so.

    If it is `lasting`, it runs outside inference mode: the tensors it makes can be updated and differentiated later.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def inner(*args: P.args, **kwargs: P.kwargs) -> T:
            if torch.compiler.is_compiling():
                with torch.set_grad_enabled(enabled):
                    return function(*args, **kwargs)
            # It is put back with inference mode: torch has no such context manager for gradients alone.
            with torch._C._InferenceMode(not lasting and torch.is_inference_mode_enabled()):
                torch._C._set_grad_enabled(enabled)
                return function(*args, **kwargs)

        return inner

    return decorate


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off; costs nothing where it is off for this kind of device."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    if torch.compiler.is_compiling():
        return torch.autocast(device.type, enabled=False)
    return torch._C._DisableAutocast()


def farthest(dtype: torch.dtype) -> float:
    """The number beyond which densities in dtype saturate: squares of larger ones would overflow."""
    return torch.finfo(dtype).max ** 0.45


def saturate(z: Tensor, dtype: torch.dtype) -> Tensor:
    """Pull rows whose squares would overflow in dtype back along their ray, so that scores stop growing there."""
    if z.dtype != dtype:
        z = z.to(torch.promote_types(z.dtype, dtype))
    return (z / (z.abs().amax(-1, keepdim=True) / farthest(dtype)).clamp(min=1)).to(dtype)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work with one thread: small matrices gain nothing by more, and sums then have one order everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def helpful_threads(size: int) -> Iterator[None]:
    """Run a block that fits to `size` numbers by small operations, on one thread where several are slower.

    The threads of one operation end together. Where one of them waits for its core, the others spin until their own
    time is up, so that an operation takes as long as the system lets a process run. The environment variable
    `OMP_WAIT_POLICY=passive`, set before Python starts, has them sleep instead.
    """
    threads = torch.get_num_threads()
    if threads == 1 or (_seconds() < LONGEST and (size < LARGE or _cores() >= LEAST * threads)):
        yield
        return
    note(
        f"other work keeps the cores busy, so that {threads} threads would wait for each other: fitting on one. "
        "OMP_WAIT_POLICY=passive in the environment lets them share."
    )
    with one_thread():
        yield


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
