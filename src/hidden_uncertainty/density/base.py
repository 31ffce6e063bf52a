"""The one contract that every density of activations keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

from torch import Tensor, nn

from ._lattice import Lattice


class Density(nn.Module, ABC):
    r"""A density :math:`p(z \mid \hat y)` of activations given what the network predicts.

    What was fitted lives in buffers, so that a density moves, casts and saves like any module. A subclass says in
    `config` how to build itself again, empty; its buffers are then loaded into that.
    """

    @abstractmethod
    def fit(self, z: Tensor, y: Tensor, *, progress: bool | None = None) -> Self:
        """Fit to activations z (n, d) that came with predictions y (n,)."""

    @abstractmethod
    def log_prob(self, z: Tensor, support: Tensor) -> Tensor:
        """log p(z | y) in nats for z (n, d), one column a support point y: (n, m)."""

    @property
    def interpolates(self) -> bool:
        """Whether `log_prob_between` is there, and cheaper than `log_prob` of all interpolated vectors."""
        return False

    def log_prob_between(self, lattice: Lattice, support: Tensor) -> Iterator[Tensor]:
        """log p(z | y) at all pixels of a lattice, image by image and row by row, some at a time: (pixels, m)."""
        raise NotImplementedError(f"{type(self).__name__} scores vectors only: interpolate them, and call log_prob.")

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON: `from_config` builds a density with buffers of the same shapes."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The density that `config` describes, its buffers zero until they are loaded."""
