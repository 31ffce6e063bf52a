"""What one batch gave, as rows to score: an input is one row, or, of networks that predict for every pixel, a grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from .density._lattice import Lattice
from .tasks import Prediction
from .uncertainty import LayerScores


class Row(NamedTuple):
    """Some rows of one layer, ready for its density."""

    z: Tensor  # (m, d)
    residual: Tensor | None  # (m,)
    prediction: Tensor  # (m,), or (m, q)


class Reading(Protocol):
    """Predictions of a batch, and each layer's activations as rows."""

    @property
    def prediction(self) -> Prediction:
        """What the network predicts, in the shape of the scores."""

    @property
    def label(self) -> Tensor | None:
        """What is true, in the same shape, where it is known."""

    def rows(self, layer: str) -> Iterator[Row]:
        """All rows of a layer, some at a time."""

    def lattice(self, layer: str) -> Lattice | None:
        """What all rows of a layer are interpolated from; None where they are not, or where z is no linear map."""

    def shaped(self, scores: LayerScores) -> LayerScores:
        """Scores of all rows, in the shape of the predictions."""

    def of_inputs(self, scores: Tensor) -> Tensor:
        """One score an input, (n,), which are exchangeable where their pixels are not."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A reading of inputs that are one row each.

    Args:
        prediction: of the batch.
        reduced: each layer's activations (n, d) and residuals (n,).
        label: what is true, where it is known.
    """

    prediction: Prediction
    reduced: Mapping[str, tuple[Tensor, Tensor | None]]
    label: Tensor | None = None

    def rows(self, layer: str) -> Iterator[Row]:
        """All rows at once."""
        yield Row(*self.reduced[layer], self.prediction.value)

    def lattice(self, layer: str) -> Lattice | None:
        """Rows are not interpolated."""
        return None

    def shaped(self, scores: LayerScores) -> LayerScores:
        """The scores as they are."""
        return scores

    def of_inputs(self, scores: Tensor) -> Tensor:
        """The scores as they are."""
        return scores
