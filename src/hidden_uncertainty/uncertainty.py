"""The result of scoring: a prediction and how uncertain it is, one entry per input."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from .arrays import to_array, to_tensor

if TYPE_CHECKING:
    import pandas

Index = int | slice | Tensor | Sequence[int] | Sequence[bool]


class _Scores:
    """Scores with one entry per input, and what is surprising where there is a threshold."""

    epistemic: Tensor
    threshold: float | None

    def __post_init__(self) -> None:
        shapes = {name: value.shape for name, value in self._tensors().items()}
        if any(not shape or shape[0] != self.epistemic.shape[0] for shape in shapes.values()):
            told = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
            raise ValueError(f"every field needs one entry per input, along its first dimension; got {told}")

    def __len__(self) -> int:
        return len(self.epistemic)

    def __repr__(self) -> str:
        return "\n".join(self._summary())

    @property
    def surprising(self) -> Tensor:
        """Whether the epistemic uncertainty is above the threshold; NaN counts as surprising."""
        if self.threshold is None:
            raise RuntimeError(
                "no threshold was set when this was scored: call detector.threshold(false_alarm=0.01), then score again"
            )
        # In float64, as p-values are counted: in float32 the threshold would be rounded first.
        precise = torch.float32 if self.epistemic.device.type == "mps" else torch.float64
        return ~(self.epistemic.to(precise) <= self.threshold)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def _map(self, change: Callable[[Tensor], Tensor], **others: Any) -> Self:
        """The same with all tensors changed, but for others that are given."""
        changed = {name: change(value) for name, value in self._tensors().items()}
        return replace(self, **(changed | others))  # type: ignore[type-var]  # a dataclass

    def _summary(self) -> list[str]:
        inputs = "1 input" if len(self) == 1 else f"{len(self):,} inputs"
        lines = [f"{type(self).__name__} of {inputs}"]
        if len(self) > 1:
            lines.append(f"  {'':<14} {'mean':<10} {'min':<10} max")
        for name, value in self._tensors().items():
            if name not in ("prediction", "spread", "part", "probabilities") and value.numel():
                told = f"{value.double().mean():<10.4g} {value.min():<10.4g} {value.max():.4g}"
                lines.append(f"  {name:<14} {told if value.numel() > 1 else f'{value.item():.4g}'}")
        if self.threshold is not None and self.epistemic.numel():
            above = self.surprising
            share = f"{100 * above.float().mean():.1f} % above" if above.numel() > 1 else f"{bool(above)}, threshold"
            lines.append(f"  {'surprising':<14} {share} {self.threshold:.4g}")
        return lines


@dataclass(frozen=True, eq=False, repr=False)
class LayerScores(_Scores):
    """Scores of one layer, (n,) each or (n, H, W) for pixels, higher when more uncertain, in nats; None where absent.

    Args:
        epistemic: Surprise at the layer's activations, -log p(z).
        aleatoric: Entropy of the prediction given them, h(y|z).
        residual: What the reduction to fewer dimensions left out.
        log_aleatoric, p_value, expected_error, probabilities: As in `Uncertainty`, by this layer alone.
        threshold: The epistemic uncertainty above which this layer calls an input surprising.
        part: How much of the combined score is due to the layer, where that is told.

    Example:
        >>> LayerScores(epistemic=torch.tensor([1.0, 3.0]), threshold=2.0).surprising
        tensor([False,  True])
    """

    epistemic: Tensor
    aleatoric: Tensor | None = None
    log_aleatoric: Tensor | None = None
    expected_error: Tensor | None = None  # shown to users only of methods that were given labels
    probabilities: Tensor | None = None
    residual: Tensor | None = None
    p_value: Tensor | None = None
    threshold: float | None = None
    part: Tensor | None = None

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Put scores of several parts together; all have the same fields."""
        return parts[0] if len(parts) == 1 else replace(parts[0], **_cat(parts))

    def reshape(self, shape: Sequence[int]) -> Self:
        """The same scores, each field of this shape."""
        return self._map(lambda value: value.reshape(*shape))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Uncertainty(_Scores):
    """Predictions and how uncertain they are, of every method; scores are higher when more uncertain.

    Index it by a number, a slice, a mask or a tensor of indices, and every field follows: `u[u.surprising]`.

    Args:
        prediction: What the network predicts, one entry per input, or one per pixel, (n, H, W), as all scores then are.
        epistemic: How unfamiliar the input is.
        aleatoric: How ambiguous it is; None for a method that does not tell.
        log_aleatoric: Its logarithm, which ranks inputs whose entropy underflows.
        p_value: Share of unseen inputs at least as surprising, lower when more surprising; in float64.
        layers: Scores of each layer, by its name; of a method that reads the network's outputs, under `"outputs"`.
        threshold: The epistemic uncertainty above which an input is called surprising.
        expected_error: For regression with `condition="label"`, the root of E[(y - prediction)²] under p(y|z), in the
            output's own unit; else None, as a density that was given predictions knows nothing about labels.
        variance: The network's own variance of its prediction, where it predicts one.
        spread: What the widths of intervals are multiples of; None where all are equally wide, or there are none.
        probabilities: Of each class, (n, C), of methods that read outputs: the network's own, or the mean of several
            networks or passes; where layers are combined by `"fisher"`, at the temperature that labelled unseen data
            teach. Where an input may have several labels, of each label, (n, L): for layers that were named,
            p(y_l = 1 | z).

    An input for which the network gave NaN or infinity has an epistemic uncertainty of inf and the lowest p-value; its
    other scores are NaN. Its prediction is what the network gave, and means nothing.

    Example:
        >>> u = Uncertainty(prediction=torch.tensor([7, 1, 3]), epistemic=torch.tensor([1.0, 9.0, 2.0]), threshold=5.0)
        >>> u
        Uncertainty of 3 inputs
                         mean       min        max
          epistemic      4          1          9
          surprising     33.3 % above 5
        >>> u[u.surprising].prediction
        tensor([1])
    """

    prediction: Tensor
    epistemic: Tensor
    aleatoric: Tensor | None = None
    log_aleatoric: Tensor | None = None
    p_value: Tensor | None = None
    layers: Mapping[str, LayerScores] = field(default_factory=dict)
    threshold: float | None = None
    expected_error: Tensor | None = None
    variance: Tensor | None = None
    spread: Tensor | None = None
    probabilities: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, scores in self.layers.items():
            if len(scores) != len(self):
                raise ValueError(
                    f"layer {name!r} has scores of {len(scores)} inputs; there are {len(self)} predictions"
                )

    @property
    def aleatoric_per_label(self) -> Tensor:
        """The entropy of each label by itself, (n, L), in nats, where an input may have several.

        Example:
            >>> told = {"prediction": torch.tensor([[1, 0]]), "probabilities": torch.tensor([[1.0, 0.5]])}
            >>> Uncertainty(epistemic=torch.tensor([3.0]), **told).aleatoric_per_label
            tensor([[0.0000, 0.6931]])
        """
        p = self.probabilities
        if p is None or p.shape != self.prediction.shape:
            raise RuntimeError(
                "there is an aleatoric uncertainty per label where a LatentDensity has task='multi-label': see "
                "u.aleatoric."
            )
        return torch.special.entr(p) + torch.special.entr(1 - p)

    def __getitem__(self, index: Index) -> Self:
        rows = _rows(index, len(self))
        return self._map(lambda value: value[rows if isinstance(rows, slice) else rows.to(value.device)])

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def to(self, device: torch.device | str) -> Self:
        """The same result with every tensor on a device."""
        return self._map(lambda value: value.to(device))

    def cpu(self) -> Self:
        """The same result with every tensor in main memory."""
        return self.to("cpu")

    def numpy(self) -> dict[str, np.ndarray]:
        """Copies of all fields by name, with `"surprising"` where there is a threshold, and `"LAYER.epistemic"`."""
        found = self._tensors()
        if self.threshold is not None:
            found["surprising"] = self.surprising
        found |= {f"{name}.epistemic": scores.epistemic for name, scores in self.layers.items()}
        return {name: to_array(value) for name, value in found.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """The entries of `numpy` as a frame, one row per input; needs pandas.

        Several numbers per input, such as probabilities, are one column each: `probabilities.0`, `probabilities.1`.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install pandas, or take u.numpy().") from error
        return pandas.DataFrame(self.columns())

    def to_json(self) -> str:
        """The entries of `to_pandas` as a JSON list with one object per input; infinity and NaN are null.

        Example:
            >>> Uncertainty(prediction=torch.tensor([7]), epistemic=torch.tensor([math.inf])).to_json()
            '[{"prediction": 7, "epistemic": null}]'
        """
        columns = {name: values.tolist() for name, values in self.columns().items()}
        rows = zip(*columns.values(), strict=True)
        records = [{k: v if math.isfinite(v) else None for k, v in zip(columns, row, strict=True)} for row in rows]
        return json.dumps(records, allow_nan=False)

    def columns(self) -> dict[str, np.ndarray]:
        """One (n,) array per number that is known of an input, by name."""
        if self.epistemic.dim() != 1:
            raise ValueError(f"rows are for scores of inputs; these are maps {tuple(self.epistemic.shape)}: u.numpy().")
        columns: dict[str, np.ndarray] = {}
        for name, values in self.numpy().items():
            wide = values.reshape(len(values), math.prod(values.shape[1:])).T
            columns |= {name if len(wide) == 1 else f"{name}.{i}": column for i, column in enumerate(wide)}
        return columns

    @classmethod
    def cat(cls, results: Sequence[Self]) -> Self:
        """Put results of several batches together; they must have the same fields, layers and threshold."""
        if not results:
            raise ValueError("there are no results to put together: expected at least one")
        first = results[0]
        for i, result in enumerate(results):
            known, found = first._fields(), result._fields()
            for what in {**known, **found}:
                mine, other = known.get(what), found.get(what)
                if mine != other:
                    raise ValueError(f"results differ in their {what}: {mine} in the first, {other} at position {i}")
            if result.prediction.shape[1:] != first.prediction.shape[1:]:
                raise ValueError(
                    f"maps of different sizes make no tensor: {tuple(first.prediction.shape[1:])} in the first result, "
                    f"{tuple(result.prediction.shape[1:])} at position {i}. Score batch by batch: detector(x)."
                )
        layers = {name: LayerScores.cat([result.layers[name] for result in results]) for name in first.layers}
        return replace(first, layers=layers, **_cat(results))

    def why(self) -> list[str]:
        """For each input, the layer that most of its epistemic score is due to; `"outputs"` for the network's own.

        Example:
            >>> layers = {
            ...     "conv": LayerScores(epistemic=torch.tensor([3.0]), part=torch.tensor([0.2])),
            ...     "fc": LayerScores(epistemic=torch.tensor([9.0]), part=torch.tensor([4.0])),
            ... }
            >>> Uncertainty(prediction=torch.tensor([7]), epistemic=torch.tensor([4.2]), layers=layers).why()
            ['fc']
        """
        parts = {name: scores.part for name, scores in self.layers.items() if scores.part is not None}
        if not parts or self.epistemic.dim() != 1:
            raise RuntimeError(
                "why() is for scores of inputs that add up from several layers, as with LatentDensity(model) or "
                "combine='fisher'; u.layers has what each layer says."
            )
        names = list(parts)
        return [names[place] for place in torch.stack([*parts.values()]).argmax(0).tolist()]

    def _summary(self) -> list[str]:
        return super()._summary() + ([f"  {'layers':<14} {', '.join(self.layers)}"] if self.layers else [])

    def _map(self, change: Callable[[Tensor], Tensor], **others: Any) -> Self:
        layers = {name: scores._map(change) for name, scores in self.layers.items()}
        return super()._map(change, layers=layers, **others)

    def _fields(self) -> dict[str, Any]:
        """What results have in common that are put together."""
        own = {f"fields of layer {name!r}": list(scores._tensors()) for name, scores in self.layers.items()}
        return {"layers": list(self.layers), "threshold": self.threshold, "fields": list(self._tensors()), **own}


def _cat(results: Sequence[LayerScores | Uncertainty]) -> dict[str, Any]:
    return {name: torch.cat([getattr(result, name) for result in results]) for name in results[0]._tensors()}


def _rows(index: Index, length: int) -> slice | Tensor:
    """An index that keeps the first dimension, also for a single number."""
    if isinstance(index, slice):
        return index
    if isinstance(index, tuple):
        raise TypeError("a result has one index, its input; index the fields for more: u.epistemic[0, 1]")
    index = to_tensor(index)
    rows = torch.atleast_1d(index if isinstance(index, Tensor) else torch.as_tensor(index, device="cpu"))
    if rows.numel() == 0:
        rows = rows.long()  # an empty list has no dtype of its own
    if rows.dtype != torch.bool and rows.numel() and not -length <= int(rows.min()) <= int(rows.max()) < length:
        raise IndexError(f"index {index} is outside the result, which has {length} inputs")
    return rows
