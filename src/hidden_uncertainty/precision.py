"""Numbers in the precision they are written in: full matrix products, and what still has a square."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_precision_lock = threading.Lock()
_precision_users = 0
_precision_before: list[str] = []
_FULL = frozenset(["highest", "ieee", "none"])  # what multiplies float32 as float32; "none" is torch's default
_BACKENDS: list[Any] = (  # torch < 2.9 has one setting for all
    [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
    if hasattr(torch.backends.cuda.matmul, "fp32_precision")
    else []
)


def _current() -> list[str]:
    return [backend.fp32_precision for backend in _BACKENDS] or [torch.get_float32_matmul_precision()]


def _set_precision(values: list[str]) -> None:
    if not _BACKENDS:
        torch.set_float32_matmul_precision(values[0])
    for backend, value in zip(_BACKENDS, values, strict=False):
        backend.fp32_precision = value


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off for this kind of device; costs nothing where it is off already.

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

    The setting of TF32 belongs to the process. It is restored when the last thread has left, so that threads that come
    and go in any order leave the user's setting as it was. While a graph is traced (`torch.export`, `torch.compile`)
    nothing is changed: the setting when the graph runs decides.

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
        self._counted = False
        self._autocast: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        global _precision_users, _precision_before
        if torch.compiler.is_compiling():
            return
        with _precision_lock:
            before = _current()
            # Where precision is full already there is nothing to change, and nothing to restore.
            self._counted = _precision_users > 0 or not _FULL.issuperset(before)
            if self._counted:
                if _precision_users == 0:
                    _precision_before = before
                    _set_precision(["highest"] if len(before) == 1 else ["ieee", "ieee"])
                _precision_users += 1
        self._autocast = without_autocast(self._device)
        self._autocast.__enter__()

    def __exit__(self, *error: Any) -> None:
        global _precision_users
        if self._autocast is not None:
            self._autocast.__exit__(*error)
        if self._counted:
            with _precision_lock:
                _precision_users -= 1
                if _precision_users == 0:
                    _set_precision(_precision_before)


def farthest(dtype: torch.dtype) -> float:
    """The number beyond which densities in dtype saturate: squares of larger ones would overflow."""
    return torch.finfo(dtype).max ** 0.45


def saturate(z: Tensor, dtype: torch.dtype) -> Tensor:
    """Pull rows whose squares would overflow in dtype back along their ray, so that scores stop growing there."""
    if z.dtype != dtype:
        z = z.to(torch.promote_types(z.dtype, dtype))
    return (z / (z.abs().amax(-1, keepdim=True) / farthest(dtype)).clamp(min=1)).to(dtype)
