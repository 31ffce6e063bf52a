"""Matrix products in the precision they are written in."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_precision_lock = threading.Lock()
_precision_users = 0
_precision_before: list[str] = []


def _current() -> list[str]:
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # torch < 2.9 has one setting for all
        return [torch.get_float32_matmul_precision()]
    backends: list[Any] = [torch.backends.cuda, torch.backends.mkldnn]
    return [backend.matmul.fp32_precision for backend in backends]


def _set_precision(values: list[str]) -> None:
    if len(values) == 1:
        torch.set_float32_matmul_precision(values[0])
        return
    backends: list[Any] = [torch.backends.cuda, torch.backends.mkldnn]
    for backend, value in zip(backends, values, strict=True):
        backend.matmul.fp32_precision = value


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """No autocast on this kind of device; nothing at all, at no cost, where it is off anyway.

    Example:
        >>> with torch.autocast("cpu"), without_autocast(torch.device("cpu")):
        ...     (torch.ones(2, 3) @ torch.ones(3, 2)).dtype
        torch.float32
    """
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


class full_precision:
    """Products of float32 matrices in float32: no TF32, no bfloat16, no autocast.

    The setting of TF32 belongs to the process. It is put back when the last thread has left, so that threads that come
    and go in any order leave the user's setting as it was. While a graph is traced (`torch.export`, `torch.compile`)
    nothing is touched: there the setting of the run decides.

    Args:
        device: where the products are done.

    Example:
        >>> torch.set_float32_matmul_precision("high")
        >>> with full_precision(torch.device("cpu")):
        ...     product = torch.ones(2, 3) @ torch.ones(3, 2)
        >>> torch.get_float32_matmul_precision()
        'high'
        >>> torch.set_float32_matmul_precision("highest")
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._traced = torch.compiler.is_compiling()

    def __enter__(self) -> None:
        global _precision_users, _precision_before
        if self._traced:
            return
        with _precision_lock:
            if _precision_users == 0:
                _precision_before = _current()
                _set_precision(["highest"] if len(_precision_before) == 1 else ["ieee", "ieee"])
            _precision_users += 1
        self._autocast = without_autocast(self._device)
        self._autocast.__enter__()

    def __exit__(self, *error: Any) -> None:
        global _precision_users
        if self._traced:
            return
        self._autocast.__exit__(*error)
        with _precision_lock:
            _precision_users -= 1
            if _precision_users == 0:
                _set_precision(_precision_before)
