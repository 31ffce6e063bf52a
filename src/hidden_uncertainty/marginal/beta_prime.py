"""The beta prime marginal: positive numbers with a long tail, as the paper uses it for depths."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .continuous import Continuous

NARROWEST = 1e10  # α + β; beyond, the logarithms of gamma functions have no digits left for p(y)


class BetaPrime(Continuous):
    r"""The distribution of x / (1 - x) where x has a beta distribution, fitted by maximum likelihood.

    .. math:: p(y) = \frac{y^{\alpha - 1} (1 + y)^{-\alpha - \beta}}{B(\alpha, \beta)}, \quad y > 0

    Its location is zero and its scale one, and its tail falls as y to the power of -1 - β.

    Args:
        points: how many points integrals are summed at; see `Continuous`.
        low: where the support begins.
        high: where it ends.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).beta(31.76, 3.07, 2000)
        >>> marginal = BetaPrime().fit(torch.as_tensor(x / (1 - x)))
        >>> marginal.shape
        tensor([30..., 3.0...], dtype=torch.float64)
    """

    name = "beta-prime"
    fitted: ClassVar[tuple[str, ...]] = ("shape",)

    shape: Tensor  # α and β

    def _refuses(self, y: Tensor) -> str | None:
        bad = int((y <= 0).reshape(len(y), -1).any(1).sum())
        if bad:
            return (
                f"{bad} of {len(y)} predictions are not positive, and BetaPrime is for positive numbers: use Gaussian "
                "or Histogram."
            )
        if y.dim() == 1 and _concentration(y.double().numpy()) > NARROWEST:
            return (
                f"predictions around {float(y.median()):.4g} are too far from one, or too close to each other, for "
                "BetaPrime, whose scale is one: rescale them, or use Gaussian or Histogram."
            )
        return super()._refuses(y)

    def _estimate(self, y: Tensor) -> None:
        self.shape = torch.from_numpy(_fit(y.numpy()))

    def _log_prob(self, y: Tensor) -> Tensor:
        alpha, beta = self.shape.to(torch.promote_types(y.dtype, self.shape.dtype))
        log_beta = alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()
        at = y.clamp(min=0)
        # xlogy is zero at α = 1 and y = 0, where (α - 1) log y is not a number.
        log_prob = torch.xlogy(alpha - 1, at) - (alpha + beta) * at.log1p() - log_beta
        return log_prob.masked_fill(y < 0, -math.inf)

    def _cdf(self, y: Tensor) -> Tensor:
        from scipy import special  # here and below, so that `import hidden_uncertainty` does not load it

        alpha, beta = self.shape.tolist()
        at = y.cpu().clamp(min=0).numpy()
        # Above one the complement keeps the digits.
        cdf = np.where(at < 1, special.betainc(alpha, beta, at / (1 + at)), special.betaincc(beta, alpha, 1 / (1 + at)))
        return torch.as_tensor(cdf, device=y.device)

    def _quantile(self, p: Tensor) -> Tensor:
        from scipy import special

        alpha, beta = self.shape.tolist()
        at = p.cpu().numpy()
        x, rest = special.betaincinv(alpha, beta, at), special.betainccinv(beta, alpha, at)  # rest is 1 - x
        with np.errstate(divide="ignore"):
            return torch.as_tensor(np.where(x < 0.5, x / (1 - x), (1 - rest) / rest), device=p.device)


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
