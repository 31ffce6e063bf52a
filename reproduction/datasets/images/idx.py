"""MNIST and FashionMNIST: IDX files, a header with the shape and then the bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from hashlib import md5
from pathlib import Path
from typing import Literal

import numpy as np

from .base import Images, build
from .files import Root, choose_part, locate, open_unpacked
from .sources import get

SIDE = 28


def mnist(part: Literal["train", "test"] = "train", *, root: Root = None) -> Images:
    """MNIST: handwritten digits, white on black, (n, 1, 28, 28).

    Args:
        part: `"train"` (60,000) or `"test"` (10,000).
        root: the folder that holds `MNIST/raw/`, with IDX files as they are or as .gz; None takes it from the
            environment variable HIDDEN_UNCERTAINTY_DATA.

    Example:
        >>> mnist("test", root="data").images.shape  # doctest: +SKIP
        torch.Size([10000, 1, 28, 28])
    """
    return _read("mnist", part, root)


def fashion_mnist(part: Literal["train", "test"] = "train", *, root: Root = None) -> Images:
    """FashionMNIST: garments, white on black, (n, 1, 28, 28).

    Args:
        part: `"train"` (60,000) or `"test"` (10,000).
        root: the folder that holds `FashionMNIST/raw/`; otherwise as for `mnist`.

    Example:
        >>> fashion_mnist("test", root="data").images.shape  # doctest: +SKIP
        torch.Size([10000, 1, 28, 28])
    """
    return _read("fashionmnist", part, root)


def _read(name: str, part: str, root: Root) -> Images:
    stem = "train" if choose_part(part, "train", "test") == "train" else "t10k"
    arrays, different = [], []
    for kind, dimensions in (("images-idx3", 3), ("labels-idx1", 1)):
        file = get(name).files[f"{stem}-{kind}-ubyte"]
        path = locate(name, root, file.path, *file.also)
        values, total = _read_idx(path, dimensions)
        arrays.append(values)
        if total != file.md5:
            different.append(path.name)
    images, labels = arrays
    if images.shape[1:] != (SIDE, SIDE):
        raise ValueError(f"{str(path.parent)!r} holds images of {images.shape[1:]} pixels, expected {SIDE}×{SIDE}.")
    return build(name, path.parent, images[:, None], labels.astype(np.int64), classes=10, different=different)


def _read_idx(path: Path, dimensions: int) -> tuple[np.ndarray, str]:
    """The bytes of an IDX file, in the shape its header states, and the md5 of its unpacked content."""
    with open_unpacked(path) as file:
        try:
            content = file.read()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{str(path)!r} is cut short or damaged ({error}). Fetch it again.") from None
    start = 4 + 4 * dimensions
    magic = bytes([0, 0, 8, dimensions])  # 8: unsigned bytes
    if content[:4] != magic:
        raise ValueError(
            f"{str(path)!r} is not an IDX file of bytes in {dimensions} dimensions: "
            f"it begins with {content[:4].hex(' ') or 'nothing'}, not {magic.hex(' ')}."
        )
    if len(content) < start:
        raise ValueError(f"{str(path)!r} ends inside its header of {start} bytes. Fetch it again.")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = int(np.prod(shape, dtype=object))
    if len(content) - start != expected:
        what = "cut short" if len(content) - start < expected else "too long"
        raise ValueError(
            f"{str(path)!r} is {what}: its header states {shape[0]:,} items, {expected:,} bytes, "
            f"but {len(content) - start:,} bytes follow. Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape), md5(
        content, usedforsecurity=False
    ).hexdigest()
