"""From a model that predicts for every pixel and a loader to pixels that are drawn, and to grids of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ._pixel_grid import LatentMap, nearest
from ._pixel_reading import Grid
from ._pixel_sample import Sampler
from .batches import Batch, count, require_repeatable
from .extract import Condition, Extractor, Features, Population, Reader, chosen
from .pixels import Pixels
from .progress import say, task
from .reduce import How, Reduction, ReductionFit
from .tasks import infer_task

ROWS = 1 << 14  # reduced at a time


@dataclass(frozen=True, eq=False)
class Images:
    """Images that nothing was fitted to, read when they are asked for: all of a loader's, or those held out.

    Args:
        extractor: reads them.
        loader: gives them.
        reductions: from each layer's vectors to z.
        held_out: the share that was set apart; None takes all.
    """

    extractor: PixelExtractor
    loader: Iterable[Any]
    reductions: Mapping[str, Reduction]
    held_out: float | None = None

    def readings(self) -> Iterator[Grid]:
        """Their pixels, batch by batch."""
        with task("calibrating", count(self.loader), enabled=self.extractor.progress) as bar:
            for index, batch in enumerate(self.extractor._batches(self.loader)):
                apart = None if self.held_out is None else chosen(batch, self.held_out)
                if apart is None or bool(apart.any()):
                    grid = replace(self.extractor.labelled(batch, index), reductions=self.reductions)
                    yield grid if apart is None else grid[apart]
                bar.advance()


class PixelExtractor(Extractor):
    """Reads chosen layers of a model that predicts for every pixel.

    The network runs once over a loader: pixels are drawn on the way, and reductions fitted to those that were kept.

    Args:
        pixels: how pixels are treated.
        condition: what classes to balance: predictions or labels.
        grid_of: the layer whose grid is scored at, when it is not the output's.
        options: those of `Extractor`.
    """

    def __init__(self, *args: Any, pixels: Pixels, condition: Condition, grid_of: str, **options: Any) -> None:
        if not isinstance(pixels, Pixels):
            raise TypeError(f"pixels must be Pixels(...) or None, not {pixels!r}.")
        super().__init__(*args, **options)
        self.pixels, self.condition, self.grid_of = pixels, condition, grid_of
        tokens = [name for name, reduce in self.layers.items() if reduce.how == "token"]
        if tokens:
            raise ValueError(f"how='token' takes one place of layer {tokens[0]!r}; with pixels= every place is taken.")

    def fit(self, loader: Iterable[Any], *, held_out: float = 0.0) -> tuple[Features, Images]:
        """Draw pixels of a loader and fit the reductions to them; images held out come back second, not yet read."""
        if held_out:
            require_repeatable(loader, 2)
        sampler = self._draw(loader, held_out)
        rows = sampler.rows()
        reductions = {
            name: _fit_reduction(ReductionFit(reduce, name, seed=self.seed), rows[f"z {name}"])
            for name, reduce in self.layers.items()
        }
        return self._features(sampler, rows, reductions), Images(self, loader, reductions, held_out)

    def extract(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Features:
        """Draw pixels of a loader, with reductions that were fitted before."""
        sampler = self._draw(loader, 0.0)
        return self._features(sampler, sampler.rows(), reductions)

    def unseen(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Images:
        """All pixels of a loader's images, to calibrate with."""
        return Images(self, loader, reductions)

    def reading(self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None) -> Grid:
        """Run the network on one batch: all pixels of its images."""
        return replace(self._grid(batch, reductions, index), reductions=reductions)

    def labelled(self, batch: Batch, index: int | None = None) -> Grid:
        """All pixels of a batch's images with its labels, to draw from or to calibrate with."""
        grid = self._grid(batch, self.layers, index)
        return grid if batch.label is None else replace(grid, label=_on_grid(batch.label, grid.prediction.value))

    def _grid(self, batch: Batch, layers: Iterable[str], index: int | None) -> Grid:
        copies = {name: _copier(name, self.layers[name].how) for name in layers}
        output, maps = self._read(batch, copies, index)
        if self.task is None:
            self.task = infer_task(output, batch.label, self.output, pixels=True)
            say(f"task: {self.task.describe(self.task.predict_pixels(output))}. Pass task= to say otherwise.")
        size = None
        if self.pixels.resolution == "latent":
            size = (maps[self.grid_of].shape[1], maps[self.grid_of].shape[2])
        prediction = self.task.predict_pixels(output, size)
        if len(prediction.value) != len(batch):
            raise ValueError(f"the network gave {len(prediction.value)} maps for {len(batch)} inputs.")
        height, width = prediction.value.shape[1:]
        latents = {name: LatentMap(values, self.pixels.patch, (height, width)) for name, values in maps.items()}
        return Grid(prediction, latents, self.pixels)

    def _draw(self, loader: Iterable[Any], held_out: float) -> Sampler:
        sampler: Sampler | None = None
        images, labels = 0, False
        with task("drawing pixels", count(loader), enabled=self.progress) as bar:
            for index, batch in enumerate(self._batches(loader)):
                # Before the network runs, which may write into its inputs.
                apart = chosen(batch, held_out) if held_out else torch.zeros(len(batch), dtype=torch.bool, device="cpu")
                grid = self.labelled(batch, index)
                if sampler is None:
                    sampler = Sampler(self.pixels, grid.prediction.classes, seed=self.seed)
                    labels = batch.label is not None
                if labels != (batch.label is not None):
                    raise ValueError("some batches of the loader have labels and others have none: give all, or none.")
                given, valid = grid.given(self.condition), grid.valid
                for image in (~apart).nonzero()[:, 0].tolist():
                    sampler.add(
                        images + image, given[image].flatten(), valid[image].flatten(), partial(grid.columns, image)
                    )
                images += len(batch)
                bar.advance()
        assert sampler is not None  # a loader without batches has raised
        return sampler

    def _features(self, sampler: Sampler, rows: Mapping[str, Tensor], reductions: Mapping[str, Reduction]) -> Features:
        reduced = {name: _reduce(reductions[name], rows[f"z {name}"]) for name in self.layers}
        return Features(
            {name: z for name, (z, _) in reduced.items()},
            {name: residual for name, (_, residual) in reduced.items()},
            rows["prediction"],
            rows.get("label"),
            sampler.classes,
            dict(reductions),
            rows.get("variance"),
            Population(sampler.population(), self.condition),
        )


def _copier(layer: str, how: How) -> Reader:
    """Copies a layer's maps (n, C, h, w) with channels last, so that a place's numbers lie together."""

    def copy(activation: Tensor) -> Tensor:
        if activation.dim() != 4:
            shape = ", ".join(["n", *map(str, activation.shape[1:])])
            raise ValueError(
                f"layer {layer!r} gave ({shape}), which is no map: with pixels= a layer's output is (n, channels, "
                "height, width), or (n, height, width, channels) with reduce='tokens'. Choose another layer."
            )
        if not activation.is_floating_point():
            raise TypeError(f"layer {layer!r} gave {activation.dtype}; floating-point activations are needed.")
        last = activation if how == "tokens" else activation.permute(0, 2, 3, 1)
        return last.clone(memory_format=torch.contiguous_format)

    return copy


def _on_grid(label: Tensor, prediction: Tensor) -> Tensor:
    """Labels on the grid of the predictions (n, H, W)."""
    if label.dim() == 4 and label.shape[1] == 1:
        label = label[:, 0]
    if label.dim() != 3:
        raise ValueError(
            f"labels of pixels are (n, H, W), but the loader gave {tuple(label.shape)}. If labels are not needed, "
            "leave them out: unpack=lambda batch: (batch[0], None)."
        )
    return nearest(label.to(prediction.device), (prediction.shape[1], prediction.shape[2]))


def _fit_reduction(fit: ReductionFit, rows: Tensor) -> Reduction:
    fit.probe(rows[:ROWS])
    while not fit.done:
        for part in rows.split(ROWS):
            fit.update(part)
        fit.end_pass()
    return fit.result()


def _reduce(reduction: Reduction, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    z, residual = zip(*map(reduction, rows.split(ROWS)), strict=True)
    return torch.cat(z), None if residual[0] is None else torch.cat(residual)
