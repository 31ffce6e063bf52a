"""Scores as rows of a CSV, JSON lines or parquet file."""

from __future__ import annotations

import csv
import json
import math
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


def score(detector: Detector, data: Data, classes: Sequence[str] | None, out: Path | IO[str]) -> list[bool]:
    """Write scores to a file in one step, or as they come to one that is open; which inputs are surprising."""
    surprising: list[bool] = []
    found = _scores(detector, data, classes, surprising)
    if not isinstance(out, Path):
        _csv(found, out)
        return surprising
    with replacing(out) as file:
        if out.suffix == ".parquet":
            try:
                import pandas
                import pyarrow  # noqa: F401
            except ImportError as error:
                raise ImportError("parquet files need: pip install 'hidden-uncertainty[parquet]'.") from error
            known = ({name: [*map(_utf8, cells)] for name, cells in columns.items()} for columns in found)
            pandas.concat([*map(pandas.DataFrame, known)]).to_parquet(file, index=False)
        else:
            text = TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
            (_csv if out.suffix == ".csv" else _lines)(found, text)
            text.detach()
    return surprising


def _scores(detector: Detector, data: Data, classes: Sequence[str] | None, surprising: list[bool]) -> Iterator[Columns]:
    for names, batch in track(data.named(), "scoring", total=data.batches):
        u = replace(detector(batch).cpu(), layers={})
        start = len(surprising)
        columns: Columns = {"input": [*range(start, start + len(u))] if names is None else [*names]}
        for shown, (name, values) in product(SHOWN, u.columns().items()):
            if name.partition(".")[0] == shown:
                # A number in single precision has fewer digits than the same in double.
                short = values.astype(str).astype(float) if values.dtype == np.float32 else values
                columns[name] = short.tolist()
                if name == "prediction" and classes and values.dtype.kind == "i":
                    columns["class"] = [classes[k] if k < len(classes) else "" for k in columns[name]]
        surprising += columns.get("surprising", [False] * len(u))
        yield columns


def _utf8(cell: Any) -> Any:
    return cell.encode(errors="replace").decode() if isinstance(cell, str) else cell


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
