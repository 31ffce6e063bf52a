"""p(ŷ|z) of each input as a whole: masses on a grid, with quantiles and regions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..marginal import Support
from .bayes import Posterior
from .calibration import check_share


class Region(NamedTuple):
    """One interval per input, and the mass of p(ŷ|z) that it holds."""

    low: Tensor  # (n,)
    high: Tensor  # (n,)
    mass: Tensor  # (n,)


@dataclass(frozen=True, eq=False, repr=False)
class OutputDistribution:
    r"""The distribution p(ŷ|z) of a number, given what was seen in a layer.

    Each support point stands for a cell that reaches half way to its neighbours and holds its mass evenly. It describes
    the network's prediction ŷ, not labels, unless `condition="label"`; then it is only as right as the density. For
    intervals that cover labels whatever the density, see `LatentDensity.interval`.

    Args:
        support: the points, ascending, (m,), or (n, m) where every input has its own.
        log_mass: logarithm of each point's share, (n, m); every row sums to one.
        prediction: what the network predicts, (n,).

    Example:
        >>> support = torch.linspace(-4, 4, 801)
        >>> log_mass = torch.log_softmax(-support.square() / 2, 0)[None]
        >>> distribution = OutputDistribution(support, log_mass, torch.tensor([0.5]))
        >>> [round(float(q), 2) for q in distribution.quantile(0.975)]
        [1.96]
        >>> [round(float(end), 2) for end in distribution.outwards(0.2)[:2]]
        [0.23, 0.81]
    """

    support: Tensor
    log_mass: Tensor
    prediction: Tensor

    def __post_init__(self) -> None:
        if self.support.dim() == 1:
            object.__setattr__(self, "support", self.support.expand(len(self), -1))

    def __len__(self) -> int:
        return len(self.prediction)

    @property
    def edges(self) -> Tensor:
        """Where the cells of the support points meet, (n, m + 1)."""
        middle = (self.support[:, 1:] + self.support[:, :-1]) / 2
        return torch.cat([self.support[:, :1], middle, self.support[:, -1:]], dim=1)

    @property
    def density(self) -> Tensor:
        """p(ŷ|z) at the support points, (n, m)."""
        return (self.log_mass - self.edges.diff(dim=1).log()).exp()

    @property
    def mean(self) -> Tensor:
        """E[ŷ|z], (n,)."""
        return (self.log_mass.exp() * self.support).sum(1)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of ŷ given z, (n,)."""
        away = self.support - self.mean[:, None]
        return (self.log_mass.exp() * (away.square() + self.edges.diff(dim=1).square() / 12)).sum(1).sqrt()

    def cdf(self, y: Tensor) -> Tensor:
        """The share of each input's distribution below its y (n,)."""
        return _interpolate(y[:, None], self.edges, self._below)[:, 0]

    def quantile(self, share: float | Tensor) -> Tensor:
        """The value below which a share of each input's distribution lies, (n,)."""
        wanted = torch.as_tensor(share, dtype=self._below.dtype, device=self.support.device).expand(len(self))
        return _interpolate(wanted[:, None], self._below, self.edges.to(self._below.dtype))[:, 0]

    def outwards(self, mass: float) -> Region:
        """From the prediction up and, separately, down, until each way holds half of the asked mass.

        This is how the paper draws its confidence regions. A prediction near the end of its own distribution has less
        than half of the mass on that side; the region then ends with the support and holds less: see its `mass`.
        """
        start, half = self.cdf(self.prediction), check_share("mass", mass) / 2
        below, above = (start - half).clamp(min=0), (start + half).clamp(max=1)
        low, high = self.quantile(below), self.quantile(above)
        # Rounding must not push the prediction out of its own region.
        prediction = self.prediction.to(low.dtype)
        return Region(torch.minimum(low, prediction), torch.maximum(high, prediction), above - below)

    def __repr__(self) -> str:
        return f"OutputDistribution of {len(self):,} inputs on {self.support.shape[1]:,} points each"

    @property
    def _below(self) -> Tensor:
        """Mass below each edge, (n, m + 1)."""
        below = self.log_mass.double().exp().cumsum(1)
        return torch.nn.functional.pad(below / below[:, -1:], (1, 0))


def grid(posterior: Posterior, support: Support, prediction: Tensor) -> tuple[Tensor, Tensor]:
    """The points (n, m) and log masses of p(y|z) in the cells around them, of one number."""
    assert support.log_volume is not None
    points = support.points[..., 0]
    gap = torch.nn.functional.pad(points.diff(dim=1) / 2, (1, 1))
    log_density = posterior.log_posterior - support.log_volume
    return points, (log_density + (gap[:, 1:] + gap[:, :-1]).log()).log_softmax(1)


def _interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Piecewise linear through (xs, ys), both ascending in each row; constant beyond the ends."""
    x = x.to(xs.dtype).contiguous()
    upper = torch.searchsorted(xs.contiguous(), x).clamp(1, xs.shape[1] - 1)
    x0, x1 = xs.gather(1, upper - 1), xs.gather(1, upper)
    y0, y1 = ys.gather(1, upper - 1), ys.gather(1, upper)
    share = ((x - x0) / (x1 - x0).clamp(min=torch.finfo(xs.dtype).tiny)).clamp(0, 1)
    return y0 + share.to(ys.dtype) * (y1 - y0)
