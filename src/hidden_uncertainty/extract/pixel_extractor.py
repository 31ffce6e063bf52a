"""Networks that predict for every pixel: pixels that are drawn to fit to, and grids of all of them to score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..model.batches import Batch, require_repeatable
from ..model.outputs import as_real, show
from ..model.tasks import Condition, Prediction, Task
from ..reduce import How, Reduction
from ..uncertainty import LayerScores
from .extractor import Extractor, Read
from .features import Axis, Features, Lattice, Population, Reading, Row
from .pixels import Pixels, Sampler
from .reader import Later, Reader, lowest

Size = tuple[int, ...]  # (H, W)
CELLS = 1 << 22  # numbers of a tile: pixels times their dimensions
ROWS = 1 << 14  # reduced at a time


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
    """A layer's output (n, h, w, C), a copy, read as vectors at the pixels of a grid of another size.

    With a patch k, each holds the k x k places around, zeros beyond the edge, in the order of `unfold`.
    """

    def __init__(self, maps: Tensor, patch: int, size: Size) -> None:
        places, around, wide = maps.shape[1:3], patch // 2, torch.promote_types(maps.dtype, torch.float32)
        if around:
            maps = pad(maps, (0, 0, around, around, around, around))
            maps = maps.unfold(1, patch, 1).unfold(2, patch, 1).flatten(3)
        self.maps, self.patch, self.size, self.aligned = maps, patch, size, places == size
        self.rows, self.columns = (
            Axis(low.to(maps.device), high.to(maps.device), share.to(maps.device, wide))
            for low, high, share in map(axis, places, size)
        )

    @property
    def lattice(self) -> Lattice | None:
        """The map itself and where the pixels lie in it; None where that is nothing simpler than their vectors."""
        places = self.maps.shape[1] * self.maps.shape[2]
        if self.patch > 1 or 2 * places > self.size[0] * self.size[1]:
            return None
        return Lattice(self.maps, self.rows, self.columns)

    def at(self, image: int, pixels: Tensor) -> Tensor:
        """Vectors at pixels (m,), counted row by row: (m, C·k²), in at least float32."""
        pixels = pixels.to(self.maps.device)
        y, x = pixels.div(self.size[1], rounding_mode="floor"), pixels % self.size[1]
        above, below = (
            torch.lerp(
                as_real(self.maps[image, rows[y], self.columns.low[x]], copy=False),
                as_real(self.maps[image, rows[y], self.columns.high[x]], copy=False),
                self.columns.share[x, None],
            )
            for rows in (self.rows.low, self.rows.high)
        )
        return torch.lerp(above, below, self.rows.share[y, None])

    def band(self, images: slice, start: int, stop: int) -> Tensor:
        """Vectors at all pixels of some rows of some images: (images·rows·W, C·k²), in at least float32."""
        rows = self._along(1, self.maps[images], self.rows, start, stop)  # (images, rows, w, C·k²)
        return self._along(2, rows, self.columns, 0, self.size[1]).flatten(0, 2)

    def _along(self, dim: int, maps: Tensor, along: Axis, start: int, stop: int) -> Tensor:
        """Maps (n, h, w, C·k²) at some pixels along one dimension."""
        if self.aligned:
            return as_real(maps.narrow(dim, start, stop - start), copy=False)
        low, high, share = (part[start:stop] for part in along)
        before, after = (as_real(maps.index_select(dim, places), copy=False) for places in (low, high))
        return torch.lerp(before, after, share.reshape(-1, *[1] * (3 - dim)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Grid(Reading):
    """A reading of images: every pixel of the grid is a row, made when it is asked for, in tiles of bounded size."""

    pixels: Pixels
    latents: Mapping[str, LatentMap] = field(default_factory=dict)  # the maps that each term reads
    reductions: Mapping[str, Reduction] = field(default_factory=dict)  # from each term's vectors to z

    def rows(self, name: str) -> Iterator[Row]:
        """All pixels of all images, row by row of each."""
        latent, reduction, prediction = self.latents[name], self.reductions[name], self.prediction.value
        if self.unusable is not None:
            prediction = prediction.nan_to_num(0.0, 0.0, 0.0)
        height, width = latent.size
        row = width * latent.maps.shape[3]
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


class PixelExtractor(Extractor):
    """Reads chosen layers of a model that predicts for every pixel.

    The network runs once over a loader: pixels are drawn on the way, balanced by the `condition`, and reductions fitted
    to those that were kept. `grid_of` is the term whose grid is scored at, when it is not the output's.
    """

    pixels: Pixels
    gathers = False

    def __init__(self, *args: Any, pixels: Pixels, condition: Condition, grid_of: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pixels, self.condition, self.grid_of = pixels, condition, grid_of
        for name, source in self.sources.items():
            if source.reduce.how == "token":
                raise ValueError(f"reduce='token' takes one place of layer {name!r}; with pixels= all are taken.")
            if source.layer is None and pixels.resolution == "latent":
                raise ValueError("resolution='latent' is the grid of a layer; outputs have their own: leave it out.")

    def fit(self, loader: Iterable[Any], *, holdout: float = 0.0) -> tuple[Features, Later]:
        """Draw pixels of a loader and fit the reductions to them; images set apart come second, not yet read."""
        if holdout:
            require_repeatable(loader, 2)
        sampler = self._draw(loader, holdout)
        rows, population = sampler.drawn()
        fits = self._reduction_fits()
        for name, fit in fits.items():
            while not fit.done:
                for part in rows[f"z {name}"].split(ROWS):
                    fit.update(part)
                fit.end_pass()
        reductions = self._reductions(fits)
        return self._features(sampler, rows, population, reductions), Later(self, loader, reductions, holdout)

    def extract(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Features:
        """Draw pixels of a loader, with reductions that were fitted before."""
        sampler = self._draw(loader, 0.0)
        return self._features(sampler, *sampler.drawn(), reductions)

    unseen = Reader.unseen  # images are read when they are asked for

    def reading(  # type: ignore[override]  # a grid instead of rows
        self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None, *, labels: bool = False
    ) -> Grid:
        """Run the network on one batch: all pixels of its images."""
        return replace(self._grid(batch, reductions, index, labels=labels), reductions=reductions)

    def _grid(self, batch: Batch, names: Iterable[str], index: int | None, *, labels: bool) -> Grid:
        copies = {name: _copier(name, self.sources[name].reduce.how) for name in names}
        prediction, maps, unusable = self._read(batch, copies, index, strict=labels)
        latents = {name: self._latent(values, name, prediction) for name, values in maps.items()}
        label = label_maps(batch.label, prediction.value) if labels else None
        return Grid(prediction=prediction, latents=latents, pixels=self.pixels, label=label, unusable=unusable)

    def _latent(self, maps: Tensor, name: str, prediction: Prediction) -> LatentMap:
        patch = 1 if self.sources[name].layer is None else self.pixels.patch
        return LatentMap(maps, patch, prediction.value.shape[1:])

    def _predict(self, task: Task, output: Any, found: Mapping[str, Tensor]) -> Prediction:
        latent = self.pixels.resolution == "latent"
        return task.predict_pixels(output, found[self.grid_of].shape[1:3] if latent else None)

    def _touched(self, wrong: Tensor, name: str, prediction: Prediction) -> Tensor:
        """Which pixels, (n, H, W), are interpolated from places that have something wrong."""
        places = wrong.any(3 if self.sources[name].reduce.how == "tokens" else 1)[..., None].float()  # (n, h, w, 1)
        touched = self._latent(places, name, prediction).band(slice(None), 0, prediction.value.shape[1])
        return (touched > 0).any(1).reshape(prediction.value.shape)

    def _draw(self, loader: Iterable[Any], holdout: float) -> Sampler:
        sampler: Sampler | None = None
        labels = False
        for index, batch in enumerate(self.batches(loader, "drawing pixels")):
            # Before the network runs, which may write into its inputs.
            digests = batch.digests()
            apart = lowest(digests, holdout)
            grid = self._grid(batch, self.sources, index, labels=True)
            if sampler is None:
                assert self.task is not None
                sampler = Sampler(self.pixels, self.task, grid.prediction.classes, seed=self.seed)
                labels = batch.label is not None
            if labels != (batch.label is not None):
                raise ValueError("some batches of the loader have labels and others have none: give all, or none.")
            values, valid = grid.condition(self.condition), grid.valid
            for image in (~apart).nonzero()[:, 0].tolist():
                columns = partial(grid.columns, image)
                sampler.add(int(digests[image]), values[image].flatten(), valid[image].flatten(), columns)
        assert sampler is not None  # a loader without batches has raised
        return sampler

    def _features(
        self, sampler: Sampler, rows: Mapping[str, Tensor], population: Tensor, reductions: Mapping[str, Reduction]
    ) -> Features:
        reduced = {name: _reduce(reductions[name], rows[f"z {name}"]) for name in self.sources}
        return Features(
            z={name: z for name, (z, _) in reduced.items()},
            residual={name: residual for name, (_, residual) in reduced.items()},
            prediction=rows["prediction"],
            task=sampler.task,
            reductions=dict(reductions),
            label=rows.get("label"),
            classes=sampler.classes,
            variance=rows.get("variance"),
            population=Population(population, self.condition),
        )


def label_maps(label: Tensor | None, prediction: Tensor) -> Tensor | None:
    """Labels on the grid of the predictions (n, H, W); None where there are none."""
    if label is None:
        return None
    if label.dim() == 4 and label.shape[1] == 1:
        label = label[:, 0]
    if label.dim() != 3:
        raise ValueError(
            f"labels of pixels are (n, H, W), but the loader gave {tuple(label.shape)}. If labels are not needed, "
            "leave them out: unpack=lambda batch: (batch[0], None)."
        )
    return nearest(label.to(prediction.device), prediction.shape[1:])


def _copier(name: str, how: How) -> Read:
    """Copies maps (n, C, h, w) with channels last, so that a place's numbers lie together."""

    def copy(activation: Tensor) -> Tensor:
        if activation.dim() != 4:
            raise ValueError(
                f"layer {name!r} gave {show(activation)}, which is no map: with pixels= a layer's output is (n, "
                "channels, height, width), or (n, height, width, channels) with reduce='tokens'. Choose another layer."
            )
        if not activation.is_floating_point():
            raise TypeError(f"layer {name!r} gave {activation.dtype}; floating-point activations are needed.")
        last = activation if how == "tokens" else activation.permute(0, 2, 3, 1)
        return last.clone(memory_format=torch.contiguous_format)

    return copy


def _reduce(reduction: Reduction, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    z, residual = zip(*map(reduction, rows.split(ROWS)), strict=True)
    return torch.cat(z), None if residual[0] is None else torch.cat(residual)
