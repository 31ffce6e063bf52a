"""What one batch of images gave: every pixel of a grid is a row to score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ._pixel_grid import LatentMap
from ._reading import Row
from .density._lattice import Lattice
from .extract import Condition
from .pixels import Pixels
from .reduce import Reduction
from .tasks import Prediction
from .uncertainty import LayerScores

CELLS = 1 << 22  # numbers of a tile: pixels times their dimensions


@dataclass(frozen=True, eq=False)
class Grid:
    """A reading of images: every pixel of the grid is a row, made when it is asked for, in tiles of bounded size.

    Args:
        prediction: (n, H, W).
        latents: each layer's maps.
        pixels: how they are treated.
        label: (n, H, W), where it is known.
        reductions: from each layer's vectors to z.
    """

    prediction: Prediction
    latents: Mapping[str, LatentMap]
    pixels: Pixels
    label: Tensor | None = None
    reductions: Mapping[str, Reduction] = field(default_factory=dict)

    def __getitem__(self, images: Tensor) -> Grid:
        """Some of the images, by a mask (n,)."""
        images = images.nonzero()[:, 0]

        def some(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[images.to(values.device)]

        value, classes, variance = self.prediction
        return replace(
            self,
            prediction=Prediction(value[images.to(value.device)], classes, some(variance)),
            latents={name: latent.take(images) for name, latent in self.latents.items()},
            label=some(self.label),
        )

    def rows(self, layer: str) -> Iterator[Row]:
        """All pixels of all images, row by row of each."""
        latent, reduction = self.latents[layer], self.reductions[layer]
        height, width = latent.size
        row = width * latent.width
        images, lines = max(1, CELLS // (height * row)), max(1, CELLS // row)
        for first in range(0, len(self.prediction.value), images):
            some = slice(first, first + images)
            for start in range(0, height, lines):
                stop = min(start + lines, height)
                z, residual = reduction(latent.band(some, start, stop))
                yield Row(z, residual, self.prediction.value[some, start:stop].flatten())

    def lattice(self, layer: str) -> Lattice | None:
        """The places that all pixels of all images lie between; None where z is not linear in what is there."""
        latent, reduction = self.latents[layer], self.reductions[layer]
        nodes = latent.lattice
        if nodes is None:
            return None
        _, residual = reduction(nodes.nodes[:1, 0, 0])  # where nothing is dropped, z is what the layer gave
        return nodes if residual is None else None

    def shaped(self, scores: LayerScores) -> LayerScores:
        """The scores as maps (n, H, W)."""
        return scores.reshape(self.prediction.value.shape)

    def given(self, condition: Condition) -> Tensor:
        """What a density is conditioned on, (n, H, W)."""
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
        """The score of each image that has pixels that count: a share of these exceeds it."""
        valid = self.valid.to(scores.device)
        kept = [values[count] for values, count in zip(scores, valid, strict=True) if bool(count.any())]
        return torch.stack([self.pixels.image_score(values) for values in kept]) if kept else scores.new_zeros(0)
