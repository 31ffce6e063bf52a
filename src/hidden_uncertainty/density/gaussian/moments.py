"""What one Gaussian per class is fitted from: sums over rows, which can be added, saved and sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from ...io import expect
from ..linalg import ROWS, Shrinkage, gram, own_order, shrink

TINY = torch.finfo(torch.float64).tiny
Sums = Literal["each", "pooled"]  # a scatter of each class, or one of all classes about their means


@dataclass(frozen=True, eq=False)
class Central:
    """Moments about the means of C classes."""

    count: Tensor  # (C,)
    mean: Tensor  # (C, d)
    scatter: Tensor  # (C, d, d), or (1, d, d) of all classes
    fourth: Tensor | None  # Σ ‖x - μ‖⁴, (C,)

    def __getitem__(self, which: Tensor) -> Central:
        scatter = self.scatter[which] if len(self.scatter) == len(self.count) else self.scatter
        fourth = None if self.fourth is None else self.fourth[which]
        return Central(self.count[which], self.mean[which], scatter, fourth)

    @property
    def middle(self) -> Tensor:
        """The mean of all rows, (d,)."""
        return (self.count[:, None] * self.mean).sum(0) / self.count.sum().clamp(min=1)

    def variance(self) -> float:
        """The mean variance within classes; where their rows repeat, of all; where all rows do, their mean square."""
        within, across, square, rounding = self._spread()
        return next((found for found in (within, across) if found > rounding), square or 1.0)

    def reach(self) -> float:
        """How far from zero rows lie, at least: the largest root of a mean square."""
        variance = self.scatter.sum(0).diagonal() / self.count.sum().clamp(min=1)
        return float(torch.hypot(self.mean.abs().amax(0), variance.clamp(min=0).sqrt()).max())

    def constant(self) -> bool:
        """Whether all rows are the same."""
        _, across, _, rounding = self._spread()
        return across <= rounding

    def _spread(self) -> tuple[float, float, float, float]:
        """The variance within classes, that of all rows, their mean square, and what rounding makes of a constant."""
        numbers, middle = float(self.count.sum()) * self.mean.shape[1] or 1.0, self.middle
        within = float(self.scatter.diagonal(dim1=-2, dim2=-1).sum()) / numbers
        across = within + float((self.count[:, None] * (self.mean - middle).square()).sum()) / numbers
        square = across + float(middle.square().mean())
        return within, across, square, (32 * torch.finfo(torch.float64).eps) ** 2 * square

    def covariance(self, shrinkage: Shrinkage | None) -> Tensor:
        """The covariance within all classes, (d, d), shrunk."""
        count = self.count.sum()
        found = (self.scatter.sum(0) / count)[None, None]
        if shrinkage is None:
            return found[0, 0]
        if shrinkage == "ledoit-wolf" and self.fourth is None:
            raise ValueError(
                "Ledoit-Wolf's shrinkage of one covariance for all classes cannot be found from sums over parts of the "
                "data: use shrinkage='oas', or fit to all rows at once."
            )
        fourth = count if self.fourth is None else self.fourth.sum()
        return shrink(found, count.view(1, 1), fourth.view(1, 1), shrinkage)[0][0, 0]


@dataclass(eq=False)
class Moments:
    r"""Count, sum and scatter of the rows of each class, in float64; of rows x, nothing else is kept.

    Sums are taken about a shift of each class, which lies among its rows, so that no digits are lost where means are
    large. Moments of other rows are added exactly, whatever their shifts: with :math:`\Delta` between two shifts,

    .. math:: \sum (x - \Delta)(x - \Delta)^\top = \sum x x^\top - s \Delta^\top - \Delta s^\top + n \Delta \Delta^\top

    and alike for :math:`\sum \lVert x \rVert^4`, which the Ledoit-Wolf shrinkage of each class needs. For one scatter
    of all classes that would take the scatter of each: there it is known only where `of` saw all rows at once.

    Example:
        >>> z, y = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)), torch.arange(500) % 2
        >>> parts = [Moments.empty(2, 3, "each").update(z[rows], y[rows]) for rows in (slice(0, 99), slice(99, 500))]
        >>> mean = sum(parts).central().mean
        >>> torch.allclose(mean[1], z[y == 1].double().mean(0))
        True
    """

    count: Tensor  # (C,)
    shift: Tensor  # (C, d)
    total: Tensor  # Σ x, (C, d)
    scatter: Tensor  # Σ x xᵀ, (C, d, d) or (1, d, d)
    cubes: Tensor | None  # Σ ‖x‖² x, (C, d)
    fourth: Tensor | None  # Σ ‖x‖⁴, (C,)
    dtype: torch.dtype = torch.float32  # of the rows

    @classmethod
    def empty(cls, classes: int, dim: int, sums: Sums, device: torch.device | str | None = "cpu") -> Moments:
        """Moments of no rows."""
        each, count = sums == "each", torch.zeros(classes, dtype=torch.float64, device=device)
        shift, total = count.new_zeros(2, classes, dim).unbind()
        scatter = count.new_zeros(classes if each else 1, dim, dim)
        cubes, fourth = (total.clone(), count.clone()) if each else (None, None)
        return cls(count, shift, total, scatter, cubes, fourth)

    @classmethod
    def of(cls, z: Tensor, y: Tensor, classes: int, sums: Sums, unit: float = 1.0) -> Moments:
        """Moments of rows z (n, d), in a unit, of classes y (n,) from 0: about the means of classes, fourth and all."""
        made, order = cls.empty(classes, z.shape[1], sums, z.device), own_order(z, y)
        made.dtype, made.count = z.dtype, y.bincount(minlength=classes).double()
        for rows in order.split(ROWS):
            made.shift += _by_class(z[rows].double() / unit, y[rows], classes)
        made.shift /= made.count.clamp(min=1)[:, None]
        made.count.zero_()
        made.fourth = made.count.clone()
        for rows in order.split(ROWS):
            made._add(z[rows].double() / unit, y[rows])
        made.total.zero_()  # it was rounding
        return made

    @property
    def sums(self) -> Sums:
        """Which scatter is kept."""
        return "each" if self.cubes is not None else "pooled"

    def update(self, z: Tensor, y: Tensor) -> Moments:
        """Add rows z (n, d) of classes y (n,), from 0; some thousand at a time are fast."""
        if len(y):
            self.dtype = torch.promote_types(self.dtype, z.dtype)
            order = y.argsort(stable=True)
            x, y = z[order].to(self.total.device).double(), y[order].to(self.total.device)
            self._grow(int(y[-1]) + 1)
            found = y.bincount(minlength=len(self.count))
            new = (self.count == 0) & (found > 0)
            if bool(new.any()):
                means = _by_class(x, y, len(self.count)) / found.clamp(min=1)[:, None]
                self.shift = torch.where(new[:, None], means, self.shift)
            if self.cubes is None:
                self.fourth = None
            self._add(x, y)
        return self

    def add_weighted(self, c: int, x: Tensor, weight: Tensor) -> None:
        """Add rows (n, d) to a class, each with a weight (n,)."""
        if bool((weight > 0).any()):
            x, w = x.double(), weight.double()[:, None]
            if float(self.count[c]) == 0:
                self.shift[c] = (w * x).sum(0) / w.sum()
            x = x - self.shift[c]
            squares = x.square().sum(1, keepdim=True)
            self.count[c] += w.sum()
            self.total[c] += (w * x).sum(0)
            self.scatter[c] += gram((w.sqrt() * x)[None])[0]
            if self.cubes is not None and self.fourth is not None:
                self.cubes[c] += (w * squares * x).sum(0)
                self.fourth[c] += (w * squares.square()).sum()

    def _add(self, x: Tensor, y: Tensor) -> None:
        """Add rows in float64, in the order of their classes."""
        x = x - self.shift[y]
        sizes = y.bincount(minlength=len(self.count))
        self.count += sizes
        self.total += _by_class(x, y, len(sizes))
        if self.cubes is None:
            self.scatter[0] += gram(x[None])[0]
        else:
            lengths = sizes.tolist()
            for c, rows in enumerate(x.split(lengths)):
                if lengths[c]:
                    self.scatter[c] += gram(rows[None])[0]
        if self.fourth is not None:
            squares = x.square().sum(1, keepdim=True)  # (n, 1)
            self.fourth += _by_class(squares.square(), y, len(sizes))[:, 0]
            if self.cubes is not None:
                self.cubes += _by_class(squares * x, y, len(sizes))

    def __add__(self, other: Moments | int) -> Moments:
        """Moments of the rows of both; `sum` begins with 0."""
        if isinstance(other, int):
            return self
        if self.sums != other.sums or self.shift.shape[1] != other.shift.shape[1]:
            raise ValueError(
                f"moments {self.sums!r} of {self.shift.shape[1]} dimensions cannot be added to {other.sums!r} of "
                f"{other.shift.shape[1]}: gather both with the same detector."
            )
        size = max(len(self.count), len(other.count))
        mine, theirs = self._copy()._grow(size), other._copy()._grow(size)
        shift = torch.where(mine.count[:, None] > 0, mine.shift, theirs.shift.to(mine.shift))
        mine.about(shift)
        theirs.about(shift)
        if mine.cubes is None:
            mine.fourth = None
        for name, own in mine._sums().items():
            own += getattr(theirs, name).to(own)
        mine.dtype = torch.promote_types(mine.dtype, theirs.dtype)
        return mine

    __radd__ = __add__

    def summed(self, classes: int, all_sum: Callable[[Tensor], Tensor]) -> Moments:
        """Moments of the rows of all processes, of which each calls this, with the most classes that any of them knows.

        `all_sum` is the sum of a tensor over them, the same bits for all.
        """
        mine = self._copy()._grow(classes)
        count = all_sum(mine.count.clone())
        mine.about(all_sum(mine.shift * mine.count[:, None] + mine.total) / count.clamp(min=1)[:, None])
        for name, own in mine._sums().items():
            setattr(mine, name, all_sum(own))
        return mine

    def central(self) -> Central:
        """Moments about the means of classes."""
        mine = self
        if bool((self.total != 0).any()):
            mine = self._copy().about(self.shift + self.total / self.count.clamp(min=TINY)[:, None])
        return Central(mine.count, mine.shift, mine.scatter, mine.fourth)

    def constant(self) -> bool:
        """Whether all rows are the same."""
        return self.central().constant()

    def check(self, sums: Sums, rows: int) -> None:
        """Raise a ValueError where these cannot be such sums over so many rows."""
        (classes, dim), kept = self.shift.shape, self.tensors()
        shapes = {"count": (classes,), "shift": (classes, dim), "total": (classes, dim), "scatter": (1, dim, dim)}
        if sums == "each":
            shapes |= {"scatter": (classes, dim, dim), "cubes": (classes, dim), "fourth": (classes,)}
        expect({name: tuple(part.shape) for name, part in kept.items()} == shapes, "sums have other shapes")
        right = all(part.dtype == torch.float64 and bool(part.isfinite().all()) for part in kept.values())
        expect(right, "sums are not in float64, or not finite")
        expect(bool((self.count >= 0).all()) and float(self.count.sum()) == rows, "counts do not add up to the inputs")

    def merged(self) -> Moments:
        """Of all rows as of one class, without the fourth."""
        central = self.central()
        count, middle = central.count, central.middle
        away = (central.mean - middle) * count.sqrt()[:, None]
        whole = central.scatter.sum(0) + gram(away[None])[0]
        zero = torch.zeros_like(middle)
        return Moments(count.sum()[None], middle[None], zero[None], whole[None], None, None, self.dtype)

    def about(self, shift: Tensor) -> Moments:
        """Take the sums about other shifts (C, d), in place."""
        by = shift - self.shift  # Δ
        n, s, length = self.count[:, None], self.total, by.square().sum(1, keepdim=True)
        if self.cubes is not None and self.fourth is not None:
            trace = self.scatter.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
            across, along = (self.scatter @ by[..., None])[..., 0], (s * by).sum(1, keepdim=True)
            moved = 4 * (across - self.cubes - length * s) * by + (2 * trace * length + n * length**2) / by.shape[1]
            self.fourth = self.fourth + moved.sum(1)
            self.cubes = self.cubes - 2 * across + length * s + (2 * along - trace - n * length) * by
        if self.cubes is None:
            cross = s.mT @ by
            self.scatter = self.scatter - (cross + cross.mT - (n * by).mT @ by)
        else:
            for c in (by != 0).any(1).nonzero()[:, 0].tolist():  # one by one: all may fill the memory
                cross = torch.outer(s[c] - n[c] / 2 * by[c], by[c])
                self.scatter[c] -= cross + cross.mT
        self.shift, self.total = shift, s - n * by
        return self

    def _grow(self, classes: int) -> Moments:
        """Make room for more classes, in place."""
        more = classes - len(self.count)
        for name, own in self.tensors().items():
            if more > 0 and (name != "scatter" or self.cubes is not None):
                setattr(self, name, torch.cat([own, own.new_zeros(more, *own.shape[1:])]))
        return self

    def _copy(self) -> Moments:
        return replace(self, **{name: tensor.clone() for name, tensor in self.tensors().items()})  # type: ignore[arg-type]

    def _sums(self) -> dict[str, Tensor]:
        """What is added where shifts are the same."""
        return {name: tensor for name, tensor in self.tensors().items() if name != "shift"}

    def tensors(self) -> dict[str, Tensor]:
        """The sums by their names, to be saved."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}


def _by_class(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """The sum of rows (n, d) that lie in the order of their classes y (n,), of each: (C, d)."""
    if x.device.type == "cpu":
        return x.new_zeros(classes, x.shape[1]).index_add_(0, y, x)
    # Where adding up goes on in parallel, its order would decide the last digits.
    return torch.segment_reduce(x, "sum", lengths=y.bincount(minlength=classes), axis=0)
