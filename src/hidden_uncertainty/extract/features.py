"""What one batch gave, as a reading of rows to score; and what was read of many inputs, kept as features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..arrays import is_array, to_tensor
from ..model.tasks import Classification, Condition, MultiLabel, Prediction, Regression, Task, from_config
from ..reduce import Reduce, Reduction
from ..uncertainty import LayerScores

PART = 1 << 14  # rows in float64 at a time
OUTPUTS = "outputs"  # the name of a term that reads the network's own outputs


class Axis(NamedTuple):
    """Where the pixels of one axis lie between the places of another: value = low + share · (high - low)."""

    low: Tensor  # (size,) place before
    high: Tensor  # (size,) place after
    share: Tensor  # (size,) of the place after


class Lattice(NamedTuple):
    """Places that vectors are known at, and where the pixels of a grid lie between them."""

    places: Tensor  # (n, h, w, d)
    rows: Axis
    columns: Axis

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.places.device

    def to(self, device: torch.device) -> Lattice:
        """The same on another device."""
        return tree_map_only(Tensor, lambda part: part.to(device), self)


class Row(NamedTuple):
    """Some rows of one term, ready to be scored."""

    z: Tensor  # (m, d)
    residual: Tensor | None  # (m,)
    prediction: Tensor  # (m,), or (m, q)


@dataclass(frozen=True, eq=False, kw_only=True)
class Reading:
    """What one batch gave: predictions, and what each term reads as rows; by default, inputs are one row each.

    Rows of what is unusable hold zeros. They are scored as surprising, and refused in a fit and a calibration.
    """

    prediction: Prediction  # what the network predicts, in the shape of the scores
    label: Tensor | None = None  # what is true, in the same shape, where it is known
    unusable: Tensor | None = None  # inputs (n,) or pixels (n, H, W) that the network gave NaN or infinity for, if any
    scores: Mapping[str, LayerScores] | None = None  # of each term, where they come with it: nothing is left to score

    def rows(self, name: str) -> Iterator[Row]:
        """All rows of a term, some at a time."""
        raise NotImplementedError

    def lattice(self, name: str) -> Lattice | None:
        """What all rows of a term are interpolated from; None where they are not, or where z is no linear map."""
        return None

    def shaped(self, scores: LayerScores) -> LayerScores:
        """Scores of all rows, in the shape of the predictions."""
        return scores

    def of_inputs(self, scores: Tensor) -> Tensor:
        """One score per input, (n,): inputs are exchangeable where their pixels are not."""
        return scores


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows(Reading):
    """A reading of inputs that are one row each: what each term reads (n, d), with its residuals (n,)."""

    reduced: Mapping[str, tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def rows(self, name: str) -> Iterator[Row]:
        """All rows at once."""
        value = self.prediction.value
        yield Row(*self.reduced[name], value if self.unusable is None else value.nan_to_num(0.0, 0.0, 0.0))


class Unseen(Protocol):
    """Data to calibrate with."""

    def readings(self) -> Iterator[Reading]:
        """Its readings, batch by batch."""


class Population(NamedTuple):
    """What all pixels have, of which a balanced sample was drawn: p(y) is fitted to this."""

    values: Tensor  # how many pixels there are of each class, (C,), or a uniform sample of numbers, (s,)
    condition: Condition  # whether these are predictions or labels


class AsIs(Reduction):
    """What is read of the network's outputs, which are never reduced."""

    def __init__(self) -> None:
        super().__init__(Reduce(max_dim=None), OUTPUTS, ())

    def forward(self, activation: Tensor) -> tuple[Tensor, Tensor | None]:
        """The outputs as they are."""
        return activation, None


@dataclass(frozen=True, eq=False, kw_only=True)
class Features:
    """What methods are fitted to: the reduced activations of each layer, with the network's predictions.

    Made by `Detector.extract`, so that the network runs once for as many methods as one wants to try; or by
    `Features.from_arrays`, without any network.

    Args:
        z: reduced activations of each layer, (n, d); of a method that reads the network's outputs, under `"outputs"`.
        residual: squared norm of what the reduction dropped, (n,), or None where it dropped nothing.
        prediction: what the network predicts: classes or numbers (n,), or vectors or labels (n, q).
        task: what kind of prediction that is.
        reductions: how each layer was reduced, to reduce new inputs alike.
        label: what is true, where the loader gives it.
        classes: how many classes the network has; None where it predicts numbers.
        variance: the network's own variance of its prediction, where it predicts one.
        population: where the rows are pixels that were drawn, what all of them have.
    """

    z: Mapping[str, Tensor]
    residual: Mapping[str, Tensor | None]
    prediction: Tensor
    task: Task
    reductions: Mapping[str, Reduction]
    label: Tensor | None = None
    classes: int | None = None
    variance: Tensor | None = None
    population: Population | None = None

    @classmethod
    def from_arrays(cls, z: Any, prediction: Any, label: Any = None) -> Self:
        """Features that come from elsewhere, for a detector without a network: `LatentDensity(None, "z")`.

        Args:
            z: an array or tensor (n, d), which is called `"z"`; or a mapping from names to such. They are taken as they
                are. Logits or log-probabilities (n, C) under `"outputs"` are for methods that read outputs.
            prediction: whole-numbered classes (n,), from 0; or numbers in floating point, (n,) or (n, q); or which of
                several labels each input has, whole-numbered zeros and ones (n, L).
            label: what is true, alike.

        Example:
            >>> rng = np.random.default_rng(0)
            >>> x, y = rng.normal(size=(500, 3)), np.arange(500) % 2
            >>> features = Features.from_arrays(x + 5 * y[:, None], y)
            >>> features
            Features of 500 inputs ('z' 3-d)
            >>> from hidden_uncertainty import LatentDensity
            >>> LatentDensity(None, "z").fit_features(features).predict_features(features[:4]).epistemic.shape
            torch.Size([4])
        """
        values, true = _tensor("prediction", prediction), None if label is None else _tensor("label", label)
        arrays = {name: _tensor(name, part) for name, part in (z if isinstance(z, Mapping) else {"z": z}).items()}
        numbers, rows = values.is_floating_point(), len(values)
        several = not numbers and values.dim() == 2 and values.shape[1] > 1
        known = numbers or bool(((values >= 0) & ((values <= 1) | (not several))).all())
        if values.dim() not in ((1, 2) if numbers or several else (1,)) or not known:
            raise ValueError(
                "prediction takes classes (n,), whole numbers from 0, or numbers in floating point, (n,) or (n, q), or "
                "which labels inputs have, whole-numbered zeros and ones (n, L), "
                f"not {values.dtype} {tuple(values.shape)} with {values.flatten().sort().values[:3].tolist()}."
            )
        if true is not None and len(true) != rows:
            raise ValueError(f"expected a label for each of {rows:,} predictions, got {len(true):,}.")
        for name, part in arrays.items():
            if part.dim() != 2 or len(part) != rows:
                raise ValueError(f"expected {name!r} of shape ({rows}, d), as prediction, got {tuple(part.shape)}.")
            if name != OUTPUTS and not bool(part.isfinite().all()):  # a class may be ruled out by -inf
                refuse(f"{name!r} has NaN or infinity", ~part.isfinite(), None)
        whole = [part for part in (values, true) if part is not None and len(part) and not part.is_floating_point()]
        return cls(
            z={name: part if part.is_floating_point() else part.float() for name, part in arrays.items()},
            residual=dict.fromkeys(arrays),
            prediction=values.squeeze(1) if values.shape[1:] == (1,) else values.long() if several else values,
            task=Regression() if numbers else MultiLabel() if several else Classification(),
            reductions={
                name: AsIs() if name == OUTPUTS else Reduction(Reduce(max_dim=None), name, tuple(part.shape[1:]))
                for name, part in arrays.items()
            },
            label=true,
            classes=None if numbers else 2 if several else max((int(part.max()) + 1 for part in whole), default=0),
        )

    def __len__(self) -> int:
        return len(self.prediction)

    def __getitem__(self, which: slice | Tensor) -> Self:
        """Some of the inputs: a slice, a mask or a tensor of indices."""

        def some(values: Tensor) -> Tensor:
            return values[which.to(values.device) if isinstance(which, Tensor) else which]

        return replace(self, **self._columns(some))

    def _columns(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """All columns, changed, by the names of their fields; those that are None stay so."""
        columns = {name: getattr(self, name) for name in ("prediction", "label", "variance")}
        return tree_map_only(Tensor, change, {"z": dict(self.z), "residual": dict(self.residual), **columns})

    @classmethod
    def cat(cls, parts: list[Features]) -> Features:
        """All rows of several; the list is emptied, so that no more than one column is there twice."""
        first = parts[0]
        if len(parts) == 1:
            return parts.pop()
        columns = [part._columns(lambda values: values) for part in parts]
        parts.clear()

        def joined(some: list[Any]) -> Any:
            if isinstance(some[0], dict):
                return {name: joined([part.pop(name) for part in some]) for name in list(some[0])}
            return None if any(part is None for part in some) else torch.cat(some)

        return replace(first, **joined(columns))

    def plain(self) -> dict[str, Any]:
        """All but the reductions as tensors on the CPU, numbers and text, to be sent to another process."""
        return {**self._columns(Tensor.cpu), "classes": self.classes, "task": self.task.config()}

    @classmethod
    def received(
        cls, parts: Iterable[dict[str, Any] | None], reductions: Mapping[str, Reduction], device: torch.device | str
    ) -> Features:
        """All rows of what `plain` made in several processes, of which some may have none, on a device."""
        found = []
        for part in parts:
            if part is not None:
                there = tree_map_only(Tensor, lambda values: values.to(device), part)
                part.clear()  # so that no more than one part is there twice
                found.append(cls(**{**there, "task": from_config(there["task"])}, reductions=reductions))
        if not found:
            raise ValueError("no process was given any input: all shards are empty.")
        return cls.cat(found)

    def keys(self) -> Tensor:
        """A number from 0 to 1 per input, (n,), as if drawn at random, but by what each of them is."""
        return keys_of(list(self.z.values())[-1])

    def lowest(self, count: int) -> Features:
        """At most so many inputs, those of the lowest keys, in their order."""
        return self[self.keys().argsort(stable=True)[:count]]

    def condition(self, condition: Condition) -> Tensor:
        """What methods are conditioned on: the predictions, or the labels in their shape."""
        if self.population is not None and self.population.condition != condition:
            raise ValueError(
                f"these pixels were drawn and counted by their {self.population.condition}s: extract them with a "
                f"detector that has condition={condition!r} too."
            )
        return self.task.condition(self.prediction, self.label, condition)

    def readings(self) -> Iterator[Reading]:
        """The features as one batch, to score or to calibrate with."""
        prediction = Prediction(self.prediction, self.classes, self.variance)
        reduced = {name: (z, self.residual[name]) for name, z in self.z.items()}
        yield Rows(prediction=prediction, reduced=reduced, label=self.label)

    def require(self, names: Iterable[str], reductions: Mapping[str, Reduction]) -> None:
        """Raise unless these are features, which have these layers, reduced in this way."""
        if not isinstance(self, Features):
            raise TypeError(
                f"expected Features, got {type(self).__name__}: make them of arrays with Features.from_arrays(z, "
                "prediction), or of inputs with extract."
            )
        missing = [name for name in names if name not in self.z]
        if missing:
            raise ValueError(f"the features have no layer {missing}; they have {list(self.z)}.")
        other = [name for name in names if not self.reductions[name].same_as(reductions[name])]
        if other:
            raise ValueError(
                f"the features of layer {other} were reduced otherwise than those that were fitted to: extract both "
                "with the same detector, or give arrays of the same width."
            )

    def __repr__(self) -> str:
        widths = ", ".join(f"{name!r} {z.shape[1]}-d" for name, z in self.z.items())
        return f"Features of {len(self):,} {'inputs' if self.population is None else 'pixels'} ({widths})"


def keys_of(z: Tensor) -> Tensor:
    """A number from 0 to 1 per row (n, d), (n,), as if drawn at random, but by what it holds."""
    weight = torch.arange(1, z.shape[1] + 1, dtype=torch.float64, device=z.device).cos()
    # A class may be ruled out by -inf.
    sums = torch.cat([part.double().nan_to_num(0.0, 0.0, 0.0) @ weight for part in z.split(PART)])
    # Digits that neither the unit of z nor rounding decides.
    digits = torch.frexp(sums).mantissa.abs() * 1000
    return digits - digits.floor()


def refuse(what: str, wrong: Tensor, index: int | None) -> NoReturn:
    """Raise an error about inputs that have something wrong, by a mask (n, ...)."""
    bad, where = int(wrong.reshape(len(wrong), -1).any(1).sum()), "" if index is None else f" in batch {index}"
    raise ValueError(
        f"{what} for {bad} of {len(wrong)} inputs{where}: look for them in the inputs, or for an overflow in the "
        "network's precision."
    )


def _tensor(name: str, values: Any) -> Tensor:
    """A copy of an array, or anything that numpy reads as one; of a tensor, the tensor. Whole numbers in 64 bits."""
    try:
        tensor: Tensor = to_tensor(values if isinstance(values, Tensor) or is_array(values) else np.array(values))
        if tensor.is_complex() or tensor.dim() == 0:
            raise TypeError(f"{tensor.dtype} of shape {tuple(tensor.shape)} is no array of numbers.")
    except TypeError as error:
        raise TypeError(
            f"expected an array of numbers as {name!r}: {error} Names of classes become numbers by "
            "np.unique(names, return_inverse=True)[1]."
        ) from error
    return tensor.detach() if tensor.is_floating_point() else tensor.long()
