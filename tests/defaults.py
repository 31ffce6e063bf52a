"""Whether defaults of torch, which are the user's, change what a function gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
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


def assert_same(defaults: Iterable[str], run: Callable[[Path], list[Any]], folder: Path) -> None:
    """What `run` gives, in a folder to write to, is the same with another default device, and with another dtype."""
    for name in ("expected", *defaults):
        (folder / name).mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of densities that two epochs or a few inputs did not suffice for
        expected = run(folder / "expected")
        for default in defaults:
            with changed(default):
                found = run(folder / default)
            assert len(found) == len(expected) > 0
            for before, after in zip(expected, found, strict=True):
                if isinstance(before, Tensor):  # the device and dtype too
                    torch.testing.assert_close(
                        after, before, rtol=0, atol=0, equal_nan=True, msg=f"{default}: {{}}".format
                    )
                else:
                    assert after == before, default
