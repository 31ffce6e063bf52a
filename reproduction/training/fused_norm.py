"""Batch norm in training with the addition and ReLU that follow it, as four kernels on a GPU.

Images are channels last: a batch is rows (N*H*W, C), and a program reads blocks of `_ROWS` rows and `COLUMNS` channels.

==============  ====================================================================================================
`_moments`      sums of x and x², relative to the first row against cancellation, over the rows of each program
`_apply`        combines them, normalises, adds, applies ReLU
`_slopes`       gradient before the ReLU, and its sums, alone and times x, over the rows of each program
`_gradient`     combines them to the gradient of x
==============  ====================================================================================================

Sums are in float32 and in a fixed order, and nothing synchronises with the host: results repeat, and a step can be
recorded.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

COLUMNS = tl.constexpr(32)  # channels that a program reads
_ROWS = tl.constexpr(128)  # that it reads at once
_WARPS = 4
_PROGRAMS = 64  # per kernel, about: networks side by side leave room for each other
_PARTS = tl.constexpr(64)  # most programs along the rows, a power of two


@triton.jit
def _place(tile, rows, channels):
    """Rows and positions of one block of rows, and which of them exist."""
    row = tile * _ROWS + tl.arange(0, _ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return row, row[:, None] * channels + column[None, :], (row < rows)[:, None]


@triton.jit
def _quarter(row, width, channels):
    """Positions of rows among every second line and column of images of even size, and which of them exist."""
    line, left = row // width, row % width
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = (line // 2) * (width // 2) + left // 2
    return at[:, None] * channels + column[None, :], ((line % 2 == 0) & (left % 2 == 0))[:, None]


@triton.jit
def _total(partial, column, channels):
    """Sums of all programs."""
    part = tl.arange(0, _PARTS)
    inside = (part < tl.num_programs(0))[:, None]
    return tl.sum(tl.load(partial + part[:, None] * channels + column[None, :], mask=inside, other=0.0), 0)


@triton.jit
def _moments(x, partial, rows, channels, tiles):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.load(x + column).to(tl.float32)[None, :]
    total = tl.zeros([_ROWS, COLUMNS], tl.float32)
    square = tl.zeros([_ROWS, COLUMNS], tl.float32)
    for i in range(tiles):
        _, at, inside = _place(tl.program_id(0) * tiles + i, rows, channels)
        value = tl.where(inside, tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - first, 0.0)
        total += value
        square += value * value
    partial += tl.program_id(0) * channels + column
    tl.store(partial, tl.sum(total, 0))
    tl.store(partial + tl.num_programs(0) * channels, tl.sum(square, 0))


@triton.jit(do_not_specialize=["width"])  # otherwise it is compiled for every size
def _apply(
    x, add, y, half, partial, saved, weight, bias, running_mean, running_var, momentum, eps,
    rows, channels, width, tiles, ADD: tl.constexpr, RELU: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    offset = _total(partial, column, channels) / rows
    square = _total(partial + tl.num_programs(0) * channels, column, channels) / rows
    mean = tl.load(x + column).to(tl.float32) + offset
    variance = tl.maximum(square - offset * offset, 0.0)
    deviation = 1.0 / tl.sqrt(variance + eps)
    if tl.program_id(0) == 0:
        tl.store(saved + column, mean)
        tl.store(saved + channels + column, deviation)
        old = tl.load(running_mean + column)
        tl.store(running_mean + column, old + momentum * (mean - old))
        old = tl.load(running_var + column)
        tl.store(running_var + column, old + momentum * (variance * rows / (rows - 1) - old))
    scale = tl.load(weight + column) * deviation
    shift = tl.load(bias + column) - mean * scale
    for i in range(tiles):
        row, at, inside = _place(tl.program_id(0) * tiles + i, rows, channels)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        if ADD:
            value += tl.load(add + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value <= 0.0, 0.0, value)  # NaN stays NaN
        value = value.to(y.dtype.element_ty)
        tl.store(y + at, value, mask=inside)
        if HALF:
            quarter, even = _quarter(row, width, channels)
            tl.store(half + quarter, value, mask=inside & even)


@triton.jit(do_not_specialize=["width"])  # otherwise it is compiled for every size
def _slopes(x, y, dy, dhalf, g, partial, saved, rows, channels, width, tiles, RELU: tl.constexpr, HALF: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mean = tl.load(saved + column)[None, :]
    total = tl.zeros([_ROWS, COLUMNS], tl.float32)
    product = tl.zeros([_ROWS, COLUMNS], tl.float32)
    for i in range(tiles):
        row, at, inside = _place(tl.program_id(0) * tiles + i, rows, channels)
        slope = tl.load(dy + at, mask=inside, other=0.0)
        if HALF:
            quarter, even = _quarter(row, width, channels)
            slope = (slope.to(tl.float32) + tl.load(dhalf + quarter, mask=inside & even, other=0.0)).to(slope.dtype)
        if RELU:
            slope = tl.where(tl.load(y + at, mask=inside, other=0.0) <= 0.0, 0.0, slope)
        if RELU or HALF:
            tl.store(g + at, slope, mask=inside)
        slope = slope.to(tl.float32)
        total += slope
        product += slope * (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean)
    partial += tl.program_id(0) * channels + column
    tl.store(partial, tl.sum(total, 0))
    tl.store(partial + tl.num_programs(0) * channels, tl.sum(product, 0))


@triton.jit
def _gradient(x, g, dx, partial, saved, weight, dweight, dbias, rows, channels, tiles):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mean = tl.load(saved + column)
    deviation = tl.load(saved + channels + column)
    total = _total(partial, column, channels)
    product = _total(partial + tl.num_programs(0) * channels, column, channels) * deviation
    if tl.program_id(0) == 0:
        tl.store(dweight + column, product)
        tl.store(dbias + column, total)
    scale = tl.load(weight + column) * deviation
    slope = product * deviation / rows
    shift = total / rows - mean * slope
    for i in range(tiles):
        _, at, inside = _place(tl.program_id(0) * tiles + i, rows, channels)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        out = tl.load(g + at, mask=inside, other=0.0).to(tl.float32) - value * slope[None, :] - shift[None, :]
        tl.store(dx + at, (out * scale[None, :]).to(dx.dtype.element_ty), mask=inside)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, add: Tensor | None, norm: Any, relu: bool, half: bool
    ) -> Any:
        x = _rows(x)
        size, tiles, grid = _grid(x)
        partial, saved = (x.new_empty(2, n, size[1], dtype=torch.float32) for n in (grid[0], 1))
        y = torch.empty_like(x)
        few = torch.empty_like(x[:, :, ::2, ::2], memory_format=torch.channels_last) if half else y
        _moments[grid](x, partial, *size, tiles, num_warps=_WARPS)
        _apply[grid](
            x, y if add is None else _rows(add), y, few, partial, saved, weight, bias,
            norm.running_mean, norm.running_var, norm.momentum, norm.eps,
            *size, x.shape[3], tiles, add is not None, relu, half, num_warps=_WARPS,
        )  # fmt: skip
        ctx.save_for_backward(x, y if relu else None, weight, saved)
        ctx.relu, ctx.half, ctx.added = relu, half, add is not None
        return (y, few) if half else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        x, y, weight, saved = ctx.saved_tensors
        size, tiles, grid = _grid(x)
        dy, dhalf = _rows(slopes[0]), _rows(slopes[-1])
        g = torch.empty_like(x) if ctx.relu or ctx.half else dy
        partial = x.new_empty(2, grid[0], size[1], dtype=torch.float32)
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        _slopes[grid](
            x, y if ctx.relu else x, dy, dhalf, g, partial, saved,
            *size, x.shape[3], tiles, ctx.relu, ctx.half, num_warps=_WARPS,
        )  # fmt: skip
        _gradient[grid](x, g, dx, partial, saved, weight, dweight, dbias, *size, tiles, num_warps=_WARPS)
        return dx, dweight, dbias, g if ctx.added else None, None, None, None


def normalised(
    norm: nn.BatchNorm2d, x: Tensor, *, add: Tensor | None = None, relu: bool = True, half: bool = False
) -> Any:
    """The output of a norm in training for x (n, C, H, W), after addition and ReLU, for C a multiple of 32.

    With `half`, also every second row and column of it, (n, C, H/2, W/2), as a separate tensor: the gradient of a
    convolution of stride two and size one that reads it has that size, a quarter of x, and is added in place.
    """
    return _Norm.apply(x, norm.weight, norm.bias, add, norm, relu, half)


def _rows(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)  # usually it already is


def _grid(x: Tensor) -> tuple[tuple[int, int], int, tuple[int, int]]:
    """Rows and channels of x (n, C, H, W), blocks of rows per program, and programs along rows and channels."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    across, blocks = channels // COLUMNS.value, triton.cdiv(rows, _ROWS.value)
    tiles = triton.cdiv(blocks * across, min(_PROGRAMS, across * _PARTS.value))
    return (rows, channels), tiles, (triton.cdiv(blocks, tiles), across)
