"""The uniform marginal: one number between two bounds, or vectors in a box."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..io import expect
from ._importance import EDGE, Frame
from .continuous import Continuous


class Uniform(Continuous):
    r"""Every value between two bounds is as likely as any other, and none is outside.

    .. math:: p(y) = \frac{1}{b - a}, \quad a \le y \le b

    Bounds that are not given are fitted: the smallest and the largest value, each moved outwards by 1 / (n - 1) of the
    distance between them, the mean gap between values. The paper's setting is `Uniform(-10, 10, points=1000)`. Vectors
    lie in a box; a bound that is given holds for each of their numbers.

    Args:
        low: the lower bound, or None to fit it.
        high: the upper bound, or None to fit it.
        points: how many points integrals are summed at; see `Continuous`.

    Example:
        >>> marginal = Uniform(-10, 10, points=1000).fit(torch.linspace(-4, 4, 50))
        >>> marginal.log_prob(torch.tensor([0.0, 11.0])).exp()
        tensor([0.0500, 0.0000])
    """

    name = "uniform"
    vectors = True
    box = True
    fitted: ClassVar[tuple[str, ...]] = ("bounds",)

    bounds: Tensor  # (2,) or (2, q)

    def __init__(self, low: float | None = None, high: float | None = None, *, points: int | None = None) -> None:
        super().__init__(points=points, low=low, high=high)

    def check(self) -> None:
        """Raise a ValueError where the buffers cannot be those of a fit."""
        super().check()
        expect(self.bounds is None or self.bounds.diff(dim=0) > 0, "bounds do not ascend")

    def _refuses(self, y: Tensor) -> str | None:
        low, high = float(y.min()), float(y.max())
        below = torch.zeros_like(y, dtype=torch.bool) if self.low is None else y < self.low
        above = torch.zeros_like(y, dtype=torch.bool) if self.high is None else y > self.high
        outside = int((below | above).reshape(len(y), -1).any(1).sum())
        if outside:
            return (
                f"{outside} of {len(y)} predictions lie outside Uniform({self.extra_repr()}); they reach from "
                f"{low:.6g} to {high:.6g}. Give wider bounds, or leave them out to fit them."
            )
        return super()._refuses(y)

    def _estimate(self, y: Tensor) -> None:
        low, high = y.amin(0), y.amax(0)
        gap = (high - low) / (len(y) - 1)
        low = low - gap if self.low is None else torch.full_like(low, self.low)
        high = high + gap if self.high is None else torch.full_like(high, self.high)
        self.bounds = torch.stack([low, high])

    def _log_prob(self, y: Tensor) -> Tensor:
        low, high = self.bounds.to(torch.promote_types(y.dtype, self.bounds.dtype))
        outside = (y < low) | (y > high)
        log_prob = -(high - low).log().expand(y.shape)
        if self.bounds.dim() == 2:
            log_prob, outside = log_prob.sum(-1), outside.any(-1)
        return log_prob.masked_fill(outside, -math.inf)

    def _cdf(self, y: Tensor) -> Tensor:
        low, high = self.bounds
        return ((y - low) / (high - low)).clamp(0, 1)

    def _quantile(self, p: Tensor) -> Tensor:
        low, high = self.bounds
        return low + p * (high - low)

    @property
    def tails(self) -> bool:
        """None: outside the bounds p(y) is zero."""
        return False

    def _core(self) -> Tensor:
        return self.bounds.double()

    _ends = _core

    def _frame(self) -> Frame:
        low, high = self.bounds.double()
        deviation = (high - low) / (2 * EDGE)
        return Frame((low + high) / 2, deviation.diag(), (1 / deviation).diag(), box=True)
