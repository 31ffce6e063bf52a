"""Rows in files, for fits that go over them several times and do not hold them."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

ROWS = 1 << 14  # read at a time; mapped into memory, all of them would count as held
SPARE = 1 << 26  # bytes that a disk keeps


class Spill:
    """A fresh folder within another, which is removed with all that is in it at the end of a `with` block.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder, Spill(folder) as spill:
        ...     rows = spill.rows("layer")
        ...     rows.append(torch.ones(3, 2), torch.tensor([0, 1, 1]))
        ...     [len(z) for z, y in rows], rows.count
        ([3], tensor([1, 2]))
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"spill={str(folder)!r} is no folder: make it first.")
        self.folder = Path(tempfile.mkdtemp(prefix="hidden-uncertainty-", dir=folder))
        self._terms = 0

    def rows(self, name: str) -> Rows:
        """New files for the rows of a term."""
        self._terms += 1
        return Rows(self.folder / str(self._terms), name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Rows:
    """Rows of one term with their classes, in two files; they are read in the order in which they came."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.count = torch.zeros(0, dtype=torch.long)  # rows of each class
        self._first: Tensor | None = None
        self._same = True

    def append(self, z: Tensor, y: Tensor) -> None:
        """Write rows (n, d) with their classes (n,); an error where the disk is full."""
        if self._first is None and len(z):
            self._first = z[:1].clone()
        if self._first is not None:
            self._same = self._same and bool((z == self._first).all())
        for kind, part in (("z", z), ("y", y)):
            content = part.detach().cpu().contiguous().numpy()
            free = shutil.disk_usage(self.path.parent).free
            try:
                if free < content.nbytes + SPARE:
                    raise OSError(errno.ENOSPC, "no space left")
                with open(f"{self.path}.{kind}", "ab") as file:
                    file.write(content.data)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"the features of layer {self.name!r} do not fit into {str(self.path.parent.parent)!r}, with "
                    f"{free / 1e6:,.0f} MB free after {int(self.count.sum()):,} rows ({error.strerror}): give spill= a "
                    "larger disk",
                ) from error
        size = max(len(self.count), int(y.max()) + 1 if len(y) else 0)
        self.count = torch.nn.functional.pad(self.count, (0, size - len(self.count))) + y.cpu().bincount(minlength=size)

    def constant(self) -> bool:
        """Whether all rows are the same."""
        return self._same

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        assert self._first is not None
        width, kind = self._first.shape[1], str(self._first.dtype).removeprefix("torch.")
        with open(f"{self.path}.z", "rb") as rows, open(f"{self.path}.y", "rb") as classes:
            while len(y := np.fromfile(classes, np.int64, ROWS)):
                z = np.fromfile(rows, kind, len(y) * width).reshape(len(y), width)
                yield torch.from_numpy(z).to(self._first.device), torch.from_numpy(y).to(self._first.device)
