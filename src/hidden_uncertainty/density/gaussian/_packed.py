"""Mahalanobis distances to many Gaussians at once: what fitting and scoring spend most of their time in.

A distance is ‖x W - b‖² with W upper triangular and b = μ W. The columns of W go in blocks, and a block of all
Gaussians is one matrix, side by side, of only those rows that are not zero:

    block 1   rows 1 … h₁      [ W₁ | W₂ | … | W_K ], columns 1 … h₁ of each
    block 2   rows 1 … h₂      [ W₁ | W₂ | … | W_K ], columns h₁ … h₂ of each
    …

A block is one wide product, the half of W that is zero is neither stored nor multiplied, and a single x reads all
factors once, in order. All blocks have one width (the first is filled up with zeros), so that squares add up before
they are summed. Gaussians that share a factor share x W: the first one's bias is packed with it, and from there it is a
shift to each of the others.

**Between places.** Interpolation is linear, and the square of a linear function is known from its ends and from how far
these are apart:

    |(1 - t) p + t q|² = (1 - t) |p|² + t |q|² - t (1 - t) |p - q|²

Along columns, then along rows, that is the square at every pixel between four places of a lattice. Differences of
whitened vectors w = x W are the same for all Gaussians that share a factor, so that each place needs

    at      |w - b|²                         right    |w - w of the place to the right|²
    down    |w - w of the place below|²      across   |right difference - that of the row below|²

The square at a pixel is a difference of the squares around it, so that its error is relative to the largest of these.
Squares of float32 are therefore summed up, and interpolated, in float64. Where neighbouring places are 10 deviations
apart and a pixel between them lies at a mean, log-likelihoods are off by less than 1e-4 nats, at 100 by less than 1e-3,
at 1,000 by less than 0.02 (tested); elsewhere no more than those of interpolated vectors in float32.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...extract import Axis, Lattice

WIDTHS = (16, 32, 64)  # columns of each Gaussian in a block: multiples of 16, as others make the product a fifth slower
COLUMNS = 128  # of a block's product at least, where the widest block reaches that: narrower ones are slow
WIDEST = 2048  # columns of a product of many rows on a CPU at most: with more, too few rows stay in the cache
ROWS = (64, 1024)  # of x at a time: at least, and at most for each thread of a CPU
CHUNK = {"cpu": 400 << 10, "other": 1 << 26}  # elements of a product at a time; a CPU thread's stay in its cache
CELLS = {"cpu": 1 << 18, "other": 1 << 22}  # pixels times Gaussians at a time; a CPU thread's stay in its cache
TILE = {"cpu": 800 << 10, "other": 1 << 26}  # elements of the products and sums of a tile of places
BAND = 1 << 22  # numbers held for a band of rows of places, at the columns of all pixels


def pack(factor: Tensor, bias: Tensor, width: int | None = None) -> Tensor:
    """Pack triangular W (B, K, d, d) and b = μ W (B, K, d): -b, then rows of W, for each block, (B, rows, K, width).

    The width is that of each Gaussian in a block; None takes what is fastest for many rows.
    """
    stack, gaussians, dim = bias.shape
    packed = factor.new_zeros(packed_shape(stack, gaussians, dim, width))
    start = 0
    for low, high in _blocks(bias.shape[2], packed.shape[3]):
        columns = packed[:, start : start + 1 + high, :, low - high :]
        columns[:, 0] = -bias[..., low:high]
        columns[:, 1:] = factor[:, :, :high, low:high].transpose(1, 2)
        start += 1 + high
    return packed


def packed_shape(stack: int, gaussians: int, dim: int, width: int | None = None) -> tuple[int, int, int, int]:
    """The shape of what `pack` gives."""
    width = width or next((width for width in WIDTHS if width * gaussians >= COLUMNS), WIDTHS[-1])
    return stack, sum(1 + high for _, high in _blocks(dim, width)), gaussians, min(width, dim)


def packed_squares(x: Tensor, packed: Tensor, shift: Tensor | None = None) -> Tensor:
    """‖x W - b‖² of rows x (B, n, d) under the Gaussians of their own stack: (B, n, K).

    With shifts, of a single stack, k Gaussians share each factor, the first of which is packed: (1, n, K, k).
    """
    stack, _, gaussians, width = packed.shape
    if too_wide(x, gaussians * width):
        parts = _split(packed, shift, WIDEST // width, dim=2)
        return torch.cat([packed_squares(x, *part) for part in parts], dim=2)
    blocks = split_blocks(packed.flatten(2), x.shape[-1], width)
    moves = [()] * len(blocks) if shift is None else shift.flatten(2)
    product: Callable[..., Tensor] = torch.baddbmm
    rows = x
    if stack == 1:  # a plain product adds the bias, a vector, without spreading it out first
        rows, product, blocks = x[0], torch.addmm, [(bias[0, 0], block[0]) for bias, block in blocks]
    found = []
    for part in _chunks(rows, stack * gaussians * width * (1 + len(moves[0]))):
        totals: list[Tensor] = []
        for (bias, block), move in zip(blocks, moves, strict=True):
            _add_squares(totals, product(bias, part[..., : block.shape[-2]], block), move)
        sums = [total.unflatten(-1, (gaussians, width)).sum(-1) for total in totals]
        found.append(sums[0] if shift is None else torch.stack(sums, dim=-1))
    result = found[0] if len(found) == 1 else torch.cat(found, dim=-2 if shift is None else -3)
    return result if stack > 1 else result[None]


def _add_squares(totals: list[Tensor], white: Tensor, moves: Iterable[Tensor]) -> None:
    """Add the squares of whitened rows, and of these moved by each shift, to the totals of the blocks before."""
    if not totals:
        totals += [white.square(), *((white + move).square() for move in moves)]
        return
    totals[0].addcmul_(white, white)
    for total, move in zip(totals[1:], moves, strict=True):
        moved = white + move
        total.addcmul_(moved, moved)


def _split(packed: Tensor, shift: Tensor | None, size: int, dim: int) -> Iterable[tuple[Tensor, Tensor | None]]:
    """Some factors at a time, which lie along a dimension of what is packed, with their shifts."""
    packs = packed.split(size, dim=dim)
    return zip(packs, [None] * len(packs) if shift is None else shift.split(size, dim=2), strict=True)


def shifts(bias: Tensor, width: int) -> Tensor:
    """From the first of k biases (C, k, d) that share a factor to the others, in blocks: (blocks, k - 1, C, width)."""
    blocks = _blocks(bias.shape[2], width)
    away = (bias[:, :1] - bias[:, 1:]).transpose(0, 1)
    found = away.new_zeros(len(blocks), *away.shape[:2], width)
    for block, (low, high) in zip(found, blocks, strict=True):
        block[..., low - high :] = away[..., low:high]
    return found


def split_blocks(matrix: Tensor, dim: int, width: int) -> list[tuple[Tensor, Tensor]]:
    """The bias (..., 1, columns) and the rows of W of each block of a packed matrix (..., rows, columns)."""
    parts = matrix.split([rows for _, high in _blocks(dim, width) for rows in (1, high)], dim=-2)
    return list(zip(parts[::2], parts[1::2], strict=True))


def too_wide(x: Tensor, columns: int) -> bool:
    """Whether a product has too many columns for a cache; a traced graph uses one product for all."""
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return on_cpu and columns > WIDEST and x.shape[-2] > ROWS[0]


@cache
def _blocks(dim: int, width: int) -> list[tuple[int, int]]:
    """The columns of each block, from low to high; the first block has what is left over."""
    return [(max(0, high - width), high) for high in range((dim - 1) % width + 1, dim + 1, width)]


def _chunks(x: Tensor, columns: int) -> Sequence[Tensor]:
    """Rows of x, few enough at a time for a product of so many columns; a traced graph takes all at once."""
    least, most = ROWS
    size = CHUNK["other"] // columns
    if x.device.type == "cpu":
        size = torch.get_num_threads() * min(most, CHUNK["cpu"] // columns // least * least)
    if torch.compiler.is_compiling() or x.shape[-2] <= size:
        return (x,)
    return x.split(max(least, size), dim=-2)


class Squares(NamedTuple):
    """Squared distances at places, and of differences of places: zero in the last column, row, or both."""

    at: Tensor  # (n, h, w, k, C)
    right: Tensor  # (n, h, w, k or 1, C), as the others
    down: Tensor
    across: Tensor


def place_squares(x: Tensor, packed: Tensor, shift: Tensor | None) -> Squares:
    """‖x W - b‖² and squared differences of places x (n, h, w, d), in float64, packed as (rows, C, k or 1, width)."""
    _, classes, own, width = packed.shape
    some = max(1, WIDEST // (own * width))
    if classes > some and too_wide(x.flatten(0, 2), classes * own * width):
        parts = [place_squares(x, *part) for part in _split(packed, shift, some, dim=1)]
        return Squares(*(torch.cat(part, dim=-1) for part in zip(*parts, strict=True)))
    n, h, w, _ = x.shape
    shared = 1 if shift is None else 1 + shift.shape[1]
    found = Squares(*(x.new_zeros(n, h, w, k, classes, dtype=torch.float64) for k in (shared * own, own, own, own)))
    side = _side(x, n * classes * own * width * (3 + shared))
    for top in range(0, max(1, h - 1), side):
        for left in range(0, max(1, w - 1), side):
            tile = x[:, top : top + side + 1, left : left + side + 1]  # with the first places of the next tiles
            for whole, part in zip(found, _tile(tile, packed, shift), strict=True):
                whole[:, top : top + part.shape[1], left : left + part.shape[2]] = part
    return found


def between(lattice: Lattice, squares: Callable[[Tensor], Squares], gaussians: int) -> Iterator[Tensor]:
    """Squared distances at all pixels, image by image and row by row, some at a time, of k C Gaussians: (p, k, C)."""
    z, rows, columns = lattice
    width, height = len(columns.low), len(rows.low)
    low, high = rows.low.tolist(), rows.high.tolist()
    most = _at_once(CELLS, z)
    images, lines = max(1, most // (height * width * gaussians)), max(1, most // (width * gaussians))
    deep = max(1, BAND // (2 * width * gaussians))  # rows of places in a band
    for some in z.split(images):
        start = 0
        while start < height:
            first = low[start]
            stop = height if len(some) > 1 else bisect_left(low, first + deep)
            found = squares(some[:, first : high[stop - 1] + 1])
            at = _along(found.at, found.right, columns, 2)
            down = _along(found.down, found.across, columns, 2)
            for line in range(start, stop, lines):
                part = slice(line, min(line + lines, stop))
                axis = Axis(rows.low[part] - first, rows.high[part] - first, rows.share[part])
                yield _along(at, down, axis, 1).clamp_(min=0).flatten(0, 2)
            start = stop


def _along(at: Tensor, apart: Tensor, axis: Axis, dim: int) -> Tensor:
    """(1 - t) p + t q - t (1 - t) r along one axis, with p and q from `at` and r from `apart`."""
    share = axis.share.to(at.dtype).view(-1, *(1,) * (at.dim() - dim - 1))
    found = torch.lerp(at.index_select(dim, axis.low), at.index_select(dim, axis.high), share)
    return found.addcmul_(apart.index_select(dim, axis.low), share * (share - 1))


def _at_once(limit: dict[str, int], x: Tensor) -> int:
    return torch.get_num_threads() * limit["cpu"] if x.device.type == "cpu" else limit["other"]


def _side(x: Tensor, columns: int) -> int:
    """How many places high and wide a tile is, so that a CPU thread's stays in its cache."""
    return max(4, math.isqrt(_at_once(TILE, x) // max(1, columns)))


def _tile(x: Tensor, packed: Tensor, shift: Tensor | None) -> Iterator[Tensor]:
    """The squares of one tile (n, h, w, d): of all its places, then of differences where it has both."""
    n, h, w, dim = x.shape
    _, classes, own, width = packed.shape
    rows, columns = x.flatten(0, 2), classes * own * width
    blocks = split_blocks(packed.flatten(1), dim, width)
    moves = [()] * len(blocks) if shift is None else shift.flatten(2)
    at: list[Tensor] = []
    right, down, across = (x.new_zeros(n, h - a, w - b, columns) for a, b in ((0, 1), (1, 0), (1, 1)))
    for (bias, block), move in zip(blocks, moves, strict=True):
        white = torch.addmm(bias[0], rows[:, : len(block)], block).view(n, h, w, columns)
        _add_squares(at, white, move)
        to_right = white.diff(dim=2)
        for total, apart in ((right, to_right), (down, white.diff(dim=1)), (across, to_right.diff(dim=1))):
            total.addcmul_(apart, apart)

    def summed(total: Tensor) -> Tensor:
        return total.unflatten(-1, (classes, own, width)).sum(-1, dtype=torch.float64).mT

    yield torch.cat([summed(total) for total in at], dim=-2)
    yield from map(summed, (right, down, across))
