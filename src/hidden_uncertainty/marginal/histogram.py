"""The histogram marginal: a number of any distribution, with several peaks for instance."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from .continuous import Continuous

FEWEST, MOST = 5, 256  # bins, when the rule decides


class Histogram(Continuous):
    r"""A density that is constant in each of b bins of equal width from the smallest to the largest value.

    .. math:: p(y) = \frac{n_k + 1}{(n + b)\, w}, \quad y \text{ in bin } k \text{ of width } w

    Adding one keeps empty bins possible. Outside the bins, p is zero.

    Args:
        bins: how many; `"auto"` takes the rule of Freedman and Diaconis, at least 5 and at most 256.
        points: how many points integrals are summed at; see `Continuous`.
        low: where the support begins.
        high: where it ends.

    Example:
        >>> marginal = Histogram(bins=2).fit(torch.tensor([0.0, 0.1, 0.2, 1.0]))
        >>> marginal.log_prob(torch.tensor([0.2, 0.8, 1.2])).exp()    # 4/6 and 2/6 of the mass in bins of width 1/2
        tensor([1.3333, 0.6667, 0.0000])
    """

    name = "histogram"
    options: ClassVar[tuple[str, ...]] = ("bins", *Continuous.options)
    fitted: ClassVar[tuple[str, ...]] = ("bounds", "mass")

    bounds: Tensor  # the smallest and the largest value
    mass: Tensor  # of each bin (b,)

    def __init__(
        self,
        bins: int | Literal["auto"] = "auto",
        *,
        points: int | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        super().__init__(points=points, low=low, high=high)
        if bins != "auto" and (not isinstance(bins, int) or isinstance(bins, bool) or bins < 1):
            raise ValueError(f"bins must be 'auto' or a whole number of at least 1, not {bins!r}.")
        self.bins = bins

    def _estimate(self, y: Tensor) -> None:
        bins = _rule(y.numpy()) if self.bins == "auto" else self.bins
        self.bounds = torch.stack([y.min(), y.max()])
        counts = torch.bincount(_locate(y, self.bounds, bins).clamp(max=bins - 1).long(), minlength=bins)
        self.mass = (counts.double() + 1) / (len(y) + bins)

    def _log_prob(self, y: Tensor) -> Tensor:
        low, high = self.bounds.to(torch.promote_types(y.dtype, self.bounds.dtype))
        bins = len(self.mass)
        place = _locate(y, self.bounds, bins)
        density = self.mass.to(place.dtype) * bins / (high - low)
        return density.log()[place.clamp(0, bins - 1).long()].masked_fill((y < low) | (y > high), -math.inf)

    def _cdf(self, y: Tensor) -> Tensor:
        bins = len(self.mass)
        place = _locate(y, self.bounds, bins).clamp(0, bins)
        whole = place.clamp(max=bins - 1).long()
        below = self._below()
        return below[whole] + (place - whole) * below.diff()[whole]

    def _quantile(self, p: Tensor) -> Tensor:
        below = self._below()
        whole = torch.searchsorted(below, p, right=True).sub(1).clamp(0, len(self.mass) - 1)
        place = (whole + (p - below[whole]) / below.diff()[whole]) / len(self.mass)
        low, high = self.bounds
        return low + place * (high - low)

    def _below(self) -> Tensor:
        """The mass below each edge (b + 1,), exactly one at the last."""
        below = torch.cat([self.mass.new_zeros(1, dtype=torch.float64), self.mass.double().cumsum(0)])
        return below / below[-1]


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
