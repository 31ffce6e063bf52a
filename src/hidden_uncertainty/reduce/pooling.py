"""Maps and tokens as one vector per input: what is taken of each number over places."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Pool = Literal["mean", "moments", "max", "last"]
PIECE = 1 << 17  # numbers whose deviation is taken at a time on a processor: they stay in the cache
LARGE = 1 << 26  # elsewhere, where few large pieces take less time


def moments(x: Tensor, axis: int) -> Tensor:
    """The mean and the standard deviation of (n, ·, ·) over an axis, side by side, in at least float32.

    Example:
        >>> moments(torch.tensor([[[1.0, 3.0], [5.0, 5.0]]]), axis=2)
        tensor([[2., 5., 1., 0.]])
    """

    def of(some: Tensor) -> Tensor:
        some = some.to(torch.promote_types(some.dtype, torch.float32))
        mean = some.mean(axis, keepdim=True)
        return torch.cat([mean, deviation(some, mean, axis)], 3 - axis).flatten(1)

    if torch.compiler.is_compiling():  # a graph has no loops
        return of(x)
    rows = max(1, (PIECE if x.device.type == "cpu" else LARGE) // max(1, x[:1].numel()))
    return of(x) if len(x) <= rows else torch.cat([of(some) for some in x.split(rows)])


def deviation(x: Tensor, mean: Tensor, axis: int) -> Tensor:
    """The standard deviation over an axis, which is kept; by the largest number first, so that no square overflows.

    Example:
        >>> x = torch.tensor([[[1e30, 3e30]]])
        >>> deviation(x, x.mean(2, keepdim=True), axis=2).squeeze()
        tensor(1.0000e+30)
    """
    centred = x - mean
    if not torch.compiler.is_compiling() and centred.numel() == 0:
        return torch.full_like(mean, math.nan)  # as the mean over no place is
    largest = centred.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return (centred / largest).square().mean(axis, keepdim=True).sqrt() * largest


def pool_tokens(activation: Tensor, pool: Pool, mask: Tensor | None = None) -> Tensor:
    """Tokens (n, ..., W) as one per input, (n, W), of those that a mask (n, ...) calls real; NaN without any.

    Moments without a mask are (n, 2 W). Of those that a mask leaves, there are two tokens that have them, (n, 2, W).
    """
    x = activation.flatten(1, -2)  # (n, T, W)
    dtype = torch.promote_types(x.dtype, torch.float32)
    if mask is None:
        if pool == "moments":
            return moments(x, 1)
        return x.mean(1, dtype=dtype) if pool == "mean" else x.amax(1) if pool == "max" else x[:, -1]
    real = mask.flatten(1).to(x.device)[:, :, None] != 0  # (n, T, 1)
    count = real.sum(1, keepdim=True)
    if pool in ("mean", "moments"):
        found = x.masked_fill(~real, 0).sum(1, keepdim=True, dtype=dtype) / count
        if pool == "moments":
            only = torch.where(real, x.to(dtype), found)
            spread = deviation(only, found, 1) * (real.shape[1] / count.to(dtype)).sqrt()
            found = torch.cat([found - spread, found + spread], 1)
    elif pool == "max":
        found = x.masked_fill(~real, -math.inf).amax(1, keepdim=True)
    else:
        last = (real * torch.arange(x.shape[1], device=x.device)[:, None]).amax(1)  # (n, 1)
        found = x.take_along_dim(last[:, None], 1)
    found = found.masked_fill(count == 0, math.nan)
    return found if pool == "moments" else found[:, 0]
