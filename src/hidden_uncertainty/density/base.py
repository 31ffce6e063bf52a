"""The one contract that every density of activations keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor

from ..arrays import is_array, to_tensor
from ..extract import Lattice
from ..io import plain, register
from ..notes import deprecated
from ..precision import helpful_threads
from ..progress import bars
from ..stored import Stored

if TYPE_CHECKING:
    from .gaussian.mixture import Chunks
    from .gaussian.moments import Moments, Sums


class Density(Stored, ABC):
    r"""A density :math:`p(z \mid \hat y)` of activations given what the network predicts.

    What was fitted lives in buffers, so that a density moves, casts and saves like any module. A subclass overrides
    `_fit`, or all of `fit`; it can be loaded from files wherever it has been imported.
    """

    kinds: ClassVar[dict[str, type[Density]]] = {}  # every density by its name, for files

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register(Density.kinds, cls)

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

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, plain(value))  # options may come from numpy
