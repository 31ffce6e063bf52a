"""Scores as rows of a CSV, JSON lines or parquet file."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from itertools import product
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..detector import Detector
from ..io import replacing
from ..progress import track
from .data import Data

SHOWN = ("prediction", "epistemic", "aleatoric", "p_value", "surprising")
FORMATS = (".csv", ".jsonl", ".parquet")
Columns = dict[str, list[Any]]


def rows(detector: Detector, data: Data, classes: Sequence[str] | None) -> Iterator[Columns]:
    """The scores of each batch."""
    total = 0
    for names, batch in track(data.named(), "scoring", total=data.batches):
        u = replace(detector(batch).cpu(), layers={})
        columns: Columns = {"input": [*range(total, total + len(u))] if names is None else [*names]}
        for shown, (name, values) in product(SHOWN, u.columns().items()):
            if name.partition(".")[0] == shown:
                # A number in single precision has fewer digits than the same in double.
                short = values.astype(str).astype(float) if values.dtype == np.float32 else values
                columns[name] = short.tolist()
                if name == "prediction" and classes and values.dtype.kind == "i":
                    columns["class"] = [classes[k] if k < len(classes) else "" for k in columns[name]]
        total += len(u)
        yield columns
    if not total:
        raise ValueError("there is nothing to score: the data gave no inputs.")


def write(found: Iterable[Columns], out: Path | None) -> tuple[int, int]:
    """Write rows to a file in one step, or to stdout as they come; how many are surprising, and how many there are."""
    surprising: list[bool] = []

    def counted() -> Iterator[Columns]:
        for columns in found:
            surprising.extend(columns.get("surprising", [False] * len(columns["input"])))
            yield columns

    if out is None:
        _csv(counted(), sys.stdout)
    else:
        with replacing(out) as file:
            if out.suffix == ".parquet":
                try:
                    import pandas
                    import pyarrow  # noqa: F401
                except ImportError as error:
                    raise ImportError("parquet files need: pip install 'hidden-uncertainty[parquet]'.") from error
                pandas.concat([*map(pandas.DataFrame, counted())]).to_parquet(file, index=False)
            else:
                text = TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
                (_csv if out.suffix == ".csv" else _lines)(counted(), text)
                text.detach()
    return sum(surprising), len(surprising)


def _csv(found: Iterable[Columns], file: IO[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    for place, columns in enumerate(found):
        if place == 0:
            writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        file.flush()


def _lines(found: Iterable[Columns], file: IO[str]) -> None:
    for columns in found:
        for row in zip(*columns.values(), strict=True):
            cells = zip(columns, row, strict=True)
            known = {name: None if cell != cell or cell in (math.inf, -math.inf) else cell for name, cell in cells}
            file.write(f"{json.dumps(known)}\n")
    file.flush()
