"""The marginals that only single numbers have, beta prime and the histogram; and which of all marginals to take."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..io import expect, is_int, plain
from .base import check_values
from .continuous import Continuous
from .vectors import Gaussian, Uniform

FARTHEST = 500.0  # logarithm of a number that is still one
NARROWEST = 1e10  # α + β; beyond, the logarithms of gamma functions have no digits left for p(y)
FEWEST, MOST = 5, 256  # bins, when the rule decides
SPLIT = 10  # predictions that can be split to choose by, at least, per number of each


class BetaPrime(Continuous):
    r"""The distribution of x / (1 - x) where x has a beta distribution, fitted by maximum likelihood.

    .. math:: p(y) = \frac{y^{\alpha - 1} (1 + y)^{-\alpha - \beta}}{B(\alpha, \beta)}, \quad y > 0

    with y in units of `scale`. Its location is zero, and its tail falls as y to the power of -1 - β.

    Args:
        scale: the unit of y, one as in the paper; None takes the geometric mean of the values.
        points, low, high: as for `Continuous`.

    Example:
        >>> x = np.random.default_rng(0).beta(31.76, 3.07, 2000)
        >>> marginal = BetaPrime().fit(torch.as_tensor(x / (1 - x)))
        >>> marginal.shape
        tensor([30..., 3.0...], dtype=torch.float64)
    """

    name = "beta-prime"
    fitted: ClassVar[tuple[str, ...]] = ("shape", "unit")

    shape: Tensor  # α and β
    unit: Tensor | None  # (); None in files of version 0.1.0, where it is one

    def __init__(
        self,
        scale: float | None = 1.0,
        *,
        points: int | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        super().__init__(points=points, low=low, high=high)
        if scale is not None and not 0 < scale < math.inf:
            raise ValueError(f"scale must be above zero, or None, not {scale!r}.")
        self.scale = None if scale is None else float(scale)

    def check(self) -> None:
        """Raise a ValueError where the buffers cannot be those of a fit."""
        super().check()
        expect(self.shape is None or self.shape > 0, "α or β is not positive")
        expect(self.unit is None or self.unit > 0, "the scale is not positive")

    def _refuses(self, y: Tensor) -> str | None:
        bad = int((y <= 0).reshape(len(y), -1).any(1).sum())
        if bad:
            return (
                f"{bad} of {len(y)} predictions are not positive, and BetaPrime is for positive numbers: use Gaussian "
                "or Histogram."
            )
        if y.dim() == 1 and _by_moments((y.double() / self._unit_of(y.double())).numpy()).sum() > NARROWEST:
            return (
                f"predictions around {float(y.median()):.4g} are too far from scale={self.scale}, or too close to each "
                "other, for BetaPrime: give scale=None, or use Gaussian or Histogram."
            )
        return super()._refuses(y)

    def _unit_of(self, y: Tensor) -> Tensor:
        return y.log().mean().exp() if self.scale is None else y.new_tensor(self.scale)

    def _estimate(self, y: Tensor) -> None:
        self.unit = self._unit_of(y)
        self.shape = torch.from_numpy(_fit((y / self.unit).numpy()))

    @property
    def _scale(self) -> Tensor:
        return torch.ones_like(self.shape[0]) if self.unit is None else self.unit

    def _log_prob(self, y: Tensor) -> Tensor:
        alpha, beta = self.shape.to(torch.promote_types(y.dtype, self.shape.dtype))
        y, log_unit = y / self._scale, self._scale.to(alpha.dtype).log()
        log_beta = alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()
        at = y.clamp(min=0)
        # xlogy is zero at α = 1 and y = 0, where (α - 1) log y is not a number.
        log_prob = torch.xlogy(alpha - 1, at) - (alpha + beta) * at.log1p() - log_beta - log_unit
        return log_prob.masked_fill(y < 0, -math.inf)

    def _core(self) -> Tensor:
        shape = self.shape.double()
        mean = shape.digamma() @ shape.new_tensor([1.0, -1.0])
        return mean + torch.polygamma(1, shape).sum().sqrt() * shape.new_tensor([-5.0, 5.0])

    def _coordinate(self, y: Tensor) -> Tensor:
        return (y.double() / self._scale).log().nan_to_num(nan=-FARTHEST).clamp(-FARTHEST, FARTHEST)

    def _value(self, x: Tensor) -> Tensor:
        return x.exp() * self._scale

    def _log_slope(self, x: Tensor) -> Tensor:
        return x + self._scale.log()

    def _cdf(self, y: Tensor) -> Tensor:
        from scipy import stats  # here and below, so that `import hidden_uncertainty` does not load it

        return torch.as_tensor(stats.betaprime.cdf((y / self._scale).cpu(), *self.shape.tolist()), device=y.device)


class Histogram(Continuous):
    r"""A density that is constant in each of b bins of equal width from the smallest to the largest value.

    .. math:: p(y) = \frac{n_k + 1}{(n + b + 2)\, w}, \quad y \text{ in bin } k \text{ of width } w

    Adding one keeps empty bins possible. Below and above them p falls exponentially, with the deviation of the values
    as its length; each of these tails holds one of n + b + 2 parts of the mass too.

    Args:
        bins: how many; `"auto"` takes the rule of Freedman and Diaconis, at least 5 and at most 256.
        points, low, high: as for `Continuous`.

    Example:
        >>> marginal = Histogram(bins=2).fit(torch.tensor([0.0, 0.1, 0.2, 1.0]))
        >>> marginal.log_prob(torch.tensor([0.2, 0.8, 1.2])).exp()    # 4/8 and 2/8 of the mass in bins of width 1/2
        tensor([1.0000, 0.5000, 0.1905])
    """

    name = "histogram"
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
        if bins != "auto" and (not is_int(bins) or bins < 1):
            raise ValueError(f"bins must be 'auto' or a whole number of at least 1, not {bins!r}.")
        self.bins = bins

    def check(self) -> None:
        """Raise a ValueError where the buffers cannot be those of a fit."""
        super().check()
        if self.mass is not None:
            expect(self.bounds.diff() > 0, "bounds do not ascend")
            expect(self.mass > 0, "the mass of a bin is not positive")
            expect(self.tail is None or self.tail > 0, "a tail has no mass or no length")
            total = float(self.mass.sum() + 2 * self._tail[0])
            expect(abs(total - 1) < 1e-3, "the mass of all bins and tails is not one")

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

    @property
    def _tail(self) -> Tensor:
        return self.bounds.new_tensor([0.0, 1.0]) if self.tail is None else self.tail

    def _log_prob(self, y: Tensor) -> Tensor:
        low, high = self.bounds.to(torch.promote_types(y.dtype, self.bounds.dtype))
        bins = len(self.mass)
        place = _locate(y, self.bounds, bins)
        density = self.mass.to(place.dtype) * bins / (high - low)
        inside = density.log()[place.clamp(0, bins - 1).long()]
        mass, length = self._tail.to(place.dtype)
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
        below = torch.cat([self.mass.new_zeros(1, dtype=torch.float64), self.mass.double().cumsum(0)])
        tail = self._tail[0].double()
        below = tail + below / below[-1] * (1 - 2 * tail)  # each edge: exactly one at the last if there are no tails
        cdf = below[whole] + (place - whole) * below.diff()[whole]
        mass, length = self._tail.to(cdf.dtype)
        faded = mass * (-torch.maximum(low - y, y - high).clamp(min=0) / length).exp()
        return torch.where(y < low, faded, torch.where(y > high, 1 - faded, cdf))


NAMES: dict[str, type[Continuous]] = {kind.name: kind for kind in (Uniform, Gaussian, BetaPrime, Histogram)}


def by_name(name: str) -> Continuous:
    """The marginal of that name, not fitted yet: `"uniform"`, `"gaussian"`, `"beta-prime"` or `"histogram"`.

    Example:
        >>> by_name("uniform")
        Uniform()
    """
    if name == "auto":
        raise ValueError("marginal='auto' depends on the predictions: use choose(y).")
    if name not in NAMES:
        known = ", ".join(repr(known) for known in NAMES)
        raise ValueError(f"marginal must be one of {known} or 'auto', not {name!r}.")
    return NAMES[name]()


def choose(y: Tensor, *, seed: int = 0) -> Continuous:
    """Fit the distribution under which a holdout of a fifth of the values is likeliest.

    Only distributions with tails come into question, because inputs that nothing was fitted to have predictions beyond
    all values. Each that can hold y is fitted to four fifths of it, and the best is fitted again to all. The mean
    log-likelihoods of the holdout stay in `compared`. The order of the values changes nothing. Vectors have one such
    distribution, the Gaussian.

    Args:
        y: values, (n,) numbers or (n, q) vectors.
        seed: decides the split.

    Example:
        >>> marginal = choose(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
        >>> marginal
        Gaussian()
        >>> sorted(marginal.compared)
        ['gaussian', 'histogram']
    """
    check_values(y)
    needed = SPLIT * y[0].numel()
    if len(y) < needed:
        raise ValueError(f"choosing needs at least {needed} predictions, not {len(y)}: name a distribution instead.")
    candidates = [Gaussian(), BetaPrime(None), Histogram()]
    values = y.detach().to("cpu", torch.promote_types(y.dtype, torch.float32))
    possible = [candidate for candidate in candidates if candidate._refuses(values) is None]  # Gaussian() always
    if y.dim() == 2:
        return possible[0].fit(y)
    ordered = values.double().sort().values
    drawn = torch.randperm(len(y) - 2, generator=torch.Generator().manual_seed(seed), device="cpu")
    holdout, fitted = ordered[1:-1][drawn].tensor_split([-(-len(drawn) // 5)])
    fitted = torch.cat([ordered[:1], fitted, ordered[-1:]])  # of which not all are the same
    compared = {}
    for candidate in possible:
        candidate._estimate(fitted)
        compared[candidate.name] = float(candidate._log_prob(holdout).mean())
    best = max(possible, key=lambda candidate: compared[candidate.name])
    best.fit(y)
    best.compared = compared
    return best


def _by_moments(y: np.ndarray) -> np.ndarray:
    """α and β by the method of moments: with the variance of x = y / (1 + y), or of 1 - x where that is smaller."""
    x, rest = y / (1 + y), 1 / (1 + y)
    means, variance = np.array([x.mean(), rest.mean()]), min(x, rest, key=np.mean).var()
    return means * (means.prod() / variance - 1 if variance > 0 else math.inf)


def _fit(y: np.ndarray) -> np.ndarray:
    """α and β that make y likeliest, by Fisher scoring of their logarithms θ within regions of trust.

    x = y / (1 + y) has a beta distribution, whose likelihood depends only on the means of log x and log(1 - x).
    """
    from scipy import optimize, special

    means = np.array([-np.logaddexp(0, -np.log(y)).mean(), -np.log1p(y).mean()])

    def loss(theta: np.ndarray) -> float:
        shape = np.exp(theta)
        return special.betaln(*shape) - shape @ means

    def slope(theta: np.ndarray) -> np.ndarray:
        shape = np.exp(theta)
        return shape * (special.digamma(shape) - special.digamma(shape.sum()) - means)

    def information(theta: np.ndarray) -> np.ndarray:
        shape = np.exp(theta)
        trigamma = np.diag(special.polygamma(1, shape)) - special.polygamma(1, shape.sum())
        return shape * trigamma * shape[:, None]

    options = {"gtol": 1e-12, "max_trust_radius": 2.0}
    theta = np.log(_by_moments(y).clip(min=1e-3))
    return np.exp(optimize.minimize(loss, theta, method="trust-exact", jac=slope, hess=information, options=options).x)


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
