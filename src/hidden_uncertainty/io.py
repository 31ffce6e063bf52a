"""One file format for everything fitted: safetensors with a JSON header and a digest, written whole or not at all.

Nothing in a file is ever executed: a header is JSON text and tensors are plain numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

FORMAT = "hidden-uncertainty"
FORMAT_VERSION = 2
METADATA = "__metadata__"  # how safetensors names what is not a tensor
MAX_PREAMBLE = 100_000_000  # bytes; safetensors reads no longer ones
STALE = 600  # seconds after which an unfinished file is that of a process that was killed
WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Unusable(ValueError):
    """A file that is whole, and yet cannot be used: of another version, for another model. The text says why."""


@contextmanager
def blaming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever error the content of a file causes in this block, it becomes one that says that the file is damaged."""
    try:
        yield
    except Unusable:
        raise
    except WRONG as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else str(error).strip().rstrip(".")
        _damaged(path, f"its content does not fit together: {reason or type(error).__name__}", cause=error)


def expect(holds: Tensor | bool, otherwise: str) -> None:
    """Raise a ValueError unless something holds, in all places where there are several."""
    if not (bool(holds.all()) if isinstance(holds, Tensor) else holds):
        raise ValueError(otherwise)


def plain(value: Any) -> Any:
    """A number of numpy as Python's, which files can hold and all of torch takes; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def is_int(value: object) -> bool:
    """Whether it is a whole number, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def register(kinds: dict[str, Any], kind: Any) -> None:
    """Give a class the name that files call it by: its own, or with its module where another class has that name."""
    if kind.__module__ == "abc":  # made by torch while it traces a module, to stand for its class
        return
    other = kinds.get(kind.__name__, kind)
    taken = other.__module__ != kind.__module__
    kinds[f"{kind.__module__}.{kind.__qualname__}" if taken else kind.__name__] = kind


def name_of(kinds: Mapping[str, Any], kind: Any) -> str:
    """The name that files call a registered class by."""
    return next((name for name, known in kinds.items() if known is kind), kind.__name__)


def write(path: str | os.PathLike[str], header: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a header and tensors to a file, which is replaced in one step: a failure leaves the old one as it was.

    The same content gives the same bytes. A file that is replaced keeps its permissions. What a killed process left
    behind is removed by the next call.
    """
    content = _serialise(_to_json(header), tensors)
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, in a folder that exists, which takes its place in one step when the block ends without error.

    Whoever reads it sees all of the old or all of the new.
    """
    # A link keeps pointing to the file that is replaced.
    target = Path(os.path.realpath(path))
    _refuse_special(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder of '{path}' does not exist: make '{target.parent}' first")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            _remove_stale(target, os.fstat(file.fileno()).st_mtime)
            if target.exists():
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read(
    path: str | os.PathLike[str], device: torch.device | str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the header and the tensors of a file that `write` made, and check that they are what was written."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file '{path}': check the name, or save one first")
    _refuse_special(path)
    with open(path, "rb") as file:
        metadata = _read_metadata(file, path)
        file.seek(0)
        content = file.read()
    try:
        header = _from_json(metadata["header"])
        with torch.device("cpu"):  # empty tensors would be made on the default device
            tensors = safetensors.torch.load(content)
        digest = _digest(metadata["header"], tensors)
    except Exception as error:  # whatever a damaged file makes a parser raise, the file is to blame
        _damaged(path, str(error), cause=error)
    if digest != metadata["digest"] or not isinstance(header, dict):
        _damaged(path, "its content does not match its digest")
    return header, {name: tensor.to(device) for name, tensor in sorted(tensors.items())}


def _to_json(header: dict[str, Any]) -> str:
    if not isinstance(header, dict):
        raise TypeError(f"the header must be a dictionary, not {type(header).__name__}")
    try:
        text = json.dumps(header, allow_nan=False, default=_as_python)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the header cannot be written as JSON: {error}") from error
    if json.loads(text) != header:
        raise ValueError("the header would not come back from JSON unchanged: use lists, not tuples, and text as keys")
    return text


def _as_python(value: Any) -> Any:
    if plain(value) is value:
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return plain(value)


def _from_json(text: str | bytes) -> Any:
    """What JSON says, all numbers of it finite: 1e999 and Infinity are none."""

    def number(digits: str) -> float:
        if math.isfinite(value := float(digits)):
            return value
        raise ValueError(f"{digits} is no finite number")

    return json.loads(text, parse_float=number, parse_constant=number)


def _refuse_special(path: Any) -> None:
    if os.path.isdir(path):
        raise ValueError(f"'{path}' is a folder: give the name of a file in it, such as 'detector.safetensors'")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"'{path}' is a device, a pipe or a socket: give the name of a plain file")


def _remove_stale(target: Path, now: float) -> None:
    """Remove what saves of the same file left that were killed; one that still writes has touched its file lately."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.tmp")
    for name in filter(ours.fullmatch, os.listdir(target.parent)):
        try:
            if (target.parent / name).stat().st_mtime < now - STALE:
                (target.parent / name).unlink()
        except OSError:  # another save was faster, or it is not ours to remove
            continue


def _serialise(header: str, tensors: Mapping[str, Tensor]) -> bytes:
    copies = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    try:
        content = safetensors.torch.save(copies)
    except KeyError as error:
        raise ValueError(f"safetensors cannot hold a tensor of {error}: convert it first") from error
    length = int.from_bytes(content[:8], "little")
    # safetensors writes metadata in a random order; put in here, the same content gives the same bytes.
    metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "header": header, "digest": _digest(header, copies)}
    preamble = json.dumps({METADATA: metadata} | json.loads(content[8 : 8 + length])).encode()
    preamble += b" " * (-len(preamble) % 8)  # tensors start at a multiple of 8 bytes
    if len(preamble) > MAX_PREAMBLE:
        raise ValueError(
            f"the header takes {len(preamble):,} bytes, more than {MAX_PREAMBLE:,}: move numbers to tensors"
        )
    return len(preamble).to_bytes(8, "little") + preamble + content[8 + length :]


def _digest(header: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the header and each tensor's name, dtype, shape and bytes, in name order."""
    digest = hashlib.sha256(json.dumps(header).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_metadata(file: BinaryIO, path: Any) -> dict[str, str]:
    """What this library wrote beside the tensors, if the file is one of its own, of a version it reads, and whole."""
    size = os.fstat(file.fileno()).st_size
    if size < 8:
        _cut_short(path, size, "at least 8")
    length = int.from_bytes(file.read(8), "little")
    opening = file.read(1)
    if not 2 <= length <= MAX_PREAMBLE or opening not in (b"{", b""):
        raise ValueError(f"'{path}' is not a safetensors file: expected one that hidden-uncertainty saved")
    if size < 8 + length:
        _cut_short(path, size, f"at least {8 + length:,}")
    try:
        preamble = _from_json(opening + file.read(length - 1))
    except (ValueError, RecursionError) as error:
        _damaged(path, f"its header is not JSON ({error})", cause=error)
    metadata = preamble.get(METADATA)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise ValueError(
            f"'{path}' is a safetensors file, but not one of hidden-uncertainty (format {FORMAT!r}): check the name"
        )
    try:
        version = int(metadata["version"])
        ends = [int(entry["data_offsets"][1]) for name, entry in preamble.items() if name != METADATA]
    except WRONG as error:
        _damaged(path, "it does not say its version, or where its tensors lie", cause=error)
    if version > FORMAT_VERSION:
        raise ValueError(
            f"'{path}' was written by a newer version (format {version}, this one reads {FORMAT_VERSION}): "
            "upgrade hidden-uncertainty"
        )
    if version < 1 or not all(isinstance(metadata.get(key), str) for key in ("header", "digest")):
        _damaged(path, "its metadata are incomplete")
    expected = 8 + length + max(ends, default=0)
    if size < expected:
        _cut_short(path, size, f"{expected:,}")
    if size > expected:
        _damaged(path, f"it has {size:,} bytes instead of {expected:,}")
    return metadata


def _cut_short(path: Any, size: int, expected: str) -> NoReturn:
    raise ValueError(f"'{path}' ends after {size:,} of {expected} bytes: the file is cut short. Save it again.")


def _damaged(path: Any, reason: str, cause: BaseException | None = None) -> NoReturn:
    raise ValueError(f"'{path}' is damaged: {reason}. Save it again, or copy it again from where it came.") from cause
