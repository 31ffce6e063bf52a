"""Which tensor is meant of what a layer or model returned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

Key = int | str | tuple[int | str, ...]
"""A position or a key; a tuple of them, one inside the other, where what was returned is nested."""


def select(output: Any, key: Key | None, where: str, argument: str = "select") -> Tensor:
    """Take the tensor out of what a layer or model returned.

    A tensor is taken as it is, a packed sequence as (n, T, ...) with zeros at the ends. Without a key, of a tuple or
    list the first of these, of a dictionary or dataclass the only one.

    Args:
        output: what was returned.
        key: position in a tuple or list, or key or attribute of a dictionary, dataclass or named tuple; a tuple of
            these leads further in: `(1, 0)` is the first part of the second.
        where: who returned it, for the error: `"layer 'encoder'"`.
        argument: which one the key came by, for the error.

    Example:
        >>> select({"logits": torch.zeros(3, 2), "hidden": torch.zeros(3, 8)}, "logits", "the model").shape
        torch.Size([3, 2])
    """
    return select_masked(output, key, where, argument)[0]


def select_masked(output: Any, key: Key | None, where: str, argument: str = "select") -> tuple[Tensor, Tensor | None]:
    """As `select`; of a packed sequence with a mask (n, T) of the steps that it has, otherwise with None."""
    chosen = output
    if not isinstance(output, Tensor | PackedSequence):
        for step in key if isinstance(key, tuple) else (key,):
            chosen = _part(chosen, step, where, argument)
        if not isinstance(chosen, Tensor | PackedSequence):
            inside = ", or further inside, such as (1, 0)" if _parts(chosen) else ""
            raise TypeError(
                f"{argument}={key!r} of what {where} returned is a {type(chosen).__name__}, not a tensor; "
                f"it returned {_described(output)}. Choose another{inside}."
            )
    if isinstance(chosen, PackedSequence):
        padded, lengths = pad_packed_sequence(chosen, batch_first=True)
        return padded, (torch.arange(padded.shape[1]) < lengths[:, None]).to(padded.device)
    if chosen.is_nested:
        raise ValueError(
            f"{where} returned a nested tensor, as layers of nn.TransformerEncoder do for padded batches. Build the "
            "encoder with enable_nested_tensor=False, or choose the whole encoder as layer."
        )
    return chosen, None


def _part(output: Any, key: int | str | None, where: str, argument: str) -> Any:
    parts = _parts(output)
    if key is None:
        tensors = [part for part in parts.values() if isinstance(part, Tensor | PackedSequence)]
        if not tensors or (len(tensors) > 1 and not isinstance(output, tuple | list)):
            what = f"{len(tensors)} tensors" if tensors else "no tensor"
            raise ValueError(
                f"{where} returned {_described(output)} with {what} to take; choose with {argument}=, "
                "a position or a key."
            )
        return tensors[0]
    if key in parts:
        return parts[key]
    if isinstance(key, int) and isinstance(output, tuple | list) and -len(output) <= key < 0:
        return output[key]
    if isinstance(key, str) and not isinstance(output, dict | Tensor) and hasattr(output, key):
        return getattr(output, key)
    raise ValueError(f"{where} returned {_described(output)}, which has no {key!r} for {argument}=.")


def _parts(output: Any) -> dict[Any, Any]:
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        return dict(enumerate(output))
    if dataclasses.is_dataclass(output):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return {}


def _described(output: Any) -> str:
    keys = ", ".join(f"{key!r}: {type(part).__name__}" for key, part in _parts(output).items())
    return f"{type(output).__name__} {{{keys}}}" if keys else f"an object of type {type(output).__name__}"
