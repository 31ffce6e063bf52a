"""What a network returned, as tensors of the shapes that tasks read."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from .selection import select as select_tensor


def tensor_of(output: Any, select: int | str | None, argument: str = "output") -> Tensor:
    """The tensor that is chosen, one row per input."""
    values = select_tensor(output, select, "the network", argument)
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


def resized(values: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Maps (n, C, H, W) on another grid, bilinearly."""
    if size is None or values.shape[2:] == size:
        return values
    values = as_real(values, copy=False)
    if len(values) == 0:
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


def squeezed(values: Tensor) -> Tensor:
    """One number per input as (n,), several as (n, q)."""
    return values[:, 0] if values.shape[1] == 1 else values


def show(tensor: Tensor) -> str:
    """A shape in the words of an error, n for the inputs."""
    return f"({', '.join(['n', *map(str, tensor.shape[1:])])})"


def shape_of(label: Tensor | None) -> str:
    """Labels in the words of an error."""
    return "none" if label is None else f"{tuple(label.shape)} of {label.dtype}"
