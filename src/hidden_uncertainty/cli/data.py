"""Data of the command line as batches, from images, .npz and .csv files or loaders; and scores as rows of files."""

from __future__ import annotations

import csv
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import product
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from ..detector import Detector
from ..io import replacing
from ..model.batches import dtype_of, leaves, names_of, unpack
from ..model.capture import device_of
from ..notes import warn
from ..progress import count, track
from .given import Given, make

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
LABELS = ("y", "label", "labels")
MOST = 1 << 26  # pixels that an image is resized to
SHOWN = ("prediction", "epistemic", "aleatoric", "p_value", "surprising")
FORMATS = (".csv", ".jsonl", ".parquet")
Columns = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class Data:
    """A loader whose batches come with the names of their inputs, or None where these are only counted."""

    named: Callable[[], Iterable[tuple[Sequence[str] | None, Any]]]
    batches: int | None  # None where that is not known
    classes: list[str] | None = None
    columns: list[str] | None = None
    shuffled: bool = False

    def __iter__(self) -> Iterator[Any]:
        return (batch for _, batch in self.named())

    def __len__(self) -> int:
        return self.batches  # type: ignore[return-value]  # None is a TypeError of len, as it should be

    def example(self, model: nn.Module) -> Any:
        """The first batch, which a network takes."""
        for item in self:
            batch = unpack(item, dtype=dtype_of(model))[:2].clone().to(device_of(model) or "cpu")
            try:
                with torch.no_grad():
                    model(*batch.args, **batch.kwargs)
            except Exception as error:
                shapes = ", ".join(str(tuple(part.shape)) for part in leaves((batch.args, batch.kwargs), torch.Tensor))
                raise ValueError(f"the network does not take inputs of shape {shapes}: {error}") from error
            return item
        raise ValueError("the data gave no inputs.")


def read(given: Given, source: str, model: nn.Module, *, fitting: bool = False) -> Data:
    """The data of a folder, a file or a factory; in those to fit to, no label and no number may be missing."""
    path = Path(source).expanduser()
    kind = path.suffix.lower()
    if path.is_dir() or (kind in SUFFIXES and path.exists()):
        return _images(given, path, fitting)
    if path.is_file() and kind == ".csv":
        return _csv(given, path, fitting)
    if path.is_file() and kind == ".npz":
        return _npz(given, path, model, fitting)
    if ":" in source and not path.exists():
        return _loader(given, source)
    what = "is no folder and no .npz, .csv or image file" if path.exists() else "does not exist"
    raise FileNotFoundError(
        f"{source!r} {what}: expected a folder of images, an .npz or .csv file, or module:factory of a loader."
    )


def _images(given: Given, root: Path, fitting: bool) -> Data:
    found = sorted(_below(root)) if root.is_dir() else [root]
    files = [file for file in found if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")]
    if not files:
        raise ValueError(f"there is no image in '{root}': expected files ending in {', '.join(sorted(SUFFIXES))}.")
    names = [file.relative_to(root if root.is_dir() else root.parent).as_posix() for file in files]
    folders = [name.partition("/")[0] if "/" in name else "" for name in names]
    classes, labels = _labels(given, folders, f"'{root}'", fitting) if any(folders) else (given.classes, None)

    def batches() -> Iterator[tuple[Sequence[str], Any]]:
        broken: list[str] = []
        for some in _parts(len(files), given.batch):
            rows = range(len(files))[some]
            images = {row: image for row in rows if (image := _image(given, files[row], broken)) is not None}
            sizes = {image.shape[1:]: names[row] for row, image in images.items()}
            if len(sizes) > 1:
                shown = ", ".join(f"'{name}' is {height}×{width}" for (height, width), name in sizes.items())
                raise ValueError(f"images in '{root}' have several sizes: {shown}. Give --size H W.")
            if images:
                x = np.stack([*images.values()])  # (n, C, H, W)
                yield [names[row] for row in images], x if labels is None else (x, labels[[*images]])
        if broken:
            warn(f"{len(broken)} of {len(files)} files cannot be read and are left out: {', '.join(broken[:5])}")

    return Data(batches, len(_parts(len(files), given.batch)), classes)


def _below(root: Path) -> Iterator[Path]:
    """All files of a folder, also through links to folders, each of which is read once."""
    seen = {os.path.realpath(root)}
    for folder, inner, names in os.walk(root, followlinks=True):
        yield from (Path(folder, name) for name in names)
        places = {name: os.path.join(folder, name) for name in inner}
        inner.clear()
        for name in sorted(places, key=lambda name: (os.path.islink(places[name]), name)):
            if (real := os.path.realpath(places[name])) not in seen:
                seen.add(real)
                inner.append(name)


def _image(given: Given, file: Path, broken: list[str]) -> np.ndarray | None:
    """An image as (C, H, W), scaled; None for one that is broken, if these are skipped."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            if opened.mode.startswith(("I", "F")):
                raise ValueError("it has more than 8 bits per channel, which needs a factory of a loader")
            image = opened.convert("L" if given.grey else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if not given.skip_broken:
            reason = str(error).rstrip(".")
            raise ValueError(f"'{file}' cannot be read: {reason}. Mend it, or give --skip-broken.") from error
        broken.append(file.name)
        return None
    if given.size is not None:
        height, width = given.size
        if min(height, width) < 1 or height * width > MOST:
            raise ValueError(f"--size {height} {width} is no size of an image: give at most {MOST:,} pixels.")
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32).reshape(image.height, image.width, -1) / 255
    scaled = (pixels - np.float32(given.mean or 0)) / np.float32(given.std or 1)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def _npz(given: Given, path: Path, model: nn.Module, fitting: bool) -> Data:
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:
        raise ValueError(f"'{path}' cannot be read: {error}") from error
    label = next((name for name in ([given.label] if given.label else LABELS) if name in arrays), None)
    if label is None and given.label and fitting:
        raise ValueError(f"there is no array {given.label!r} in '{path}', which has: {', '.join(arrays)}.")
    y, taken = None if label is None else arrays.pop(label), names_of(model)
    if not arrays or (len(arrays) > 1 and not {*arrays} <= {*taken}):
        raise ValueError(
            f"'{path}' has {', '.join(arrays) or 'no array'} beside labels: expected one array, such as x, or one for "
            f"each input of the network ({', '.join(taken)}), and labels as y."
        )
    return _arrays(given, path, next(iter(arrays.values())) if len(arrays) == 1 else arrays, y)


def _csv(given: Given, path: Path, fitting: bool) -> Data:
    with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = csv.reader(file)
        header = [name.strip() for name in next(lines, [])]
        wanted = [given.label] if given.label and (fitting or given.label in header) else []
        columns = given.columns or [name for name in header if name not in wanted]
        times = Counter(header)
        wrong = [name for name in (*columns, *wanted) if times[name] != 1]
        if wrong or not columns:
            shown = ", ".join(wrong) or "to read"
            raise ValueError(f"'{path}' has no column {shown}, or several; it has: {', '.join(header)}.")
        x, words = list[list[float]](), list[str]()
        for row in filter(None, lines):
            where = f"'{path}', line {lines.line_num}"
            if len(row) != len(header):
                raise ValueError(f"{where} has {len(row)} cells, the first line has {len(header)}.")
            cells = dict(zip(header, row, strict=True))
            x.append([_number(cells[name], f"{where}: column {name!r}", fitting) for name in columns])
            words += [cells[name].strip() for name in wanted]
    classes, labels = given.classes, None
    if wanted:
        try:
            if {*words} <= {*(given.classes or ())}:
                raise ValueError("names of classes may be numbers")
            labels = np.array(words, dtype=np.float64)
            labels = labels.astype(np.int64) if (labels % 1 == 0).all() else labels
        except ValueError:
            classes, labels = _labels(given, words, f"'{path}'", fitting)
    return replace(_arrays(given, path, np.array(x), labels), classes=classes, columns=columns)


def _number(cell: str, where: str, fitting: bool) -> float:
    try:
        value = float(cell) if cell.strip() else float("nan")
    except ValueError:
        raise ValueError(
            f"{where} holds {cell!r}, not a number. Name labels with --label, or columns to read with --columns."
        ) from None
    if value != value and fitting:
        raise ValueError(f"{where} is empty or NaN. Fill it in, or remove the line.")
    return value


def _labels(given: Given, words: list[str], where: str, fitting: bool) -> tuple[list[str], np.ndarray | None]:
    """The classes, and the number of that of each input; None where some are in none."""
    classes = given.classes or sorted({*words} - {""})
    unknown = sorted({*words} - {*classes})
    if unknown and fitting:
        raise ValueError(
            f"{where} has inputs of {unknown[0] or 'no class'!r}, but the classes are {', '.join(classes)}. Images lie "
            "in one folder per class, or all in one folder. --classes names classes."
        )
    return classes, None if unknown else np.array([classes.index(word) for word in words])


def _arrays(given: Given, path: Path, x: Any, y: np.ndarray | None) -> Data:
    parts = [*(x.values() if isinstance(x, dict) else (x,)), *([] if y is None else [y])]
    sizes = {part.shape[:1] for part in parts}
    if len(sizes) > 1 or not next(iter(sizes)) > (0,):
        shapes = ", ".join(str(part.shape) for part in parts)
        raise ValueError(f"'{path}' needs one row per input, as many in all arrays, and at least one; it has {shapes}.")

    def batches() -> Iterator[tuple[None, Any]]:
        for some in _parts(len(parts[0]), given.batch):
            part = {name: array[some] for name, array in x.items()} if isinstance(x, dict) else x[some]
            yield None, part if y is None else (part, y[some])

    return Data(batches, len(_parts(len(parts[0]), given.batch)), given.classes)


def _parts(n: int, batch: int) -> list[slice]:
    return [slice(start, start + batch) for start in range(0, n, batch)]


def _loader(given: Given, source: str) -> Data:
    made = make(source, Iterable)
    if isinstance(made, Dataset) and not isinstance(made, IterableDataset):
        made = DataLoader(made, batch_size=given.batch)
    if not isinstance(made, Iterable):
        raise TypeError(f"{source} gave {type(made).__name__}: expected a loader, which gives batches.")

    def batches() -> Iterator[tuple[None, Any]]:
        # What can be read once only is made again for each pass.
        return ((None, batch) for batch in (make(source, Iterable) if isinstance(made, Iterator) else made))

    shuffled = isinstance(getattr(made, "sampler", None), RandomSampler)
    return Data(batches, count(made), given.classes, shuffled=shuffled)


def write(detector: Detector, data: Data, classes: Sequence[str] | None, out: Path | IO[str]) -> list[bool]:
    """Write scores to a file in one step, or as they come to one that is open; which inputs are surprising."""
    surprising: list[bool] = []
    found = _scores(detector, data, classes, surprising)
    if not isinstance(out, Path):
        _write_csv(found, out)
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
            (_write_csv if out.suffix == ".csv" else _write_lines)(found, text)
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


def _write_csv(found: Iterable[Columns], file: IO[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    for place, columns in enumerate(found):
        if place == 0:
            writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        file.flush()


def _write_lines(found: Iterable[Columns], file: IO[str]) -> None:
    for columns in found:
        for row in zip(*columns.values(), strict=True):
            cells = zip(columns, row, strict=True)
            known = {name: None if cell != cell or cell in (math.inf, -math.inf) else cell for name, cell in cells}
            file.write(f"{json.dumps(known)}\n")
    file.flush()
