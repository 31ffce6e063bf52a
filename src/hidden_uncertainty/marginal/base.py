"""What every marginal p(y) offers: the support that is summed over, with its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from ..stored import Stored


class LogProb(Protocol):
    """log p(z|y) of n inputs, or of some rows of them, at points (m, q) or (n, m, q)."""

    def __call__(self, support: Tensor, rows: Tensor | None = None) -> Tensor:
        """One column per support point, (n, m)."""


MarginalName = Literal["uniform", "gaussian", "beta-prime", "histogram"]


class Support(NamedTuple):
    r"""The points that p(y) is summed over, and what each of them weighs.

    .. math:: \int f(y)\, p(y)\, dy \approx \sum_j f(y_j)\, w_j, \qquad w_j = p(y_j)\, v_j

    Points are (m,) integers for classes; of numbers they are (m, q), or (n, m, q) where inputs have separate ones.
    """

    points: Tensor
    log_weight: Tensor  # log w_j, (m,) or (n, m)
    log_volume: Tensor | None = None  # log v_j, of the same shape; None where y is a class and v_j is one


class Marginal(Stored, ABC):
    """The marginal p(y) of what a density is conditioned on; what was fitted lives in buffers."""

    @abstractmethod
    def fit(self, y: Tensor) -> Self:
        """Fit to the values y, one per sample."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many points a support has."""

    @abstractmethod
    def at(self, prediction: Tensor, log_prob: LogProb | None = None) -> Support:
        """The support for these predictions.

        Args:
            prediction: of n inputs, (n,) or (n, q).
            log_prob: log p(z|y) of the inputs, as `Density.given` gives it. With it, a support of numbers lies where
                the p(y|z) of each input does; without it, where p(y) and the predictions do.
        """

    def of(self, y: Tensor) -> Tensor:
        """What a density is given of the values y: themselves, or the class (n,) that each is counted with."""
        return y


def check_values(y: Tensor) -> None:
    """Raise unless y is finite numbers (n,) or vectors (n, q) that have a density."""
    y = y.detach()
    if not y.is_floating_point():
        raise TypeError(f"expected predictions in floating point, not {y.dtype}: for classes use Categorical.")
    if y.dim() not in (1, 2) or (y.dim() == 2 and y.shape[1] < 2):
        raise ValueError(f"expected predictions (n,), or (n, q) with q of at least 2, not {tuple(y.shape)}.")
    if len(y) < 2:
        raise ValueError(f"a marginal needs at least 2 predictions, not {len(y)}.")
    bad = int((~y.isfinite()).reshape(len(y), -1).any(1).sum())
    if bad:
        raise ValueError(f"{bad} of {len(y)} predictions hold NaN or infinity: leave them out, or find out why.")
    constant = (y.amax(0) == y.amin(0)).nonzero().flatten().tolist() if y.dim() == 2 else []
    if constant:
        same = f"column {constant[0]} of all {len(y)} predictions is {float(y[0, constant[0]]):.6g}"
        raise ValueError(f"{same}: a constant has no density. Leave it out.")
    if y.dim() == 1 and bool(y.max() == y.min()):
        raise ValueError(
            f"all {len(y)} predictions are {float(y[0]):.6g}: a constant has no density. Check that the network is "
            "trained, and that output= names what it predicts."
        )
    limits = torch.finfo(torch.promote_types(y.dtype, torch.float32))
    largest, spread = float(y.abs().max()), float((y.amax(0).double() - y.amin(0).double()).min())
    if largest > limits.max**0.45 or spread < 1e6 * limits.tiny:
        raise ValueError(
            f"predictions reach {largest:.4g} and differ by {spread:.4g}, which {limits.dtype} cannot hold with their "
            "squares and inverses: rescale them."
        )
