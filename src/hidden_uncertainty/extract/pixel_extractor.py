"""From a model that predicts for every pixel and a loader to pixels that are drawn, and to grids of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..model.batches import Batch, require_repeatable
from ..model.tasks import Condition, Prediction, Task
from ..reduce import How, Reduction, ReductionFit
from .extractor import Extractor, Read, chosen, lowest
from .features import Features, Population, Reading
from .grid import Grid, LatentMap, nearest
from .pixels import Pixels, Sampler
from .reader import Reader

ROWS = 1 << 14  # reduced at a time


@dataclass(frozen=True, eq=False)
class Later:
    """Inputs to calibrate with, read when they are asked for: all of a loader's, or those that were set apart."""

    reader: Reader
    loader: Iterable[Any]
    reductions: Mapping[str, Reduction]
    holdout: float | None = None  # the share that was set apart; None takes all

    def readings(self) -> Iterator[Reading]:
        """Their readings, batch by batch."""
        for index, batch in enumerate(self.reader.batches(self.loader, "calibrating")):
            apart = None if self.holdout is None else chosen(batch, self.holdout)
            if apart is None or bool(apart.any()):
                reading = self.reader.reading(batch, self.reductions, index, labels=True)
                yield reading if apart is None else reading[apart]


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
            _fit_reduction(fit, rows[f"z {name}"])
        reductions = self._reductions(fits)
        return self._features(sampler, rows, population, reductions), Later(self, loader, reductions, holdout)

    def extract(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Features:
        """Draw pixels of a loader, with reductions that were fitted before."""
        sampler = self._draw(loader, 0.0)
        return self._features(sampler, *sampler.drawn(), reductions)

    def unseen(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Later:
        """All images of a loader."""
        return Later(self, loader, reductions)

    def reading(  # type: ignore[override]  # a grid instead of rows
        self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None, *, labels: bool = False
    ) -> Grid:
        """Run the network on one batch: all pixels of its images."""
        return replace(self._grid(batch, reductions, index, labels=labels), reductions=reductions)

    def _grid(self, batch: Batch, names: Iterable[str], index: int | None, *, labels: bool) -> Grid:
        copies = {name: _copier(name, self.sources[name].reduce.how) for name in names}
        _, prediction, maps, unusable = self._read(batch, copies, index, strict=labels)
        latents = {name: self._latent(values, name, prediction) for name, values in maps.items()}
        label = label_maps(batch.label, prediction.value) if labels else None
        return Grid(prediction, latents, self.pixels, label, unusable=unusable)

    def _latent(self, maps: Tensor, name: str, prediction: Prediction) -> LatentMap:
        height, width = prediction.value.shape[1:]
        return LatentMap(maps, 1 if self.sources[name].layer is None else self.pixels.patch, (height, width))

    def _predict(self, task: Task, output: Any, found: Mapping[str, Tensor]) -> Prediction:
        size = None
        if self.pixels.resolution == "latent":
            size = (found[self.grid_of].shape[1], found[self.grid_of].shape[2])
        return task.predict_pixels(output, size)

    def _outputs(self, task: Task, output: Any) -> Tensor:
        return task.score_maps(output)

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
    return nearest(label.to(prediction.device), (prediction.shape[1], prediction.shape[2]))


def _copier(name: str, how: How) -> Read:
    """Copies maps (n, C, h, w) with channels last, so that a place's numbers lie together."""

    def copy(activation: Tensor) -> Tensor:
        if activation.dim() != 4:
            shape = ", ".join(["n", *map(str, activation.shape[1:])])
            raise ValueError(
                f"layer {name!r} gave ({shape}), which is no map: with pixels= a layer's output is (n, channels, "
                "height, width), or (n, height, width, channels) with reduce='tokens'. Choose another layer."
            )
        if not activation.is_floating_point():
            raise TypeError(f"layer {name!r} gave {activation.dtype}; floating-point activations are needed.")
        last = activation if how == "tokens" else activation.permute(0, 2, 3, 1)
        return last.clone(memory_format=torch.contiguous_format)

    return copy


def _fit_reduction(fit: ReductionFit, rows: Tensor) -> None:
    fit.probe(rows[:ROWS])
    while not fit.done:
        for part in rows.split(ROWS):
            fit.update(part)
        fit.end_pass()


def _reduce(reduction: Reduction, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    z, residual = zip(*map(reduction, rows.split(ROWS)), strict=True)
    return torch.cat(z), None if residual[0] is None else torch.cat(residual)
