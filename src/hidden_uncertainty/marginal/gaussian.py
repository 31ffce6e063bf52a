"""The Gaussian marginal: of one number, or of vectors with a full covariance."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..io import expect
from ..precision import precise
from ._importance import HALF_LOG_TAU, Frame
from .continuous import Continuous

RIDGE = 1e-6


class Gaussian(Continuous):
    r"""One Gaussian with the mean and covariance of the values.

    .. math:: p(y) = \mathcal N(y \mid \mu, \Sigma)

    The variances of vectors are raised by a millionth of themselves, so that outputs that always move together have
    a density too.

    Args:
        points: how many points integrals are summed at; see `Continuous`.
        low: where integrals over one number begin.
        high: where they end.

    Example:
        >>> marginal = Gaussian().fit(torch.tensor([-1.0, 1.0, 3.0, 5.0]))
        >>> marginal.quantile(torch.tensor([0.5]))
        tensor([2.])
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

    def _quantile(self, p: Tensor) -> Tensor:
        return self.mean[0] + self.factor[0, 0] * torch.special.ndtri(p)

    def _core(self) -> Tensor:
        reach = self.mean.new_tensor([-4.5, 4.5], dtype=torch.float64)
        return self.mean.double() + self.factor[0, 0] * reach

    def _frame(self) -> Frame:
        return Frame(self.mean, self.factor, self.inverse)
