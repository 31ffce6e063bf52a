"""What all marginals p(y) of numbers share: checks, and the support that integrals over y are summed at."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from inspect import signature
from itertools import accumulate
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..io import expect, plain
from ..notes import note, warn
from ._importance import MIN_DRAWS, Draws, Frame, Place, around, chosen, draw, locate, spread, wider
from .base import LogProb, Marginal, Support, check_values

POINTS, DRAWS = 257, 1024  # of one number and of vectors, by default
LOOK, ZOOMS = 33, 5  # points of one number, to see more closely where p(y|z) lies, and how often at most
DRAWS_TO_LOOK, DRAWS_TO_SEARCH, LOOKS = 128, 512, 15  # of vectors, at first and for those that are not found then
# The first points of one number: in equal steps where p(y) lies, from -1 to 1, and in growing ones beyond.
CORE, BEYOND, GROWTH = 96, 45, 1.2
_BEYOND = [1 + 2 / CORE * step for step in accumulate(GROWTH**power for power in range(1, BEYOND + 1))]
STEPS = [*(-step for step in reversed(_BEYOND)), *(2 * step / CORE - 1 for step in range(CORE + 1)), *_BEYOND]
REACH = 20.0  # nats below its peak down to which p(y|z) is summed
LOST = 1e-3  # share of p(y) that a support may leave out without a warning
END = (3 / 8, 7 / 6, 23 / 24)  # Gregory's weights: as exact where the integrand ends abruptly as where it fades
STORED = ("shared", "offset")


class _Look(NamedTuple):
    """Ascending coordinates of one number, (m,) for all inputs or (n, m), to see where p(y|z) lies."""

    x: Tensor
    points: Tensor  # their numbers y, (..., 1)
    log_density: Tensor  # log p(y) |dy/dx|


class Continuous(Marginal):
    r"""A density p(y) of numbers (n,), or of vectors (n, q), with the support that integrals over it are summed at.

    Every input has a support of its own, which lies where its p(y|z) does. For numbers the first points are the same
    for all and reach thousands of deviations past the values fitted; `_zoom` then takes equal steps between the ends of
    what is left of p(y|z). For vectors the points are importance samples, around the prediction first and then around
    p(y|z): see `spread` in `_importance`.

    .. math:: \int f(y)\, p(y)\, dy \approx \sum_j f(y_j)\, p(y_j)\, v_j

    Everything is fitted in float64; buffers are float64 if the values are, float32 otherwise.

    Args:
        points: how many; None takes 257 for numbers and 1024 for vectors.
        low: where integrals over one number begin; None takes in all of p(y).
        high: where they end.
    """

    name: ClassVar[str]
    vectors: ClassVar[bool] = False  # whether it can be fitted to vectors
    box: ClassVar[bool] = False  # whether the distribution of vectors is uniform instead of normal
    fitted: ClassVar[tuple[str, ...]]  # names of what `_estimate` sets

    shared: Tensor  # vectors: draws that all inputs share, in standard coordinates (g, q)
    offset: Tensor  # vectors: draws around each prediction, in standard coordinates (l, q)

    # What `_prepare` makes of the buffers.
    _look: _Look  # numbers: the first points, the same for all inputs; beyond where p(y) lies, their steps grow
    _share: Tensor  # numbers: of the way from the first to the last point of an input, (m,)
    _log_step: Tensor  # numbers: the share of that way that each stands for, (m,)
    _wide_frame: Frame  # vectors
    _draws: dict[int, Draws]  # vectors: by how many

    def __init__(self, *, points: int | None = None, low: float | None = None, high: float | None = None) -> None:
        super().__init__()
        self.points = points = plain(points)
        if points is not None and (type(points) is not int or not 3 <= points <= 10**6):  # a file may say any number
            raise ValueError(f"points must be a whole number from 3 to 1,000,000, or None, not {points!r}.")
        for name, value in (("low", low), ("high", high)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number or None, not {value}.")
        if low is not None and high is not None and low >= high:
            raise ValueError(f"low must be below high, but low={low} and high={high}.")
        self.low = None if low is None else float(low)
        self.high = None if high is None else float(high)
        self._range = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
        self.compared: dict[str, float] = {}  # likelihoods of the holdout, where `choose` chose this one
        for name in (*self.fitted, *STORED):
            self.register_buffer(name, None)

    @property
    def size(self) -> int:
        """How many points there are per input."""
        return self.points or (POINTS if self.shared is None else len(self.shared) + len(self.offset))

    @property
    def tails(self) -> bool:
        """Whether p(y) is above zero however far y is."""
        return True

    def fit(self, y: Tensor) -> Self:
        """Fit to values y, (n,) numbers or (n, q) vectors."""
        check_values(y)
        dtype = torch.promote_types(y.dtype, torch.float32)
        values = y.detach().to("cpu", dtype)
        reason = self._refuses(values)
        if reason is not None:
            raise ValueError(reason)
        for name in STORED:
            setattr(self, name, None)
        self._estimate(values.double())
        for name in self.fitted:  # laid out as what is loaded, so that products of both have the same bits
            setattr(self, name, getattr(self, name).to("cpu", dtype).contiguous())
        if values.dim() == 2:
            draws = draw(self.points or DRAWS, values.shape[1], box=self.box)
            self.shared, self.offset = (part.to(dtype) for part in draws)
        else:
            self._warn(values)
        if not self.tails:
            note(
                f"{type(self).__name__} gives predictions beyond those fitted no probability: unfamiliar inputs whose "
                "predictions lie there are scored by the nearest that has some. Gaussian and Histogram have tails."
            )
        return self.to(y.device)

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
        self._check_fitted()
        if self.shared is not None:
            raise RuntimeError(f"this {type(self).__name__} was fitted to vectors, which have no order: use log_prob.")
        return self._evaluate(self._cdf, y)

    def at(self, prediction: Tensor, log_prob: LogProb | None = None) -> Support:
        """The support for these predictions, where the inputs' own p(y|z) lie if log p(z|y) is given.

        Points of numbers are (m, 1) at first, the same for all, then (n, m, 1); those of vectors are (n, m, q).
        """
        self._check_fitted()
        if self.shared is None:
            return self._lay_out(self._look.x if log_prob is None else self._zoom(log_prob))
        numbers = self.shared.shape[1]
        if prediction.dim() != 2 or prediction.shape[1] != numbers:
            raise ValueError(f"expected predictions (n, {numbers}), as fitted, not {tuple(prediction.shape)}.")
        frame = self._wide_frame
        place = around(frame.standard(prediction.detach()))
        if log_prob is not None:
            place = self._search(place, log_prob)
        x, log_volume = spread(place, self._draws[self.size])
        points, log_unit = frame.vectors(x)
        log_volume = log_volume + log_unit
        return Support(points, self._log_prob(points) + log_volume, log_volume)

    def _search(self, place: Place, log_prob: LogProb) -> Place:
        """Where the p(y|z) of vectors lie, beginning at a place. No input depends on others in its batch."""
        frame, some, best = self._wide_frame, place, place.center
        rows = torch.arange(len(best), device=best.device)
        highest, before = best.new_full((len(best), 1), -math.inf), torch.zeros_like(rows, dtype=torch.bool)
        for look in range(LOOKS):
            x, log_volume = spread(some, self._draws[DRAWS_TO_SEARCH if look else DRAWS_TO_LOOK])
            points, log_unit = frame.vectors(x)
            given = log_prob(points, rows) if look else log_prob(points)
            density = given + self._log_prob(points) + log_unit  # of x
            some, sure = locate(x, density, log_volume)
            if look == 0 and not torch.compiler.is_compiling() and bool(sure.all()):
                return some
            top, index = density.max(1, keepdim=True)
            here = x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))[:, 0]
            best, highest = torch.where(top > highest, here, best), torch.maximum(highest, top)
            # What is no Gaussian may lead astray: the search goes on from the best point.
            some = some.where(sure, around(best) if look % 2 else wider(some, best))
            place = Place(*(all_.index_put((rows,), part) for all_, part in zip(place, some, strict=True)))
            if not torch.compiler.is_compiling():
                left = ~sure if look == 0 else ~(sure & before)  # what was searched for is looked at once more
                if not bool(left.any()):
                    break
                rows, best, highest, before = rows[left], best[left], highest[left], sure[left]
                some = Place(*(part[left] for part in some))
        return place

    def _zoom(self, log_prob: LogProb) -> Tensor:
        """Coordinates in equal steps over what is left of each p(y|z), (n, m)."""
        look = self._look
        found: Tensor | None = None
        for _ in range(ZOOMS):
            given = log_prob(look.points)
            density = given + look.log_density
            top = density.amax(1, keepdim=True)
            # What rounding tells apart is not apart.
            least = torch.sub(top - REACH, top.abs(), alpha=8 * torch.finfo(given.dtype).eps)
            gone = density < least  # nothing, where it is not a number
            beside = torch.cat([look.x[..., :1], look.x, look.x[..., -1:]], dim=-1)
            first = beside[..., :-2].masked_fill(gone, math.inf).amin(1, keepdim=True)
            last = beside[..., 2:].masked_fill(gone, -math.inf).amax(1, keepdim=True)
            sure = gone.sum(1, keepdim=True) < gone.shape[1] - 2  # its peak lies between points, not beside one
            if found is None:
                low, high, found = first, last, sure
            else:  # what is found stays, so that no input depends on others in its batch
                low, high, found = torch.where(found, low, first), torch.where(found, high, last), found | sure
            if not torch.compiler.is_compiling() and bool(found.all()):
                break
            look = self._look_at(_between(low, high, LOOK))
        return low + (high - low) * self._share

    def _look_at(self, x: Tensor) -> _Look:
        y = self._value(x)
        return _Look(x, y[..., None], self._mean_log_prob(y) + self._log_slope(x))

    def _prepare(self) -> None:
        if self._first is None or self._first.is_meta:
            return
        if self.shared is not None:
            self._wide_frame = self._frame()
            counts = (DRAWS_TO_LOOK, DRAWS_TO_SEARCH, self.size)
            self._draws = {count: chosen(self.shared, self.offset, count, box=self.box) for count in counts}
            return
        low, high = self._core()
        steps = torch.tensor(STEPS if self.tails else STEPS[BEYOND:-BEYOND], dtype=low.dtype, device=low.device)
        x = (low + high) / 2 + (high - low) / 2 * steps
        self._look = self._look_at(x.clamp(*self._coordinate(self._ends())))
        points = self.size
        ends = END if points > 2 * len(END) else (1 / 2,)
        weights = x.new_tensor([*ends, *[1.0] * (points - 2 * len(ends)), *reversed(ends)])
        self._share = _between(x.new_zeros(1), x.new_ones(1), points)
        self._log_step = (weights / (points - 1)).log()

    def check(self) -> None:
        """Raise a ValueError where the buffers cannot be those of a fit."""
        same = self.shared is None or self.shared.shape[1] == self.offset.shape[1]
        expect(same, "draws of vectors are of different dimensions")

    def extra_repr(self) -> str:
        """The arguments that were given."""
        given = {name: getattr(self, name) for name in signature(type(self)).parameters}
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
    def _core(self) -> Tensor:
        """Between which coordinates of one number nearly all of p(y) lies, (2,) in float64."""

    def _coordinate(self, y: Tensor) -> Tensor:
        """A coordinate of one number in which p(y) is smooth, and no longer-tailed than an exponential."""
        return y

    def _value(self, x: Tensor) -> Tensor:
        """The number y with the coordinate x."""
        return x

    def _log_slope(self, x: Tensor) -> Tensor | float:
        """log |dy/dx|."""
        return 0.0

    def _mean_log_prob(self, y: Tensor) -> Tensor:
        """log p(y) at ascending points (..., m), or, where p(y) jumps, of its mean half way to the next points."""
        return self._log_prob(y)

    def _refuses(self, y: Tensor) -> str | None:
        """Why this distribution cannot hold y, or None."""
        if y.dim() == 1:
            low, high = self._range
            if not bool((y > low).any()):
                return f"all {len(y)} predictions are at most {float(y.max()):.6g}, and low={low}: lower it."
            if not bool((y < high).any()):
                return f"all {len(y)} predictions are at least {float(y.min()):.6g}, and high={high}: raise it."
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

    def _ends(self) -> Tensor:
        """Between which numbers integrals are taken, (2,) in float64."""
        return self._first.new_tensor(self._range, dtype=torch.float64)

    def _lay_out(self, x: Tensor) -> Support:
        """The support of one number at ascending coordinates (m,), or (n, m) in equal steps."""
        y = self._value(x)
        if x.dim() == 1:
            gap = pad(x.diff() / 2, (1, 1))
            log_volume = (gap[1:] + gap[:-1]).clamp(min=torch.finfo(x.dtype).tiny).log()
        else:
            log_volume = (x[:, -1:] - x[:, :1]).log() + self._log_step
        log_volume = log_volume + self._log_slope(x)
        return Support(y[..., None], self._mean_log_prob(y) + log_volume, log_volume)

    def _warn(self, y: Tensor) -> None:
        if self.low is None and self.high is None:
            return
        low, high = self._ends().tolist()
        outside = int(((y < low) | (y > high)).sum())
        below, up_to = self._cdf(self._ends()).tolist()
        lost = below + 1 - up_to
        if lost > LOST or outside:
            values = f" and {outside} of {len(y)} predictions" if outside else ""
            warn(
                f"the support from {low:.4g} to {high:.4g} leaves out {100 * lost:.1f} % of p(ŷ){values}: give a wider "
                "low and high, or neither."
            )

    def _evaluate(self, function: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """A function of y in float64, NaN where y is NaN."""
        missing = y.isnan() if self.shared is None else y.isnan().any(1)
        values = function(y.double().nan_to_num(nan=0.0))
        return values.masked_fill(missing, torch.nan).to(self._first.dtype)

    def _check_fitted(self) -> None:
        if self._first is None:
            raise RuntimeError(f"this {type(self).__name__} is not fitted: call fit(y) first.")


def _between(low: Tensor, high: Tensor, points: int) -> Tensor:
    """Numbers in equal steps between ends (n, 1): (n, m)."""
    share = torch.arange(points, dtype=low.dtype, device=low.device) / (points - 1)
    return low + (high - low) * share
