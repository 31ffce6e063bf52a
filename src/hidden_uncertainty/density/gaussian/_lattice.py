"""Mahalanobis distances between the places of a lattice, from those at its places.

Interpolation is linear, and the square of a linear function is known from its ends and from how far these are apart:

    |(1 - t) p + t q|² = (1 - t) |p|² + t |q|² - t (1 - t) |p - q|²

Along columns, then along rows, that is the square at every pixel between four places. Differences of whitened vectors
w = x W have no bias and are thus the same for all Gaussians that share a factor, so that each place needs

    at      |w - b|²                         right    |w - w of the place to the right|²
    down    |w - w of the place below|²      across   |right difference - that of the row below|²

which is one product per place, whereas scoring interpolated vectors takes one per pixel.

**Precision.** The square at a pixel is a difference of the squares around it, so that its error is relative to the
largest of these. Squares of float32 are therefore summed up, and interpolated, in float64. Where neighbouring places
are 10 deviations apart and a pixel between them lies at a mean, log-likelihoods are off by less than 1e-4 nats, at 100
by less than 1e-3, at 1,000 by less than 0.02 (tested); elsewhere no more than those of interpolated vectors in float32.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...extract import Axis, Lattice
from ._packed import WIDEST, split_blocks, too_wide

CELLS = {"cpu": 1 << 18, "other": 1 << 22}  # pixels times Gaussians at a time; a CPU thread's stay in its cache
TILE = {"cpu": 800 << 10, "other": 1 << 26}  # elements of the products and sums of a tile of places
BAND = 1 << 22  # numbers held for a band of rows of places, at the columns of all pixels


class Squares(NamedTuple):
    """Squared distances at places, and of differences of places: zero in the last column, row, or both."""

    at: Tensor  # (n, h, w, k, C)
    right: Tensor  # (n, h, w, k or 1, C), as the others
    down: Tensor
    across: Tensor


def place_squares(x: Tensor, packed: Tensor, shift: Tensor | None) -> Squares:
    """‖x W - b‖² and the squares of differences of places x (n, h, w, d), in float64.

    Args:
        x: centred vectors.
        packed: from `pack`, (rows, C, k or 1, width).
        shift: from `shifts`, where Gaussians share factors.
    """
    _, classes, own, width = packed.shape
    some = max(1, WIDEST // (own * width))
    if classes > some and too_wide(x.flatten(0, 2), classes * own * width):
        packs = packed.split(some, dim=1)
        moves = [None] * len(packs) if shift is None else shift.split(some, dim=2)
        parts = [place_squares(x, *part) for part in zip(packs, moves, strict=True)]
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
    """Squared distances at all pixels of all images, row by row of each, some at a time: (pixels, k, C).

    Args:
        lattice: the places, and where the pixels lie between them.
        squares: gives the squares at some of the places.
        gaussians: k C, which decides how many pixels there are at a time.
    """
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
    moves = x.new_zeros(len(blocks), 0, columns) if shift is None else shift.flatten(2)
    at = [x.new_zeros(n, h, w, columns) for _ in range(1 + moves.shape[1])]
    right, down, across = (x.new_zeros(n, h - a, w - b, columns) for a, b in ((0, 1), (1, 0), (1, 1)))
    for (bias, block), move in zip(blocks, moves, strict=True):
        white = torch.addmm(bias, rows[:, : len(block)], block).view(n, h, w, columns)
        at[0].addcmul_(white, white)
        for total, step in zip(at[1:], move, strict=True):
            moved = white + step
            total.addcmul_(moved, moved)
        to_right = white.diff(dim=2)
        for total, apart in ((right, to_right), (down, white.diff(dim=1)), (across, to_right.diff(dim=1))):
            total.addcmul_(apart, apart)

    def summed(total: Tensor) -> Tensor:
        return total.unflatten(-1, (classes, own, width)).sum(-1, dtype=torch.float64).mT

    yield torch.cat([summed(total) for total in at], dim=-2)
    yield from map(summed, (right, down, across))
