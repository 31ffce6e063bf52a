"""SVHN: digits of house numbers, cropped, in MATLAB files."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from .base import Images, build
from .files import Root, checksum, choose_part, locate
from .sources import get

_MATRIX, _COMPRESSED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}


def svhn(part: Literal["train", "test", "extra"] = "train", *, root: Root = None) -> Images:
    """SVHN: house numbers, one digit in the middle, (n, 3, 32, 32); the digit 0 has label 0.

    Args:
        part: `"train"` (73,257), `"test"` (26,032) or `"extra"` (531,131 easier ones).
        root: the folder that holds `SVHN/`, or the .mat files themselves; None takes it from the environment variable
            HIDDEN_UNCERTAINTY_DATA.

    Example:
        >>> svhn("test", root="data").images.shape  # doctest: +SKIP
        torch.Size([26032, 3, 32, 32])
    """
    name = "svhn-extra" if choose_part(part, "train", "test", "extra") == "extra" else "svhn"
    file = get(name).files[f"{part}_32x32.mat"]
    path = locate(name, root, file.path, *file.also)
    pixels, labels = _read_mat(path)
    different = [] if checksum(path) == file.md5 else [path.name]
    return build(name, path.parent, pixels.transpose(3, 2, 0, 1), labels % 10, classes=10, different=different)


def _read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (32, 32, 3, n) and labels (n,) in 1 … 10, where 10 is the digit 0."""
    try:
        variables = dict(_arrays(path.read_bytes()))
    except Exception as error:  # a damaged file can fail in many ways
        raise ValueError(
            f"{str(path)!r} is damaged or not a MATLAB file ({error or type(error).__name__}). Fetch it again."
        ) from None
    if not {"X", "y"} <= set(variables):
        raise ValueError(f"{str(path)!r} holds no variables X and y: not a file of cropped digits, or cut short.")
    pixels, labels = variables["X"], variables["y"]
    if pixels.shape[:3] != (32, 32, 3) or pixels.ndim != 4 or pixels.dtype != np.uint8:
        raise ValueError(f"X of {str(path)!r} is {pixels.shape} of {pixels.dtype}, expected (32, 32, 3, n) of uint8.")
    labels = labels.ravel()
    if not np.isin(labels, range(1, 11)).all():
        raise ValueError(f"y of {str(path)!r} holds values other than 1 … 10.")
    return pixels, labels.astype(np.int64)


def _arrays(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays X and y of a MATLAB file of version 5. Every size is checked: wrong ones make scipy's reader crash."""
    if content[124:128] != b"\x00\x01IM":
        raise ValueError("it does not begin as one of version 5")
    for kind, data in _elements(memoryview(content)[128:]):
        if kind == _COMPRESSED:
            ((kind, data),) = _elements(memoryview(zlib.decompress(data)))
        if kind == _MATRIX:
            _, (_, shape), (_, name), (stored, values) = islice(_elements(data), 4)
            if bytes(name) in (b"X", b"y"):
                numbers = np.frombuffer(values, _TYPES[stored])
                yield bytes(name).decode(), numbers.reshape(np.frombuffer(shape, "<u4"), order="F")


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Type and content of the elements that follow each other."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from("<II", content, at)
        at += 8
        if kind >> 16:  # up to four bytes are kept where others have their size
            kind, size, at = kind & 0xFFFF, kind >> 16, at - 4
        if size > len(content) - at:
            raise ValueError(f"{size:,} bytes are announced where {len(content) - at:,} are left")
        yield kind, content[at : at + size]
        at += size
        at += 0 if kind == _COMPRESSED else -at % 8
