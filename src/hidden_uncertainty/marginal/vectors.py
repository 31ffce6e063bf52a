"""The marginals that vectors can have too: uniform between bounds or in a box, and Gaussian."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..io import expect
from ..precision import precise
from ._importance import EDGE, HALF_LOG_TAU, Frame
from .continuous import Continuous

RIDGE = 1e-6


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
        low, high = self._range
        outside = int(((y < low) | (y > high)).reshape(len(y), -1).any(1).sum())
        if outside:
            return (
                f"{outside} of {len(y)} predictions lie outside Uniform({self.extra_repr()}); they reach from "
                f"{float(y.min()):.6g} to {float(y.max()):.6g}. Give wider bounds, or leave them out to fit them."
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


class Gaussian(Continuous):
    r"""One Gaussian with the mean and covariance of the values.

    .. math:: p(y) = \mathcal N(y \mid \mu, \Sigma)

    The variances of vectors are raised by a millionth of themselves, so that outputs that always move together have
    a density too.

    Args:
        points, low, high: as for `Continuous`.

    Example:
        >>> marginal = Gaussian().fit(torch.tensor([-1.0, 1.0, 3.0, 5.0]))
        >>> marginal.cdf(torch.tensor([2.0]))
        tensor([0.5000])
        >>> points, log_weight, log_volume = marginal.at(torch.zeros(1))
        >>> log_weight.exp().sum(), (log_weight.exp() * points[:, 0]).sum()
        (tensor(1.0000, dtype=torch.float64), tensor(2.0000, dtype=torch.float64))
    """

    name = "gaussian"
    vectors = True
    fitted: ClassVar[tuple[str, ...]] = ("mean", "factor", "inverse")

    mean: Tensor  # (q,), one number too
    factor: Tensor  # the covariance's Cholesky factor (q, q)
    inverse: Tensor  # of the factor (q, q)

    def check(self) -> None:
        """Raise a ValueError where the buffers cannot be those of a fit."""
        super().check()
        if self.mean is not None:
            expect(self.factor.diagonal() > 0, "a deviation is not positive")
            away = self.inverse.double() @ self.factor.double() - torch.eye(len(self.mean), device=self.mean.device)
            expect(away.abs() < 1e-2, "inverse is not that of its factor")

    def _refuses(self, y: Tensor) -> str | None:
        if y.dim() == 2 and (self.low is not None or self.high is not None):
            return f"low and high bound the support of one number, not of vectors of {y.shape[1]}: leave them out."
        return super()._refuses(y)

    def _estimate(self, y: Tensor) -> None:
        rows = y.reshape(len(y), -1)
        self.mean = rows.mean(0)
        deviation = rows.std(0, correction=0)
        scaled = (rows - self.mean) / deviation
        correlation = scaled.mT @ scaled / len(y)
        if y.dim() == 2:
            correlation.diagonal().add_(RIDGE)
        factor = torch.linalg.cholesky(correlation)
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        self.factor = deviation[:, None] * factor
        self.inverse = torch.linalg.solve_triangular(factor, identity, upper=False) / deviation

    @precise
    def _log_prob(self, y: Tensor) -> Tensor:
        dtype = torch.promote_types(y.dtype, self.mean.dtype)
        largest = torch.finfo(self.mean.dtype).max  # float64 adds digits only: results must fit the buffers' type
        away = y.to(dtype).clamp(-(largest**0.45), largest**0.45) - self.mean
        if len(self.mean) == 1:
            square = (away * self.inverse[0]).square()
        else:
            square = (away @ self.inverse.to(dtype).mT).square().sum(-1)
        square = square.clamp(max=largest / 8)
        return -0.5 * square - self.factor.to(dtype).diagonal().log().sum() - len(self.mean) * HALF_LOG_TAU

    def _cdf(self, y: Tensor) -> Tensor:
        return torch.special.ndtr((y - self.mean[0]) / self.factor[0, 0])

    def _core(self) -> Tensor:
        reach = self.mean.new_tensor([-4.5, 4.5], dtype=torch.float64)
        return self.mean.double() + self.factor[0, 0] * reach

    def _frame(self) -> Frame:
        return Frame(self.mean.double(), self.factor.double(), self.inverse.double())
