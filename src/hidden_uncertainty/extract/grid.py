"""Maps on grids of different sizes: vectors at any pixels of a latent map, and readings whose rows are pixels."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..model.tasks import Condition, Prediction
from ..reduce import Reduction
from ..uncertainty import LayerScores
from .features import Axis, Lattice, Reading, Row, rows_of
from .pixels import Pixels

Size = tuple[int, int]
CELLS = 1 << 22  # numbers of a tile: pixels times their dimensions


def axis(places: int, pixels: int) -> Axis:
    """Bilinear interpolation along one axis, as `torch.nn.functional.interpolate` with `align_corners=False`."""
    center = torch.arange(pixels, dtype=torch.float64, device="cpu") + 0.5
    at = (center * (places / pixels) - 0.5).clamp(0, places - 1)
    low = at.long()
    return Axis(low, (low + 1).clamp(max=places - 1), at - low)


def nearest(label: Tensor, size: Size) -> Tensor:
    """Labels (n, H, W) at the nearest pixels of another grid, (n, *size), as mode `"nearest-exact"`."""
    for dim, wanted in enumerate(size, start=1):
        if label.shape[dim] != wanted:
            at = (torch.arange(wanted, dtype=torch.float64, device="cpu") + 0.5) * (label.shape[dim] / wanted)
            label = label.index_select(dim, at.long().clamp(max=label.shape[dim] - 1).to(label.device))
    return label


class LatentMap:
    """A layer's output on a batch of images, read as vectors at the pixels of another grid.

    Args:
        maps: (n, h, w, C) of any floating dtype, a copy of its own.
        patch: k, odd: each vector holds the k x k places around, zeros beyond the edge, in the order of `unfold`.
        size: the grid to read at.
    """

    def __init__(self, maps: Tensor, patch: int, size: Size) -> None:
        places = maps.shape[1:3]
        around = patch // 2
        self.maps = pad(maps, (0, 0, around, around, around, around)) if around else maps
        self.patch, self.size, self.aligned = patch, size, places == size
        self.rows, self.columns = (
            Axis(low.to(maps.device), high.to(maps.device), share.to(maps.device, _at_least_single(maps)))
            for low, high, share in map(axis, places, size)
        )

    @property
    def width(self) -> int:
        """Numbers per pixel."""
        return self.maps.shape[3] * self.patch**2

    @property
    def lattice(self) -> Lattice | None:
        """The map itself and where the pixels lie in it; None where that is nothing simpler than their vectors."""
        places = self.maps.shape[1] * self.maps.shape[2]
        if self.patch > 1 or 2 * places > self.size[0] * self.size[1]:
            return None
        return Lattice(self.maps, self.rows, self.columns)

    def take(self, images: Tensor) -> LatentMap:
        """Some images of the batch, by a mask (n,)."""
        some = copy.copy(self)
        some.maps = rows_of(self.maps, images)
        return some

    def at(self, image: int, pixels: Tensor) -> Tensor:
        """Vectors at pixels (m,), counted row by row: (m, C·k²), in at least float32."""
        pixels = pixels.to(self.maps.device)
        y, x = pixels.div(self.size[1], rounding_mode="floor"), pixels % self.size[1]
        down, right = self.rows.share[y, None], self.columns.share[x, None]
        wide = self.maps.shape[2]
        flat = self.maps[image].flatten(0, 1)  # (h·w, C)

        def read(a: int, b: int) -> Tensor:
            def corner(rows: Tensor, columns: Tensor) -> Tensor:
                return _single(flat[(rows[y] + a) * wide + columns[x] + b])

            above, below = (
                torch.lerp(corner(rows, self.columns.low), corner(rows, self.columns.high), right)
                for rows in (self.rows.low, self.rows.high)
            )
            return torch.lerp(above, below, down)

        return self._stack([read(a, b) for a in range(self.patch) for b in range(self.patch)])

    def band(self, images: slice, start: int, stop: int) -> Tensor:
        """Vectors at all pixels of some rows of some images: (images·rows·W, C·k²), in at least float32."""
        parts = []
        for a in range(self.patch):
            rows = self._along(1, self.maps[images], self.rows, start, stop, a)  # (images, rows, w, C)
            for b in range(self.patch):
                parts.append(self._along(2, rows, self.columns, 0, self.size[1], b).flatten(0, 2))
        return self._stack(parts)

    def _along(self, dim: int, maps: Tensor, along: Axis, start: int, stop: int, shift: int) -> Tensor:
        """Maps (n, h, w, C) at some pixels along one dimension, between places that are shifted."""
        if self.aligned:
            return _single(maps.narrow(dim, start + shift, stop - start))
        low, high, share = (part[start:stop] for part in along)
        before, after = (_single(maps.index_select(dim, places + shift)) for places in (low, high))
        return torch.lerp(before, after, share.reshape(-1, *[1] * (3 - dim)))

    def _stack(self, parts: list[Tensor]) -> Tensor:
        return parts[0] if self.patch == 1 else torch.stack(parts, dim=2).flatten(1)


@dataclass(frozen=True, eq=False)
class Grid(Reading):
    """A reading of images: every pixel of the grid is a row, made when it is asked for, in tiles of bounded size."""

    prediction: Prediction
    latents: Mapping[str, LatentMap]  # the maps that each term reads
    pixels: Pixels
    label: Tensor | None = None
    reductions: Mapping[str, Reduction] = field(default_factory=dict)  # from each term's vectors to z
    scores: Mapping[str, LayerScores] | None = None
    unusable: Tensor | None = None

    def _read_of(self, which: Tensor) -> dict[str, Any]:
        return {"latents": {name: latent.take(which) for name, latent in self.latents.items()}}

    def rows(self, name: str) -> Iterator[Row]:
        """All pixels of all images, row by row of each."""
        latent, reduction, prediction = self.latents[name], self.reductions[name], self.prediction.value
        if self.unusable is not None:
            prediction = prediction.nan_to_num(0.0, 0.0, 0.0)
        height, width = latent.size
        row = width * latent.width
        images, lines = max(1, CELLS // (height * row)), max(1, CELLS // row)
        for first in range(0, max(1, len(prediction)), images):  # no images are one tile without rows
            some = slice(first, first + images)
            for start in range(0, height, lines):
                stop = min(start + lines, height)
                z, residual = reduction(latent.band(some, start, stop))
                yield Row(z, residual, prediction[some, start:stop].flatten())

    def lattice(self, name: str) -> Lattice | None:
        """The places that all pixels of all images lie between; None where z is not linear in what is there."""
        latent, reduction = self.latents[name], self.reductions[name]
        lattice = latent.lattice
        if lattice is None:
            return None
        _, residual = reduction(lattice.places[:1, 0, 0])  # where nothing is dropped, z is what the layer gave
        return lattice if residual is None and not reduction.reduce.normalise else None

    def shaped(self, scores: LayerScores) -> LayerScores:
        """The scores as maps (n, H, W)."""
        return scores.reshape(self.prediction.value.shape)

    def condition(self, condition: Condition) -> Tensor:
        """What methods are conditioned on, (n, H, W)."""
        if condition == "prediction":
            return self.prediction.value
        if self.label is None:
            raise ValueError("condition='label' needs labels (n, H, W) in the loader, but got none.")
        return self.label

    def columns(self, image: int, pixels: Tensor) -> dict[str, Tensor]:
        """What to keep of some pixels (m,) of an image: their vectors, not reduced yet, and what is known of them."""
        known = {"prediction": self.prediction.value, "variance": self.prediction.variance, "label": self.label}
        return {
            **{f"z {name}": latent.at(image, pixels) for name, latent in self.latents.items()},
            **{name: maps[image].flatten()[pixels] for name, maps in known.items() if maps is not None},
        }

    @property
    def valid(self) -> Tensor:
        """Which pixels count, (n, H, W)."""
        if self.label is None:
            return torch.ones_like(self.prediction.value, dtype=torch.bool)
        return self.pixels.valid(self.label)

    def of_inputs(self, scores: Tensor) -> Tensor:
        """The score of each image that has pixels that count: only a share of these exceeds it."""
        valid = self.valid.to(scores.device)
        kept = [values[count] for values, count in zip(scores, valid, strict=True) if bool(count.any())]
        return torch.stack([self.pixels.image_score(values) for values in kept]) if kept else scores.new_zeros(0)


def _at_least_single(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _single(values: Tensor) -> Tensor:
    return values.to(_at_least_single(values))
