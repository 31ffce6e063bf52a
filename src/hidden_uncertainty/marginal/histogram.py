"""The histogram marginal: a number of any distribution, with several peaks for instance."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..io import expect, plain
from .continuous import Continuous

FEWEST, MOST = 5, 256  # bins, when the rule decides


class Histogram(Continuous):
    r"""A density that is constant in each of b bins of equal width from the smallest to the largest value.

    .. math:: p(y) = \frac{n_k + 1}{(n + b + 2)\, w}, \quad y \text{ in bin } k \text{ of width } w

    Adding one keeps empty bins possible. Below and above them p falls exponentially, with the deviation of the values
    as its length; each of these tails holds one of n + b + 2 parts of the mass too.

    Args:
        bins: how many; `"auto"` takes the rule of Freedman and Diaconis, at least 5 and at most 256.
        points: how many points integrals are summed at; see `Continuous`.
        low: where integrals begin.
        high: where they end.

    Example:
        >>> marginal = Histogram(bins=2).fit(torch.tensor([0.0, 0.1, 0.2, 1.0]))
        >>> marginal.log_prob(torch.tensor([0.2, 0.8, 1.2])).exp()    # 4/8 and 2/8 of the mass in bins of width 1/2
        tensor([1.0000, 0.5000, 0.1905])
    """

    name = "histogram"
    options: ClassVar[tuple[str, ...]] = ("bins", *Continuous.options)
    fitted: ClassVar[tuple[str, ...]] = ("bounds", "mass", "tail")

    bounds: Tensor  # the smallest and the largest value
    mass: Tensor  # of each bin (b,)
    tail: Tensor | None  # mass and length of each tail, (2,); None in files of version 0.1.0, which have none

    def __init__(
        self,
        bins: int | Literal["auto"] = "auto",
        *,
        points: int | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        super().__init__(points=points, low=low, high=high)
        bins = plain(bins)
        if bins != "auto" and (not isinstance(bins, int) or isinstance(bins, bool) or bins < 1):
            raise ValueError(f"bins must be 'auto' or a whole number of at least 1, not {bins!r}.")
        self.bins = bins

    def check(self) -> None:
        """Raise a ValueError where the buffers cannot be those of a fit."""
        super().check()
        if self.mass is not None:
            expect(self.bounds.diff() > 0, "bounds do not ascend")
            expect(self.mass > 0, "the mass of a bin is not positive")
            tails = 0.0 if self.tail is None else 2 * float(self.tail[0])
            expect(self.tail is None or self.tail > 0, "a tail has no mass or no length")
            expect(abs(float(self.mass.sum()) + tails - 1) < 1e-3, "the mass of all bins and tails is not one")

    def _estimate(self, y: Tensor) -> None:
        bins = _rule(y.numpy()) if self.bins == "auto" else self.bins
        self.bounds = torch.stack([y.min(), y.max()])
        counts = torch.bincount(_locate(y, self.bounds, bins).clamp(max=bins - 1).long(), minlength=bins)
        parts = len(y) + bins + 2
        self.mass = (counts.double() + 1) / parts
        self.tail = torch.stack([y.new_tensor(1 / parts), y.std(correction=0)])

    @property
    def tails(self) -> bool:
        """Whether there are any: not in files of version 0.1.0."""
        return self.tail is not None

    def _log_prob(self, y: Tensor) -> Tensor:
        low, high = self.bounds.to(torch.promote_types(y.dtype, self.bounds.dtype))
        bins = len(self.mass)
        place = _locate(y, self.bounds, bins)
        density = self.mass.to(place.dtype) * bins / (high - low)
        inside = density.log()[place.clamp(0, bins - 1).long()]
        if self.tail is None:
            return inside.masked_fill((y < low) | (y > high), -math.inf)
        mass, length = self.tail.to(place.dtype)
        off = torch.maximum(low - y, y - high)
        return torch.where(off > 0, (mass / length).log() - off / length, inside)

    def _mean_log_prob(self, y: Tensor) -> Tensor:
        edges = torch.cat([y[..., :1], (y[..., 1:] + y[..., :-1]) / 2, y[..., -1:]], dim=-1)
        mass = self._cdf(edges).diff(dim=-1)
        # Differences of a cdf near one have an absolute error: small masses are taken from the density.
        return torch.where(mass > 1e-9, (mass / edges.diff(dim=-1)).log(), self._log_prob(y))

    def _core(self) -> Tensor:
        return self.bounds.double()

    def _ends(self) -> Tensor:
        ends = super()._ends()
        return ends if self.tails else ends.clamp(*self.bounds.double())

    def _cdf(self, y: Tensor) -> Tensor:
        bins, (low, high) = len(self.mass), self.bounds.to(torch.promote_types(y.dtype, self.bounds.dtype))
        place = _locate(y, self.bounds, bins).clamp(0, bins)
        whole = place.clamp(max=bins - 1).long()
        below = self._below()
        cdf = below[whole] + (place - whole) * below.diff()[whole]
        if self.tail is None:
            return cdf
        mass, length = self.tail.to(cdf.dtype)
        faded = mass * (-torch.maximum(low - y, y - high).clamp(min=0) / length).exp()
        return torch.where(y < low, faded, torch.where(y > high, 1 - faded, cdf))

    def _quantile(self, p: Tensor) -> Tensor:
        below = self._below()
        whole = torch.searchsorted(below, p, right=True).sub(1).clamp(0, len(self.mass) - 1)
        place = (whole + (p - below[whole]) / below.diff()[whole]) / len(self.mass)
        low, high = self.bounds
        inside = low + place * (high - low)
        if self.tail is None:
            return inside
        mass, length = self.tail.to(p.dtype)
        lower, upper = low + length * (p / mass).log(), high - length * ((1 - p) / mass).log()
        return torch.where(p < mass, lower, torch.where(p > 1 - mass, upper, inside))

    def _below(self) -> Tensor:
        """The mass below each edge (b + 1,), exactly one at the last where there are no tails."""
        below = torch.cat([self.mass.new_zeros(1, dtype=torch.float64), self.mass.double().cumsum(0)])
        if self.tail is None:
            return below / below[-1]
        tail = self.tail[0].double()
        return tail + below / below[-1] * (1 - 2 * tail)


def _locate(y: Tensor, bounds: Tensor, bins: int) -> Tensor:
    """The place of y in bins from the lower bound, with a fraction."""
    low, high = bounds.to(torch.promote_types(y.dtype, bounds.dtype))
    return (y - low) / (high - low) * bins


def _rule(y: np.ndarray) -> int:
    """Freedman and Diaconis; Sturges where the middle half of the values is one number."""
    lower, upper = np.percentile(y, [25, 75])
    width = 2 * (upper - lower) / len(y) ** (1 / 3)
    # Compared before it is divided: a few outliers may ask for more bins than there are integers.
    bins = MOST if 0 < width * MOST <= np.ptp(y) else math.ceil(np.ptp(y) / width) if width > 0 else 0
    return min(max(bins or math.ceil(math.log2(len(y))) + 1, FEWEST), MOST)
