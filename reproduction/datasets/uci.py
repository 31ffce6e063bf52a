"""Tables of the UCI repository, in the usual layout with twenty splits of each.

`UCI_Datasets/NAME/data/` holds `data.txt`, one row per line; `index_features.txt` and `index_target.txt` with numbers
of columns; and for every split K `index_train_K.txt` and `index_test_K.txt` with numbers of rows. (Hernández-Lobato and
Adams 2015; Gal and Ghahramani 2016.)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .points import Points
from .root import find

NAMES = (
    "bostonHousing",
    "concrete",
    "energy",
    "kin8nm",
    "naval-propulsion-plant",
    "power-plant",
    "wine-quality-red",
    "yacht",
)


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and standard deviation of each column.

    Args:
        mean: (d,), or () for one column.
        deviation: of the same shape.

    Example:
        >>> scale = Scale.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        >>> scale.apply(torch.tensor([[1.0, 5.0], [5.0, 6.0]]))
        tensor([[-1.,  0.],
                [ 3.,  1.]])
    """

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Scale:
        """The scale of values (n, d) or (n,); a constant column is only shifted, to exactly 0."""
        low, high = values.amin(0), values.amax(0)
        same = low == high  # rounding can make its deviation differ from 0
        mean = torch.where(same, low, values.mean(0))
        return cls(mean, torch.where(same, torch.ones_like(mean), values.std(0, correction=0)))

    def apply(self, values: Tensor) -> Tensor:
        """Standardised values, in their own precision."""
        return ((values - self.mean) / self.deviation).to(values.dtype)

    def undo(self, values: Tensor) -> Tensor:
        """Standardised values back in the units of the table."""
        return (values * self.deviation + self.mean).to(values.dtype)


@dataclass(frozen=True, eq=False)
class Table:
    """One split of a table, standardised by its training part.

    Args:
        name: of the table.
        split: its number.
        train: what a network is trained on, standardised.
        test: the rest, standardised by the training part's means and deviations.
        scale_x: what features were standardised by, in float64.
        scale_y: likewise of targets: an error times `scale_y.deviation` is in the table's own units.
        digest: sha256 of x and y of training, then of test, as float64 before standardising.
    """

    name: str
    split: int
    train: Points
    test: Points
    scale_x: Scale
    scale_y: Scale
    digest: str


def uci(
    name: str,
    split: int = 0,
    *,
    root: str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Table:
    """Read a table of the UCI repository and split it.

    Args:
        name: one of `NAMES`.
        split: number of a split that comes with the table, from 0.
        root: the folder that holds `UCI_Datasets`; None takes it from the environment variable
            HIDDEN_UNCERTAINTY_DATA.
        dtype: of the points; means and deviations are always computed in float64.

    Example:
        >>> table = uci("yacht", root="data")  # doctest: +SKIP
        >>> len(table.train), len(table.test)  # doctest: +SKIP
        (277, 31)
        >>> uci("yatch")
        Traceback (most recent call last):
        ValueError: there is no table 'yatch'; nearest names: 'yacht'. ...
    """
    if name not in NAMES:
        near = ", ".join(map(repr, get_close_matches(name, NAMES, cutoff=0.4)))
        raise ValueError(
            f"there is no table {name!r}; " + (f"nearest names: {near}. " if near else "") + f"All: {', '.join(NAMES)}."
        )
    data = find(root, "UCI_Datasets", name, "data", "data.txt")
    rows = torch.from_numpy(_read_rows(data))  # (n, columns)
    features = _read_index(data, "index_features.txt", "column", rows.shape[1])
    target = _read_index(data, "index_target.txt", "column", rows.shape[1])
    if len(target) != 1 or int(target) in features:
        raise ValueError(
            f"{str(data.with_name('index_target.txt'))!r} must name one column that is not a feature, "
            f"got {target.tolist()} with features {features.tolist()}."
        )
    splits = _splits(data.parent)
    if split not in range(splits):
        raise ValueError(f"{name} has splits 0 … {splits - 1} in {str(data.parent)!r}, got split={split}.")
    train, test = (_read_index(data, f"index_{part}_{split}.txt", "row", len(rows)) for part in ("train", "test"))
    shared = int(torch.isin(train, test).sum())
    if shared:
        raise ValueError(f"split {split} of {name} has {shared} rows both in training and in test.")
    x, y = rows[:, features], rows[:, int(target)]
    scale_x, scale_y = Scale.of(x[train]), Scale.of(y[train])
    x_standard, y_standard = scale_x.apply(x).to(dtype), scale_y.apply(y).to(dtype)
    return Table(
        name,
        split,
        train=Points(x_standard[train], y_standard[train]),
        test=Points(x_standard[test], y_standard[test]),
        scale_x=scale_x,
        scale_y=scale_y,
        digest=sha256(b"".join(part.numpy().tobytes() for part in (x[train], y[train], x[test], y[test]))).hexdigest(),
    )


def _splits(folder: Path) -> int:
    """The number of splits that come with a table: one more than the highest number."""
    numbers = [path.stem.removeprefix("index_train_") for path in folder.glob("index_train_*.txt")]
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _read_rows(path: Path) -> np.ndarray:
    """The numbers of a file (n, columns), float64; empty lines are skipped, as some tables end in one."""
    rows: list[list[float]] = []
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            row = [float(word) for word in words]
        except ValueError as error:
            raise ValueError(f"line {i} of {str(path)!r} must hold numbers only: {error}.") from None
        if rows and len(row) != len(rows[0]):
            raise ValueError(
                f"line {i} of {str(path)!r} has {len(row)} numbers, expected {len(rows[0])} as in the lines before."
            )
        rows.append(row)
    values = np.array(rows, dtype=np.float64)
    if not len(values):
        raise ValueError(f"{str(path)!r} holds no numbers.")
    if not np.isfinite(values).all():
        raise ValueError(f"{str(path)!r} holds {(~np.isfinite(values)).sum()} numbers that are not finite.")
    return values


def _read_index(data: Path, name: str, what: str, count: int) -> Tensor:
    """The rows or columns, of `count`, that a file beside the table names; each once."""
    path = data.with_name(name)
    if not path.exists():
        raise FileNotFoundError(f"there is no {str(path)!r}: this copy of the table is incomplete.")
    values = _read_rows(path).flatten()
    wrong = values[(values % 1 != 0) | (values < 0) | (values >= count)]
    if len(wrong):
        raise ValueError(
            f"{str(path)!r} names {what} {wrong[0]:g}, but the table has {what}s 0 … {count - 1} "
            f"({len(wrong)} of {len(values)} are wrong)."
        )
    if len(np.unique(values)) < len(values):
        raise ValueError(f"{str(path)!r} names {len(values) - len(np.unique(values))} {what}s more than once.")
    return torch.from_numpy(values.astype(np.int64))
