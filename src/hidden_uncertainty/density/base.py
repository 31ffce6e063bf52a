"""The one contract that every density of activations keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from torch import Tensor, nn


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

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON: `from_config` builds a density with buffers of the same shapes."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The density that `config` describes, its buffers zero until they are loaded."""
