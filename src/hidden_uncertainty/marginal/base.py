"""What every marginal p(y) offers: points to sum over, and what each of them weighs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from torch import Tensor, nn

MarginalName = Literal["uniform", "gaussian", "beta-prime", "histogram"]


class Nodes(NamedTuple):
    r"""Points y_j of a sum that stands for a sum or an integral over y.

    .. math:: \int f(y)\, p(y)\, dy \approx \sum_j f(y_j)\, w_j, \qquad w_j = p(y_j)\, v_j

    Classes are (m,) whole numbers, numbers (m,), vectors (m, q), or (n, m, q) where every input has its own points.
    """

    points: Tensor
    log_weight: Tensor  # log w_j, (m,) or (n, m)
    log_volume: Tensor | None = None  # log v_j, of the same shape; None where y is a class and v_j is one


class Marginal(nn.Module, ABC):
    """The marginal p(y) of what a density is conditioned on.

    What was fitted lives in buffers. `config` says what `from_config` needs to build the module again, with buffers of
    the same shapes, ready for `load_state_dict(strict=True)`.
    """

    @abstractmethod
    def fit(self, y: Tensor) -> Self:
        """Fit to the values y, one a sample."""

    @abstractmethod
    def nodes(self, prediction: Tensor) -> Nodes:
        """The points to sum over for inputs with these predictions."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Arguments of `from_config`, ready for JSON."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build the module with buffers of the right shapes, to be filled by `load_state_dict`."""
