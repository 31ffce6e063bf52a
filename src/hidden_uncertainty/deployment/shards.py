"""Scores of large sets, written shard by shard: one parquet file per process, which a later run goes on with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

from torch import distributed

from ..arrays import to_array
from ..detector import Detector
from ..io import replacing
from ..model.batches import dtype_of, unpack
from ..notes import note
from ..progress import bars, count, progress_bar
from ..uncertainty import Uncertainty

DETECTOR, INPUTS, BATCHES = b"detector", b"inputs", b"batches"  # what a file says of itself


def write_scores(
    detector: Detector,
    loader: Iterable[Any],
    folder: str | PathLike[str],
    *,
    names: Callable[[Any], Sequence[Any]] | None = None,
    rows: int = 100_000,
    shard: tuple[int, int] | None = None,
) -> Path:
    """Score this process's shard of a data set into `scores-RANK-of-SIZE.parquet`, with one row per input.

    Rows are written in parts, each of them whole or not at all, which become one file at the end. A run that was
    stopped goes on after its last part, if it is called again with the same detector and with a loader that gives the
    same inputs in the same order; both are checked, the inputs only until the file is whole. Needs pandas and pyarrow.

    Args:
        detector: fitted.
        loader: gives this process's inputs, each of them once: see `shard`.
        folder: where the files of all processes go; it is made where it does not exist.
        names: what to call the inputs of a batch, given as the loader gives it; a column of that name. The column
            `input` counts the inputs of the shard in any case.
        rows: per part.
        shard: which of how many, counted from zero. None is the rank and the size of the process group, or what
            `torchrun` says (`RANK` and `WORLD_SIZE`), or (0, 1).

    Returns:
        The file.
    """
    try:
        import pandas  # noqa: F401
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("write_scores needs: pip install 'hidden-uncertainty[parquet]'.") from error
    if shard is None and distributed.is_available() and distributed.is_initialized():
        shard = distributed.get_rank(), distributed.get_world_size()
    rank, size = shard or (int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
    if not 0 <= rank < size:
        raise ValueError(f"shard= is which of how many, counted from zero, such as (0, 2), not ({rank}, {size}).")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    other = [file.name for file in folder.glob("scores-*-of-*.parquet") if f"-of-{size:05d}." not in file.name]
    if other:
        raise ValueError(
            f"'{folder}' holds {other[0]!r}, of a run with another number of processes; this one has {size}. Give "
            "another folder, or remove the files."
        )
    file = folder / f"scores-{rank:05d}-of-{size:05d}.parquet"
    parts, made_by = sorted(folder.glob(f"{file.stem}.part-*")), _digest(detector)
    if file.exists():
        _check(parquet.read_metadata(file).metadata, made_by, file)
        for part in parts:
            part.unlink()
        note(f"'{file}' is complete: nothing is scored again.")
        return file
    with bars(detector.progress), progress_bar("scoring", count(loader)) as bar:
        stream = _batches(detector, loader)
        done = 0
        for part in parts:
            known = parquet.read_metadata(part)
            _check(known.metadata, made_by, part)
            contents = [content for _, content in islice(stream, int(known.metadata[BATCHES]))]
            if _hash(contents) != known.metadata[INPUTS]:
                raise ValueError(
                    f"the loader gives other inputs than those of '{part}', which an earlier run wrote: to go on, it "
                    "must give the same inputs in the same order and batches. Turn shuffling off, or remove the files."
                )
            bar.advance(len(contents))
            done += known.num_rows
        if done:
            note(f"{done:,} inputs were scored before: going on with the next.")
        frames, contents = [], []
        for item, content in stream:
            frames.append(_frame(detector(item), item, names, done))
            contents.append(content)
            done += len(frames[-1])
            bar.advance()
            if sum(map(len, frames)) >= rows:
                parts.append(_write(file, len(parts), frames, contents, made_by))
                frames, contents = [], []
        if frames:
            parts.append(_write(file, len(parts), frames, contents, made_by))
        if not done:
            raise ValueError("the loader gave no batches: there is nothing to score.")
        _join(parts, file)
    return file


def _write(file: Path, place: int, frames: Sequence[Any], contents: Sequence[bytes], made_by: bytes) -> Path:
    from pandas import concat
    from pyarrow import Table, parquet

    path = file.with_name(f"{file.stem}.part-{place:06d}")
    table = Table.from_pandas(concat(frames), preserve_index=False)
    about = {DETECTOR: made_by, BATCHES: str(len(frames)).encode(), INPUTS: _hash(contents)}
    with replacing(path) as whole:
        parquet.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), **about}), whole)
    return path


def _join(parts: Sequence[Path], file: Path) -> None:
    from pyarrow import parquet, unify_schemas

    # Names of a part may all be missing.
    schema = unify_schemas([parquet.read_schema(part) for part in parts], promote_options="permissive")
    with replacing(file) as whole, parquet.ParquetWriter(whole, schema) as writer:
        for part in parts:
            writer.write_table(parquet.read_table(part).cast(schema))
    for part in parts:
        part.unlink()


def _hash(contents: Iterable[bytes]) -> bytes:
    return blake2b(b"".join(contents), digest_size=16).hexdigest().encode()


def _batches(detector: Detector, loader: Iterable[Any]) -> Iterator[tuple[Any, bytes]]:
    """What a loader gives, with a digest of its inputs; nothing where it has none."""
    for item in loader:
        batch = unpack(item, detector.reader.unpack, dtype_of(detector.model))
        if len(batch):
            yield item, batch.digests().tobytes()


def _frame(u: Uncertainty, item: Any, names: Callable[[Any], Sequence[Any]] | None, start: int) -> Any:
    frame = u.cpu().to_pandas()
    frame.insert(0, "input", range(start, start + len(frame)))
    if names is not None:
        found = list(names(item))
        if len(found) != len(frame):
            raise ValueError(f"names= gave {len(found)} names for a batch of {len(frame)} inputs: give one for each.")
        frame.insert(1, "name", found)
    return frame


def _check(about: dict[bytes, bytes], made_by: bytes, file: Path) -> None:
    if about.get(DETECTOR) != made_by:
        raise ValueError(
            f"'{file}' holds scores of another detector, or of this one before it was fitted, calibrated or given a "
            "threshold anew. Give another folder, or remove the files."
        )


def _digest(detector: Detector) -> bytes:
    digest = blake2b(repr(detector).encode(), digest_size=16)
    for name, tensor in sorted(detector._fitted().head.state_dict().items()):
        digest.update(name.encode())
        digest.update(to_array(tensor).tobytes())
    return digest.hexdigest().encode()
