"""The beta prime marginal: positive numbers with a long tail, as the paper uses it for depths."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..io import expect
from .continuous import Continuous

FARTHEST = 500.0  # logarithm of a number that is still one
NARROWEST = 1e10  # α + β; beyond, the logarithms of gamma functions have no digits left for p(y)


class BetaPrime(Continuous):
    r"""The distribution of x / (1 - x) where x has a beta distribution, fitted by maximum likelihood.

    .. math:: p(y) = \frac{y^{\alpha - 1} (1 + y)^{-\alpha - \beta}}{B(\alpha, \beta)}, \quad y > 0

    with y in units of `scale`. Its location is zero, and its tail falls as y to the power of -1 - β.

    Args:
        scale: the unit of y, one as in the paper; None takes the geometric mean of the values.
        points: how many points integrals are summed at; see `Continuous`.
        low: where integrals begin.
        high: where they end.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).beta(31.76, 3.07, 2000)
        >>> marginal = BetaPrime().fit(torch.as_tensor(x / (1 - x)))
        >>> marginal.shape
        tensor([30..., 3.0...], dtype=torch.float64)
    """

    name = "beta-prime"
    options: ClassVar[tuple[str, ...]] = ("scale", *Continuous.options)
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
        if y.dim() == 1 and _concentration((y.double() / self._unit_of(y.double())).numpy()) > NARROWEST:
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

    def _in_units(self, y: Tensor) -> Tensor:
        return y if self.unit is None else y / self.unit

    def _log_prob(self, y: Tensor) -> Tensor:
        alpha, beta = self.shape.to(torch.promote_types(y.dtype, self.shape.dtype))
        log_unit = 0.0 if self.unit is None else self.unit.to(alpha.dtype).log()
        y = self._in_units(y)
        log_beta = alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()
        at = y.clamp(min=0)
        # xlogy is zero at α = 1 and y = 0, where (α - 1) log y is not a number.
        log_prob = torch.xlogy(alpha - 1, at) - (alpha + beta) * at.log1p() - log_beta - log_unit
        return log_prob.masked_fill(y < 0, -math.inf)

    @property
    def _ended(self) -> bool:
        return True  # at zero

    def _core(self) -> Tensor:
        shape = self.shape.double()
        mean = shape.digamma() @ shape.new_tensor([1.0, -1.0])
        return mean + torch.polygamma(1, shape).sum().sqrt() * shape.new_tensor([-5.0, 5.0])

    def _coordinate(self, y: Tensor) -> Tensor:
        return self._in_units(y.double()).log().nan_to_num(nan=-FARTHEST).clamp(-FARTHEST, FARTHEST)

    def _value(self, x: Tensor) -> Tensor:
        return x.exp() if self.unit is None else x.exp() * self.unit

    def _log_slope(self, x: Tensor) -> Tensor:
        return x if self.unit is None else x + self.unit.log()

    def _cdf(self, y: Tensor) -> Tensor:
        from scipy import special  # here and below, so that `import hidden_uncertainty` does not load it

        alpha, beta = self.shape.tolist()
        at = self._in_units(y).cpu().clamp(min=0).numpy()
        # Above one the complement keeps the digits.
        cdf = np.where(at < 1, special.betainc(alpha, beta, at / (1 + at)), special.betaincc(beta, alpha, 1 / (1 + at)))
        return torch.as_tensor(cdf, device=y.device)

    def _quantile(self, p: Tensor) -> Tensor:
        from scipy import special

        alpha, beta = self.shape.tolist()
        at = p.cpu().numpy()
        x, rest = special.betaincinv(alpha, beta, at), special.betainccinv(beta, alpha, at)  # rest is 1 - x
        with np.errstate(divide="ignore"):
            found = np.where(x < 0.5, x / (1 - x), (1 - rest) / rest)
        return torch.as_tensor(found, device=p.device) * (1 if self.unit is None else self.unit)


def _concentration(y: np.ndarray) -> float:
    """α + β by the method of moments: that of the variance of x = y / (1 + y), or of 1 - x where that is smaller."""
    x, rest = y / (1 + y), 1 / (1 + y)
    variance = min(x, rest, key=np.mean).var()
    return x.mean() * rest.mean() / variance - 1 if variance > 0 else math.inf


def _fit(y: np.ndarray) -> np.ndarray:
    """α and β that make y likeliest, by Fisher scoring of their logarithms.

    x = y / (1 + y) has a beta distribution, whose likelihood depends only on the means of log x and log(1 - x). Steps
    are halved until the likelihood rises.
    """
    from scipy import special

    log_x, log_rest = -np.logaddexp(0, -np.log(y)).mean(), -np.log1p(y).mean()
    start = _concentration(y) * np.array([(y / (1 + y)).mean(), (1 / (1 + y)).mean()])
    theta = np.log(start.clip(min=1e-3))

    def likelihood(theta: np.ndarray) -> float:
        alpha, beta = np.exp(theta)
        return (alpha - 1) * log_x + (beta + 1) * log_rest - special.betaln(alpha, beta)

    current = likelihood(theta)
    for _ in range(100):
        shape = np.exp(theta)
        slope = shape * (np.array([log_x, log_rest]) - special.digamma(shape) + special.digamma(shape.sum()))
        information = np.diag(special.polygamma(1, shape)) - special.polygamma(1, shape.sum())
        step = np.linalg.solve(shape * information * shape[:, None], slope)
        step *= 2 / max(2, np.abs(step).max())
        while np.abs(step).max() > 1e-10 and likelihood(theta + step) < current:
            step /= 2
        if np.abs(step).max() <= 1e-10:
            break
        theta = theta + step
        current = likelihood(theta)
    return np.exp(theta)
