"""Finding files of data sets, their checksums, and packages that only some of them need."""

from __future__ import annotations

import gzip
import os
import zlib
from hashlib import md5
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast

from ..root import VARIABLE, find
from .sources import File

BLOCK = 1 << 20
Root = str | os.PathLike[str] | None


def locate(name: str, root: Root, path: str, *also: str) -> Path:
    """Find a file or folder of a data set; the error says where it was looked for and how to download it.

    Args:
        name: of the data set.
        root: the folder of data sets; None takes it from the environment variable.
        path: below it.
        also: other places below it, tried next.
    """
    first: FileNotFoundError | None = None
    for place in (path, *also):
        try:
            return find(root, *place.split("/"))
        except FileNotFoundError as error:
            first = first or error
    known = root or os.environ.get(VARIABLE)
    instead = "".join(f" {place!r} is accepted too." for place in also) if known else ""
    raise FileNotFoundError(f"{first}{instead} To download it: python -m reproduction data fetch {name}")


def folder_of(root: Root) -> Path:
    """The folder of data sets, which may not exist yet."""
    chosen = root or os.environ.get(VARIABLE)
    if not chosen:
        raise FileNotFoundError(
            f"the folder of data sets is not known: pass --data FOLDER (root= in Python), or set {VARIABLE}."
        )
    return Path(chosen).expanduser()


def present(folder: Path, file: File) -> Path | None:
    """The first place where a file exists, or None."""
    return next((path for place in (file.path, *file.also) if (path := folder / place).exists()), None)


def open_unpacked(path: Path) -> BinaryIO:
    """Open a file to read; a .gz is unpacked on the way."""
    return cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else open(path, "rb"))


def checksum(path: Path) -> str:
    """md5 of a file's content, unpacked if it is a .gz; a damaged .gz has an md5 that is nobody else's."""
    total = md5(usedforsecurity=False)
    with open_unpacked(path) as file:
        try:
            while block := file.read(BLOCK):
                total.update(block)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            total.update(b"damaged")
    return total.hexdigest()


def optional(module: str, package: str, purpose: str) -> ModuleType:
    """Import a package of the extra `reproduction`.

    Example:
        >>> optional("no_such_module", "nothing", "reading PNG files")
        Traceback (most recent call last):
        ImportError: reading PNG files needs nothing: pip install -e '.[reproduction]' from the root of a clone.
    """
    try:
        return import_module(module)
    except ImportError:
        raise ImportError(
            f"{purpose} needs {package}: pip install -e '.[reproduction]' from the root of a clone."
        ) from None


def choose_part(part: str, *parts: str) -> str:
    """Check the name of a part of a data set.

    Example:
        >>> choose_part("validation", "train", "test")
        Traceback (most recent call last):
        ValueError: part must be 'train' or 'test', got 'validation'.
    """
    if part not in parts:
        raise ValueError(f"part must be {' or '.join(map(repr, parts))}, got {part!r}.")
    return part
