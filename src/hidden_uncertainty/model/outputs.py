"""Which tensor is meant of what a layer or model returned, and in which shape it is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

Key = int | str | tuple[int | str, ...]
"""A position or a key; a tuple of them, one inside the other, where what was returned is nested."""


def select(output: Any, key: Key | None, where: str, argument: str = "select") -> Tensor:
    """Take the tensor out of what a layer or model returned, by a position or a key; errors say `where`.

    A tensor is taken as it is, a packed sequence as (n, T, ...) with zeros at the ends. Without a key, of a tuple or
    list the first of these, of a dictionary or dataclass the only one. `(1, 0)` is the first part of the second.
    """
    return select_masked(output, key, where, argument)[0]


def select_masked(output: Any, key: Key | None, where: str, argument: str = "select") -> tuple[Tensor, Tensor | None]:
    """As `select`; of a packed sequence with a mask (n, T) of the steps that it has, otherwise with None."""
    chosen = output
    if not isinstance(output, Tensor | PackedSequence):
        for step in key if isinstance(key, tuple) else (key,):
            chosen = _part(chosen, step, where, argument)
        if not isinstance(chosen, Tensor | PackedSequence):
            inside = ", or further inside, such as (1, 0)" if parts_of(chosen) else ""
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
    parts = parts_of(output)
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


def parts_of(output: Any) -> dict[Any, Any]:
    """What a mapping, a sequence or a dataclass holds, by keys, places or names; nothing for all else."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        return dict(enumerate(output))
    if dataclasses.is_dataclass(output):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return {}


def _described(output: Any) -> str:
    keys = ", ".join(f"{key!r}: {type(part).__name__}" for key, part in parts_of(output).items())
    return f"{type(output).__name__} {{{keys}}}" if keys else f"an object of type {type(output).__name__}"


def tensor_of(output: Any, key: int | str | None, argument: str = "output") -> Tensor:
    """The tensor that is chosen, one row per input."""
    values = select(output, key, "the network", argument)
    if values.dim() == 0:
        raise ValueError("the network gave a single number; its output must have one row per input, (n, ...).")
    if values.dtype == torch.bool or values.is_complex():
        raise TypeError(
            f"a network's output is real numbers, but the network gave {values.dtype}: return scores, or numbers."
        )
    return values


def finite(values: Tensor) -> bool:
    """Whether there is neither NaN nor infinity in them."""
    # A sum is finite only if every summand is; where it is not it may have overflowed, and each is looked at.
    return not values.is_floating_point() or math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def as_real(values: Tensor, *, copy: bool = True) -> Tensor:
    """Real numbers in at least float32, a copy: a network may write its next output into the same memory."""
    return values.to(torch.promote_types(values.dtype, torch.float32), copy=copy)


def as_numbers(values: Tensor) -> Tensor:
    """The output of a regression network as (n, q)."""
    if values.dim() > 2:
        raise ValueError(
            f"a regression network's output is (n,) or (n, numbers), but the network gave {show(values)}. If it "
            "predicts one for every pixel, pass pixels=Pixels(); if it has several outputs, choose one with output=."
        )
    return values[:, None] if values.dim() == 1 else values


def as_maps(values: Tensor) -> Tensor:
    """The output of a network that predicts for every pixel as (n, C, H, W)."""
    if values.dim() not in (3, 4):
        raise ValueError(
            "pixels=Pixels() is for networks whose output is (n, classes, H, W), (n, 1, H, W) or (n, H, W), but the "
            f"network gave {show(values)}. Leave pixels= out, or choose one of several outputs with output=."
        )
    return values[:, None] if values.dim() == 3 else values


def resized(values: Tensor, size: tuple[int, ...] | None) -> Tensor:
    """Maps (n, C, H, W) on another grid, bilinearly."""
    if size is None or values.shape[2:] == size:
        return values
    values = as_real(values, copy=False)
    if values.shape[0] == 0:  # len() of an input whose size is free cannot be exported
        return values.new_empty(0, values.shape[1], *size)  # which torch refuses to interpolate
    return interpolate(values, size, mode="bilinear", align_corners=False)


def to_logits(probability: Tensor) -> Tensor:
    """log p / (1 - p), finite where p was rounded to 0 or to 1."""
    limits = torch.finfo(probability.dtype)
    return probability.clamp(min=limits.tiny).log() - (1 - probability).clamp(min=limits.eps / 4).log()


def match_labels(label: Tensor | None, prediction: Tensor) -> Tensor:
    """Labels of numbers, in the shape of the predictions and where these are."""
    if label is None or label.numel() != prediction.numel():
        raise ValueError(
            f"condition='label' and intervals need labels of the predictions' shape, {tuple(prediction.shape)}, in the "
            f"loader, but got {shape_of(label)}."
        )
    return label.reshape(prediction.shape).to(prediction.device, prediction.dtype)


def whole_labels(label: Tensor | None, prediction: Tensor) -> Tensor | None:
    """Labels as whole numbers, in the shape of predictions of classes and where these are; None where they are none.

    They may come in floating point, as binary cross-entropy wants them, and one per input as (n, 1).
    """
    if label is None or label.numel() != prediction.numel() or prediction.is_floating_point():
        return None
    whole = label.long()
    return whole.reshape(prediction.shape).to(prediction.device) if bool((whole == label).all()) else None


def show(tensor: Tensor) -> str:
    """A shape in the words of an error, n for the inputs."""
    return f"({', '.join(['n', *map(str, tensor.shape[1:])])})"


def shape_of(label: Tensor | None) -> str:
    """Labels in the words of an error."""
    return "none" if label is None else f"{tuple(label.shape)} of {label.dtype}"
