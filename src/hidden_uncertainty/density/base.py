"""The one contract that every density of activations keeps, and checks of its arguments and data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

import torch
from torch import Tensor

from ..arrays import is_array, to_tensor
from ..extract import Lattice
from ..io import plain, register
from ..notes import deprecated
from ..precision import farthest, helpful_threads
from ..progress import bars
from ..stored import Stored
from .linalg import Shrinkage

if TYPE_CHECKING:
    from .gaussian.mixture import Chunks
    from .gaussian.moments import Moments, Sums

PART = 1 << 26  # elements checked at a time
GONE = ("restarts", "seed")  # options of mixtures in files of version 0.1.0


class Density(Stored, ABC):
    r"""A density :math:`p(z \mid \hat y)` of activations given what the network predicts.

    What was fitted lives in buffers, so that a density moves, casts and saves like any module. A subclass overrides
    `_fit`, or all of `fit`; it can be loaded from files wherever it has been imported.
    """

    kinds: ClassVar[dict[str, type[Density]]] = {}  # every density by its name, for files
    shown: ClassVar[tuple[str, ...]] = ()  # the arguments that its representation names, unless zero

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register(Density.kinds, cls)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """What `config` describes; options that earlier versions had are left out."""
        known = signature(cls).parameters
        return super().from_config({name: v for name, v in config.items() if name in known or name not in GONE})

    def fit(self, z: Tensor, y: Tensor, *, progress: bool | None = None) -> Self:
        """Fit to activations and the predictions that came with them.

        Args:
            z: activations, (n, d); a tensor, an array or a frame, as all of these.
            y: predictions: classes as integers, (n,), or numbers in floating point, (n,) or (n, q).
            progress: deprecated; use `with hidden_uncertainty.progress.bars(...)`.
        """
        if progress is not None:
            deprecated("fit(progress=)", "hidden_uncertainty.progress.bars")
        z = to_tensor(z)
        with bars(progress), helpful_threads(z.numel()):
            return self._fit(z, to_tensor(y))

    @property
    def sums(self) -> Sums | None:
        """What `fit_moments` takes instead of rows; None where it needs the rows themselves."""
        return None

    def fit_moments(self, moments: Moments) -> Self:
        """Fit to sums over the rows of classes 0 … C - 1; some may have none."""
        raise NotImplementedError(f"{type(self).__name__} needs rows: call fit(z, y).")

    @property
    def chunks(self) -> bool:
        """Whether `fit_chunks` exists."""
        return False

    def fit_chunks(self, rows: Chunks) -> Self:
        """Fit to rows that are read several times, some at a time."""
        raise NotImplementedError(f"{type(self).__name__} needs all rows at once: call fit(z, y).")

    def _fit(self, z: Tensor, y: Tensor) -> Self:
        raise NotImplementedError(f"{type(self).__name__} must define fit(z, y).")

    @abstractmethod
    def log_prob(self, z: Tensor, support: Tensor) -> Tensor:
        """log p(z | y) in nats for z (n, d), one column per support point y: (n, m).

        Args:
            z: activations.
            support: classes (m,), or numbers (m, q), or (n, m, q) with separate points for every row.
        """

    def given(self, z: Tensor) -> Callable[..., Tensor]:
        """`log_prob` of these z as a function of the support, and of which rows of z where not of all."""

        def log_prob(support: Tensor, rows: Tensor | None = None) -> Tensor:
            return self.log_prob(z if rows is None else z[rows], support)

        return log_prob

    def _tensors(self, *given: Any) -> tuple[Tensor, ...]:
        """Arrays as tensors where the density is, for `log_prob`; tensors as they are."""
        if not any(map(is_array, given)):
            return given
        device = next((buffer.device for buffer in self.buffers()), None)
        return tuple(to_tensor(value).to(device) if is_array(value) else value for value in given)

    @property
    def interpolates(self) -> bool:
        """Whether `log_prob_between` exists and is cheaper than interpolating vectors and calling `log_prob`."""
        return False

    def log_prob_between(self, lattice: Lattice, support: Tensor) -> Iterator[Tensor]:
        """log p(z | y) at all pixels of a lattice, image by image and row by row, some at a time: (pixels, m)."""
        raise NotImplementedError(f"{type(self).__name__} scores vectors only: interpolate, and call log_prob.")

    def extra_repr(self) -> str:
        """The arguments that shape the density."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown if getattr(self, name) != 0)

    def _check(self, z: Tensor, dim: int | None, shape: str = "n") -> None:
        """Raise unless it was fitted, to vectors of so many dimensions as those of z have."""
        if dim is None:
            raise RuntimeError(f"this {type(self).__name__} is not fitted: call fit(z, y) first.")
        if z.dim() != 2 + shape.count(",") or z.shape[-1] != dim:
            raise ValueError(f"expected z of shape ({shape}, {dim}), as fitted, not {tuple(z.shape)}.")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, plain(value))  # options may come from numpy


def check_counts(**counts: Any) -> None:
    """Raise unless every argument is a whole number of at least 1."""
    for name, value in counts.items():
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}.")


def check_dtype(dtype: str | None) -> None:
    """Raise unless a density can be stored in this precision."""
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype must be 'float32', 'float64' or None, not {dtype!r}.")


def check_covariance(covariance: str, known: tuple[str, ...], shrinkage: str | None) -> None:
    """Raise unless the covariance is known and the shrinkage can be used with it."""
    if covariance not in known:
        raise ValueError(f"covariance must be one of {known}, not {covariance!r}.")
    if shrinkage not in (None, "auto", *get_args(Shrinkage)):
        raise ValueError(f"shrinkage must be 'auto', one of {get_args(Shrinkage)} or None, not {shrinkage!r}.")
    if shrinkage in get_args(Shrinkage) and covariance in ("diag", "spherical"):
        raise ValueError(f"shrinkage={shrinkage!r} is for full and tied covariances: with {covariance!r} use None.")


def check_classes(z: Tensor, y: Tensor, dtype: str | None) -> tuple[Tensor, Tensor]:
    """Checked activations and classes: z without gradients in float32 or float64, y (n,) as integers on its device."""
    if z.dim() != 2 or y.dim() != 1 or len(z) != len(y):
        raise ValueError(f"expected z (n, d) and y (n,) of the same length, not {tuple(z.shape)} and {tuple(y.shape)}.")
    if len(z) < 2:
        raise ValueError(f"a density needs at least 2 samples, not {len(z)}.")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise TypeError(f"expected classes as integers in y, not {y.dtype}.")
    return _activations(z, dtype), y.to(z.device).long()


def check_numbers(z: Tensor, y: Tensor, dtype: str | None) -> tuple[Tensor, Tensor]:
    """Checked activations and predictions: z as in `check_classes`, y without gradients as (n, q) in float64."""
    if z.dim() != 2 or y.dim() not in (1, 2) or len(z) != len(y):
        shapes = f"{tuple(z.shape)} and {tuple(y.shape)}"
        raise ValueError(f"expected z (n, d) and y (n,) or (n, q) of the same length, not {shapes}.")
    if not y.is_floating_point():
        raise TypeError(f"expected predictions in floating point in y, not {y.dtype}: for classes use GaussianMixture.")
    if len(z) < 3:
        raise ValueError(f"a density needs at least 3 samples, not {len(z)}.")
    z = _activations(z, dtype)
    y = y.detach().to(z.device, torch.float64).reshape(len(y), -1)
    _check_finite("y", y)
    constant = (y == y[:1]).all(0).nonzero()[:, 0].tolist()
    if constant:
        where = f" in column {constant}" if y.shape[1] > 1 else ""
        raise ValueError(f"y is the same in all {len(y)} rows{where}: p(z|ŷ) needs predictions that vary.")
    return z, y


def check_amounts(**amounts: Any) -> None:
    """Raise unless these are finite numbers of zero or more."""
    for name, value in amounts.items():
        if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            raise ValueError(f"{name} must be zero or more, and finite, not {value!r}.")


def _activations(z: Tensor, dtype: str | None) -> Tensor:
    _check_finite("z", z)
    z = z.detach()
    kept = getattr(torch, dtype or ("float64" if z.dtype == torch.float64 else "float32"))
    check_reach(max(abs(float(end)) for end in z.aminmax()), kept)
    return z.to(kept)


def check_reach(largest: float, dtype: torch.dtype) -> None:
    """Raise where squares of the largest number overflow."""
    if largest > farthest(dtype):
        reach = f"z reaches {largest:.4g}, whose square {dtype} cannot hold"
        raise ValueError(f"{reach}: rescale z, or leave such rows out.")


def _check_finite(name: str, values: Tensor) -> None:
    # Part by part: the test makes copies, and copies of all rows may not fit into memory.
    if not all(bool(part.isfinite().all()) for part in values.split(max(1, PART // max(1, values[0].numel())))):
        bad = f"{int((~values.isfinite()).any(1).sum())} of {len(values)} rows of {name}"
        raise ValueError(f"{bad} hold NaN or infinity: leave them out, or find out why.")


def match_classes(support: Tensor, classes: Tensor) -> Tensor:
    """Which class each point of a support (m,) is, (m, C); an error where it is none of those fitted."""
    match = support[:, None] == classes
    if not bool(match.any(1).all()):
        missing = support[~match.any(1)].tolist()
        raise ValueError(f"no density was fitted for class {missing}; fitted: {classes.tolist()}.")
    return match


def as_vectors(support: Tensor, numbers: int, rows: int) -> Tensor:
    """Support points as (m, q), or (n, m, q) where each of n rows has its own; from (m,) too where q is one."""
    y = support[:, None] if support.dim() == 1 and numbers == 1 else support
    if y.dim() not in (2, 3) or y.shape[-1] != numbers or (y.dim() == 3 and y.shape[0] != rows):
        one = "(m,), " if numbers == 1 else ""
        raise ValueError(
            f"expected support of shape {one}(m, {numbers}) or ({rows}, m, {numbers}), as fitted, not "
            f"{tuple(support.shape)}."
        )
    return y
