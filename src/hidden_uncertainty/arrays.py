"""Numpy arrays, and what turns itself into one (pandas, polars), as tensors; and tensors in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def is_array(value: Any) -> bool:
    """Whether `to_tensor` makes a tensor of it: a numpy array, or a frame or series with `to_numpy()`."""
    return isinstance(value, np.ndarray) or (hasattr(value, "to_numpy") and not isinstance(value, type))


def to_tensor(value: Any, dtype: torch.dtype | None = None) -> Any:
    """An array as a tensor of its own memory, missing numbers as NaN; whatever is no array is returned as it is.

    `dtype` is for arrays in floating point; whole numbers and booleans stay what they are.
    """
    if not is_array(value):
        return value
    array = plain = value if isinstance(value, np.ndarray) else value.to_numpy()
    try:
        if plain.dtype == object:  # as frames give numbers of several kinds, and missing ones
            plain = value.to_numpy(na_value=np.nan) if hasattr(value, "isna") else plain
            plain = np.array(plain.tolist()).reshape(array.shape)
        elif np.ma.is_masked(plain):
            plain = np.ma.filled(plain.astype(np.float64), np.nan)
        # A copy: torch warns of read-only arrays, and refuses negative strides and bytes in another order.
        tensor = torch.from_numpy(np.array(plain, dtype=plain.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{type(value).__name__} of shape {array.shape} holds {array.dtype}, which no tensor can: convert it to "
            "numbers first, for instance with .astype('float32')."
        ) from error
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)


def to_array(tensor: Tensor) -> np.ndarray:
    """A tensor as an array of its own memory; bfloat16, which numpy does not have, as float32."""
    plain = tensor.detach().cpu()
    return np.array((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())


def pieces(size: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Tensors side by side, so many rows at a time; all at once in a graph that is traced, which has no loops."""
    return [tensors] if torch.compiler.is_compiling() else zip(*(part.split(size) for part in tensors), strict=True)
