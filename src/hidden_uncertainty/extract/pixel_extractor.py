"""From a model that predicts for every pixel and a loader to pixels that are drawn, and to grids of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..model.batches import Batch, require_repeatable
from ..model.tasks import Condition, Task
from ..reduce import How, Reduction, ReductionFit
from .extractor import Extractor, Read, chosen, none_chosen
from .features import Features, Population
from .grid import Grid, LatentMap, nearest
from .pixels import Pixels
from .sample import Sampler

ROWS = 1 << 14  # reduced at a time


@dataclass(frozen=True, eq=False)
class Images:
    """Images to calibrate with, read when they are asked for: all of a loader's, or those that were set apart.

    Args:
        extractor: reads them.
        loader: gives them.
        reductions: from each term's vectors to z.
        holdout: the share that was set apart; None takes all.
    """

    extractor: PixelExtractor
    loader: Iterable[Any]
    reductions: Mapping[str, Reduction]
    holdout: float | None = None

    def readings(self) -> Iterator[Grid]:
        """Their pixels, batch by batch."""
        for index, batch in enumerate(self.extractor.batches(self.loader, "calibrating")):
            apart = None if self.holdout is None else chosen(batch, self.holdout)
            if apart is None or bool(apart.any()):
                grid = self.extractor.reading(batch, self.reductions, index, labels=True)
                yield grid if apart is None else grid[apart]


class PixelExtractor(Extractor):
    """Reads chosen layers of a model that predicts for every pixel.

    The network runs once over a loader: pixels are drawn on the way, and reductions fitted to those that were kept.

    Args:
        pixels: how pixels are treated.
        condition: what classes to balance: predictions or labels.
        grid_of: the term whose grid is scored at, when it is not the output's.
        options: those of `Extractor`.
    """

    pixels: Pixels

    def __init__(self, *args: Any, pixels: Pixels, condition: Condition, grid_of: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pixels, self.condition, self.grid_of = pixels, condition, grid_of
        for name, source in self.sources.items():
            if source.reduce.how == "token":
                raise ValueError(f"how='token' takes one place of layer {name!r}; with pixels= every place is taken.")
            if source.layer is None and pixels.resolution == "latent":
                raise ValueError("resolution='latent' is the grid of a layer; outputs have their own: leave it out.")

    def fit(self, loader: Iterable[Any], *, holdout: float = 0.0) -> tuple[Features, Images]:
        """Draw pixels of a loader and fit the reductions to them; images set apart come second, not yet read."""
        if holdout:
            require_repeatable(loader, 2)
        sampler = self._draw(loader, holdout)
        rows = sampler.rows()
        fits = self._reduction_fits()
        for name, fit in fits.items():
            _fit_reduction(fit, rows[f"z {name}"])
        reductions = self._reductions(fits)
        return self._features(sampler, rows, reductions), Images(self, loader, reductions, holdout)

    def extract(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Features:
        """Draw pixels of a loader, with reductions that were fitted before."""
        sampler = self._draw(loader, 0.0)
        return self._features(sampler, sampler.rows(), reductions)

    def unseen(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Images:
        """All images of a loader."""
        return Images(self, loader, reductions)

    def reading(  # type: ignore[override]  # a grid instead of rows
        self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None, *, labels: bool = False
    ) -> Grid:
        """Run the network on one batch: all pixels of its images."""
        grid = self._grid(batch, reductions, index)
        label = label_maps(batch.label, grid.prediction.value) if labels else None
        return replace(grid, reductions=reductions, label=label)

    def _grid(self, batch: Batch, names: Iterable[str], index: int | None) -> Grid:
        copies = {name: _copier(name, self.sources[name].reduce.how) for name in names}
        task, output, maps = self._read(batch, copies, index)
        size = None
        if self.pixels.resolution == "latent":
            size = (maps[self.grid_of].shape[1], maps[self.grid_of].shape[2])
        prediction = task.predict_pixels(output, size)
        if len(prediction.value) != len(batch):
            raise ValueError(f"the network gave {len(prediction.value)} maps for {len(batch)} inputs.")
        height, width = prediction.value.shape[1:]
        latents = {
            name: LatentMap(values, 1 if self.sources[name].layer is None else self.pixels.patch, (height, width))
            for name, values in maps.items()
        }
        return Grid(prediction, latents, self.pixels)

    def _outputs(self, task: Task, output: Any) -> Tensor:
        return task.score_maps(output)

    def _draw(self, loader: Iterable[Any], holdout: float) -> Sampler:
        sampler: Sampler | None = None
        images, labels = 0, False
        for index, batch in enumerate(self.batches(loader, "drawing pixels")):
            # Before the network runs, which may write into its inputs.
            apart = chosen(batch, holdout) if holdout else none_chosen(batch)
            grid = self._grid(batch, self.sources, index)
            grid = replace(grid, label=label_maps(batch.label, grid.prediction.value))
            if sampler is None:
                assert self.task is not None
                sampler = Sampler(self.pixels, self.task, grid.prediction.classes, seed=self.seed)
                labels = batch.label is not None
            if labels != (batch.label is not None):
                raise ValueError("some batches of the loader have labels and others have none: give all, or none.")
            values, valid = grid.condition(self.condition), grid.valid
            for image in (~apart).nonzero()[:, 0].tolist():
                columns = partial(grid.columns, image)
                sampler.add(images + image, values[image].flatten(), valid[image].flatten(), columns)
            images += len(batch)
        assert sampler is not None  # a loader without batches has raised
        return sampler

    def _features(self, sampler: Sampler, rows: Mapping[str, Tensor], reductions: Mapping[str, Reduction]) -> Features:
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
            population=Population(sampler.population(), self.condition),
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
