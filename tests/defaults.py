"""Whether defaults of torch, which are the user's, change what a function gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@contextmanager
def changed(default: str) -> Iterator[None]:
    """No GPU is needed: where the default is meta, whatever follows it has no data, and breaks what it meets."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64 if default == "dtype" else before)
        with torch.device("meta" if default == "device" else "cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def assert_same(default: str, run: Callable[[Path], list[Any]], folder: Path) -> None:
    """What `run` gives, in a folder to write to, is the same with another default device or dtype."""
    for name in ("expected", "found"):
        (folder / name).mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of densities that two epochs or a few inputs did not suffice for
        expected = run(folder / "expected")
        with changed(default):
            found = run(folder / "found")
    assert len(found) == len(expected) > 0
    for before, after in zip(expected, found, strict=True):
        if isinstance(before, Tensor):
            torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)  # the device and dtype too
        else:
            assert after == before
