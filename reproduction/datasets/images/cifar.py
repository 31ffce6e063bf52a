"""CIFAR10 and CIFAR100: batches pickled by Python 2, which are read without running them."""

from __future__ import annotations

from hashlib import md5
from pathlib import Path
from typing import Literal

import numpy as np

from ._pickled import parse
from .base import Images, build
from .files import Root, choose_part, locate
from .sources import get

BATCHES = {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)}
HUNDRED = {"train": ("train",), "test": ("test",)}
Part = Literal["train", "test"]


def cifar10(part: Part = "train", *, root: Root = None) -> Images:
    """CIFAR10: photographs of ten kinds of things, (n, 3, 32, 32).

    Args:
        part: `"train"` (50,000) or `"test"` (10,000).
        root: the folder that holds `cifar-10-batches-py/`; None takes it from the environment variable
            HIDDEN_UNCERTAINTY_DATA.

    Example:
        >>> cifar10("test", root="data").images.shape  # doctest: +SKIP
        torch.Size([10000, 3, 32, 32])
    """
    return _read("cifar10", BATCHES[choose_part(part, *BATCHES)], "labels", 10, root)


def cifar100(part: Part = "train", *, root: Root = None) -> Images:
    """CIFAR100: photographs of a hundred kinds of things, (n, 3, 32, 32).

    Args:
        part: `"train"` (50,000) or `"test"` (10,000).
        root: the folder that holds `cifar-100-python/`; None takes it from the environment variable
            HIDDEN_UNCERTAINTY_DATA.

    Example:
        >>> cifar100("test", root="data").images.shape  # doctest: +SKIP
        torch.Size([10000, 3, 32, 32])
    """
    return _read("cifar100", HUNDRED[choose_part(part, *HUNDRED)], "fine_labels", 100, root)


def _read(source: str, names: tuple[str, ...], key: str, classes: int, root: Root) -> Images:
    """The images of some files, whose labels are found by a key."""
    images, labels, different = [], [], []
    for name in names:
        file = get(source).files[name]
        path = locate(source, root, file.path)
        content = path.read_bytes()
        pixels, numbers = _read_batch(path, content, source.upper(), key)
        images.append(pixels)
        labels.append(numbers)
        if md5(content, usedforsecurity=False).hexdigest() != file.md5:
            different.append(name)
    return build(
        source, path.parent, np.concatenate(images), np.concatenate(labels), classes=classes, different=different
    )


def _read_batch(path: Path, content: bytes, source: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels (n,) of one file."""
    try:
        batch = parse(content)
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(
            f"{str(path)!r} is damaged or not a batch of {source}: {error or type(error).__name__}."
        ) from None
    if not isinstance(batch, dict):
        raise ValueError(f"{str(path)!r} holds a {type(batch).__name__}, expected a dict.")
    entries = {name.decode("latin-1") if isinstance(name, bytes) else name: value for name, value in batch.items()}
    if not {"data", key} <= set(entries):
        raise ValueError(f"{str(path)!r} has entries {sorted(map(str, entries))}, expected 'data' and {key!r}.")
    data, labels = entries["data"], entries[key]
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072:
        shape = getattr(data, "shape", type(data).__name__)
        raise ValueError(f"'data' of {str(path)!r} is {shape}, expected bytes (n, 3072).")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise ValueError(f"{key!r} of {str(path)!r} must be a list of integers, one per image.")
    return data.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)
