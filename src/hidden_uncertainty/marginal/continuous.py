"""What all marginals p(y) of numbers share: checks, and the support that integrals over y are summed at."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..notes import warn
from ._importance import MIN_DRAWS, Frame, draw, spread
from .base import Marginal, Support, check_options, check_values

POINTS = 512  # of one number, by default
DRAWS = 1024  # of vectors, by default
LOST = 1e-3  # share of p(y) that a support may leave out without a warning
COARSE = 0.25  # share of p(y) that one point may stand for without a warning
SUPPORT = ("support", "log_weight", "log_volume", "shared", "offset")


class Continuous(Marginal):
    r"""A density p(y) of numbers (n,), or of vectors (n, q), with the support that integrals over it are summed at.

    Numbers have one support for all inputs: the trapezoid rule on points in equal steps from `low` to `high`.

    .. math:: \int f(y)\, p(y)\, dy \approx \sum_j f(y_j)\, p(y_j)\, v_j, \qquad v_j = h, \text{ at both ends } h / 2

    Where p changes so much within a step that p(y_j) v_j is not the mass there (a jump, a pole), it is replaced by that
    mass. For vectors the support is importance samples, drawn for every input: see `spread` in `_importance`.

    Everything is fitted in float64; buffers are float64 if the values are, float32 otherwise.

    Args:
        points: how many; None takes 512 for numbers, which `refine` can add to, and 1024 for vectors.
        low: where the support begins; None takes the quantile 1e-4, or the smallest value fitted if that is lower.
        high: where it ends; None takes the quantile 1 - 1e-4, or the largest value fitted.
    """

    name: ClassVar[str]
    vectors: ClassVar[bool] = False  # whether it can be fitted to vectors
    box: ClassVar[bool] = False  # whether the distribution of vectors is uniform instead of normal
    tail: ClassVar[float] = 1e-4  # share of p(y) left out at each end of the support
    options: ClassVar[tuple[str, ...]] = ("points", "low", "high")
    fitted: ClassVar[tuple[str, ...]]  # names of what `_estimate` sets

    support: Tensor  # numbers: (m,)
    log_weight: Tensor  # numbers: (m,)
    log_volume: Tensor  # numbers: (m,)
    shared: Tensor  # vectors: draws that all inputs share, in standard coordinates (g, q)
    offset: Tensor  # vectors: draws around each prediction, in standard coordinates (l, q)

    def __init__(self, *, points: int | None = None, low: float | None = None, high: float | None = None) -> None:
        super().__init__()
        check_options(points, low, high)
        self.points = points
        self.low = None if low is None else float(low)
        self.high = None if high is None else float(high)
        self.compared: dict[str, float] = {}  # likelihoods of the holdout, where `choose` chose this one
        for name in (*self.fitted, *SUPPORT):
            self.register_buffer(name, None)

    @property
    def fixed(self) -> bool:
        """Whether the points stay as they are: they were asked for, or are draws of vectors."""
        return self.points is not None or self.shared is not None

    def fit(self, y: Tensor) -> Self:
        """Fit to values y, (n,) numbers or (n, q) vectors, and lay out the support."""
        check_values(y)
        dtype = torch.promote_types(y.dtype, torch.float32)
        values = y.detach().to("cpu", dtype)
        reason = self._refuses(values)
        if reason is not None:
            raise ValueError(reason)
        for name in SUPPORT:
            setattr(self, name, None)
        self._estimate(values.double())
        self.to("cpu", dtype)
        if values.dim() == 1:
            self._lay_out(*self._range(values), self.points or POINTS)
        else:
            draws = draw(self.points or DRAWS, values.shape[1], box=self.box)
            self.shared, self.offset = (part.to(dtype) for part in draws)
        self.to(y.device)
        if values.dim() == 1:
            self._warn(values)
        return self

    def log_prob(self, y: Tensor) -> Tensor:
        """log p(y) in nats for y (n,) or (n, q): (n,)."""
        self._check_fitted()
        numbers = None if self.shared is None else self.shared.shape[1]
        if y.dim() != (1 if numbers is None else 2) or (numbers is not None and y.shape[1] != numbers):
            expected = "(n,)" if numbers is None else f"(n, {numbers})"
            raise ValueError(f"expected y of shape {expected}, as fitted, not {tuple(y.shape)}.")
        return self._evaluate(self._log_prob, y)

    def cdf(self, y: Tensor) -> Tensor:
        """The mass below each y, for numbers."""
        self._check_fitted(numbers=True)
        return self._evaluate(self._cdf, y)

    def quantile(self, p: Tensor) -> Tensor:
        """The y that has the mass p below it, for numbers."""
        self._check_fitted(numbers=True)
        if not bool(((p >= 0) & (p <= 1)).all()):
            raise ValueError(f"p must lie between 0 and 1, but reaches from {float(p.min())} to {float(p.max())}.")
        return self._quantile(p.double()).to(self._first.dtype)

    def at(self, prediction: Tensor) -> Support:
        """The support for these predictions: points (m,) for numbers, the same for all; (n, m, q) for vectors."""
        self._check_fitted()
        if self.shared is None:
            return Support(self.support, self.log_weight, self.log_volume)
        numbers = self.shared.shape[1]
        if prediction.dim() != 2 or prediction.shape[1] != numbers:
            raise ValueError(f"expected predictions (n, {numbers}), as fitted, not {tuple(prediction.shape)}.")
        points, log_volume = spread(prediction.detach(), self._frame(), self.shared, self.offset, box=self.box)
        log_prob = self._log_prob(points.flatten(0, 1)).view(log_volume.shape)
        return Support(points, log_prob + log_volume, log_volume)

    def refine(self) -> None:
        """Halve the steps: m points become 2m - 1, the old ones among them."""
        self._check_fitted()
        if self.fixed:
            why = "these are draws of vectors" if self.points is None else f"points={self.points} was asked for"
            raise RuntimeError(f"{why}, so the points stay as they are: fit again with more points.")
        self._lay_out(float(self.support[0]), float(self.support[-1]), 2 * len(self.support) - 1)

    def config(self) -> dict[str, Any]:
        """The arguments, and the shapes of what was fitted."""
        fitted = None
        if self._first is not None:
            shapes = {name: list(buffer.shape) for name, buffer in self.named_buffers()}
            fitted = {"dtype": str(self._first.dtype).removeprefix("torch."), "shapes": shapes}
        return {**{name: getattr(self, name) for name in self.options}, "fitted": fitted}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The marginal that `config` describes, with zeros where the fitted tensors go."""
        marginal = cls(**{name: config[name] for name in cls.options})
        if config["fitted"] is not None:
            shapes, dtype = config["fitted"]["shapes"], getattr(torch, config["fitted"]["dtype"])
            for name in (*cls.fitted, *SUPPORT):
                if name in shapes:
                    setattr(marginal, name, torch.zeros(shapes[name], dtype=dtype, device="cpu"))
        return marginal

    def extra_repr(self) -> str:
        """The arguments that were given."""
        given = {name: getattr(self, name) for name in self.options}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)

    @abstractmethod
    def _estimate(self, y: Tensor) -> None:
        """Set what `fitted` names from values in float64."""

    @abstractmethod
    def _log_prob(self, y: Tensor) -> Tensor:
        """log p(y), in the precision of y where that is higher."""

    @abstractmethod
    def _cdf(self, y: Tensor) -> Tensor: ...

    @abstractmethod
    def _quantile(self, p: Tensor) -> Tensor: ...

    def _refuses(self, y: Tensor) -> str | None:
        """Why this distribution cannot hold y, or None."""
        if y.dim() == 1:
            if self.low is not None and not bool((y > self.low).any()):
                return f"all {len(y)} predictions are at most {float(y.max()):.6g}, and low={self.low}: lower it."
            if self.high is not None and not bool((y < self.high).any()):
                return f"all {len(y)} predictions are at least {float(y.min()):.6g}, and high={self.high}: raise it."
            return None
        if not self.vectors:
            return f"{type(self).__name__} is for one number, not for vectors of {y.shape[1]}: use Gaussian or Uniform."
        if self.points is not None and self.points < MIN_DRAWS:
            return f"vectors need points of at least {MIN_DRAWS}, not {self.points}."
        return None

    def _frame(self) -> Frame:
        raise NotImplementedError  # only where `vectors`

    @property
    def _first(self) -> Tensor:
        return getattr(self, self.fitted[0])

    def _range(self, y: Tensor) -> tuple[float, float]:
        tails = torch.tensor([self.tail, 1 - self.tail], dtype=torch.float64, device="cpu")
        ends = self._quantile(tails).to(y.dtype).nan_to_num()
        low = min(float(y.min()), float(ends[0])) if self.low is None else self.low
        high = max(float(y.max()), float(ends[1])) if self.high is None else self.high
        low, high = torch.tensor([low, high], dtype=y.dtype, device="cpu").tolist()
        return low, high

    def _lay_out(self, low: float, high: float, points: int) -> None:
        device, dtype = self._first.device, self._first.dtype
        support = torch.linspace(low, high, points, dtype=torch.float64, device=device)
        volume = torch.full_like(support, (high - low) / (points - 1))
        volume[[0, -1]] /= 2
        edges = torch.cat([support[:1], (support[1:] + support[:-1]) / 2, support[-1:]])
        mass = self._cdf(edges).diff()
        weight = self._log_prob(support).exp() * volume
        # Differences of a cdf near one have an absolute error: masses below 1e-9 are taken from the density.
        unlike = (weight - mass).abs() > 0.02 * mass + 1e-9
        self.support, self.log_volume = support.to(dtype), volume.log().to(dtype)
        self.log_weight = torch.where(unlike, mass.log(), self._log_prob(support) + volume.log()).to(dtype)

    def _warn(self, y: Tensor) -> None:
        low, high = float(self.support[0]), float(self.support[-1])
        inside = float(self._cdf(self.support[[0, -1]].double()).diff())
        outside = int(((y < low) | (y > high)).sum())
        if 1 - inside > LOST or outside:
            values = f" and {outside} of {len(y)} predictions" if outside else ""
            warn(
                f"the support from {low:.4g} to {high:.4g} leaves out {100 * (1 - inside):.1f} % of p(ŷ){values}: "
                "give a wider low and high, or neither."
            )
        largest = float(self.log_weight.max().exp())
        if self.points is None and largest > COARSE:
            warn(
                f"one of {len(self.support)} points in equal steps from {low:.4g} to {high:.4g} stands for "
                f"{100 * largest:.0f} % of p(ŷ): give low and high around the predictions that matter, or let the "
                "network predict their logarithm."
            )

    def _evaluate(self, function: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """A function of y in float64, NaN where y is NaN."""
        missing = y.isnan() if self.shared is None else y.isnan().any(1)
        values = function(y.double().nan_to_num(nan=0.0))
        return values.masked_fill(missing, torch.nan).to(self._first.dtype)

    def _check_fitted(self, *, numbers: bool = False) -> None:
        if self._first is None:
            raise RuntimeError(f"this {type(self).__name__} is not fitted: call fit(y) first.")
        if numbers and self.shared is not None:
            raise RuntimeError(f"this {type(self).__name__} was fitted to vectors, which have no order: use log_prob.")
