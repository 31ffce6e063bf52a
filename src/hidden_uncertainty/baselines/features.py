"""Methods that look at a network's activations: one layer or several, scored each by itself and then together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, TypedDict, Unpack

import torch
from torch import Tensor, nn

from .._condition import Condition, condition_of
from .._options import chosen_layers
from ..batches import Adapter, Batch
from ..density._linalg import saturate
from ..extract import Extractor, Features
from ..head import ROWS
from ..reduce import How, Reduce, Reduction
from ..tasks import Prediction, Task, TaskName
from ..uncertainty import LayerScores, Uncertainty
from .base import Baseline

Layers = str | Sequence[str] | Mapping[str, Reduce]


class Options(TypedDict, total=False):
    """Arguments that all methods on features share; `FeatureBaseline` says what they mean."""

    combine: Literal["mean"] | str | Mapping[str, float]
    max_dim: int | None
    reduce: How | Reduce
    task: TaskName | Task | None
    output: int | str | None
    unpack: Adapter | None
    seed: int
    progress: bool | None


class LayerScore(nn.Module):
    """What a method has fitted to one layer; its tensors are buffers."""

    def forward(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """Scores (n,) of activations z (n, d) in float64, higher when more uncertain.

        Args:
            z: reduced activations.
            prediction: what the network predicts for them.
            seen: whether they are rows that this was fitted to, none of which is to be its own neighbour.
        """
        raise NotImplementedError


class Standard(NamedTuple):
    """Mean and deviation of a layer's scores on training data."""

    mean: float
    deviation: float


class FeatureBaseline(Baseline):
    """A method that scores activations; subclasses say with `fit_layer` what they fit to those of one layer.

    As with `LatentDensity`, features that were extracted once serve many methods: `extract`, `fit_features`,
    `predict_features`. They may be those of a `LatentDensity` on the same layers.

    Args:
        model: any trained `nn.Module`; it is referenced, never changed.
        layers: the dotted name of a layer, several of them, or a mapping from names to how each is reduced.
        condition: classes are what the network predicts, or the labels.
        combine: what several layers are together: `"mean"` averages their scores, each standardised by its mean and
            deviation on training data; a layer's name or `"last"` takes that one; a mapping from names to weights
            takes the weighted sum of the scores as they are. Each layer's own scores are in `u.layers`.
        max_dim: layers that are wider are reduced to this many dimensions; None never reduces.
        reduce: how a layer's output becomes a vector, as for `LatentDensity`.
        task: what the network predicts; None infers it where the outputs leave no doubt, and says so.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        unpack: turns what a loader gives into `(inputs, label)`, when it gives neither `x`, `(x, y)` nor a dict.
        seed: of random projections.
        progress: show progress bars; None shows them on a terminal.
    """

    needs_classes = True

    def __init__(
        self, model: nn.Module, layers: Layers, *, condition: Condition = "prediction", **options: Unpack[Options]
    ) -> None:
        base: dict[str, Any] = {key: options.get(key) for key in ("task", "output", "unpack", "progress")}
        super().__init__(model, **base)
        unknown = sorted(set(options) - set(Options.__annotations__))
        if unknown:
            raise TypeError(f"{type(self).__name__} takes no argument {', '.join(map(repr, unknown))}.")
        if condition not in ("prediction", "label"):
            raise ValueError(f"condition must be 'prediction' or 'label', not {condition!r}.")
        reduce = options.get("reduce", "flatten")
        chosen = chosen_layers(
            layers, reduce if isinstance(reduce, Reduce) else Reduce(reduce, options.get("max_dim", 512))
        )
        self.condition = condition
        self.combine = _check_combine(options.get("combine", "mean"), list(chosen))
        self.extractor = Extractor(model, chosen, **{**base, "task": self.task}, seed=options.get("seed", 0))
        self.parts: dict[str, LayerScore] = {}
        self._reductions: Mapping[str, Reduction] | None = None
        self._standard: dict[str, Standard] = {}
        self._device = torch.device("cpu")

    @property
    def layers(self) -> list[str]:
        """The names of the layers."""
        return list(self.extractor.layers)

    @abstractmethod
    def fit_layer(self, z: Tensor, y: Tensor | None) -> LayerScore:
        """Fit to the activations z (n, d) of one layer and their classes y (n,), None if `needs_classes` is False."""

    def fit(self, loader: Iterable[Any]) -> Self:
        """Fit to the activations on training data.

        Args:
            loader: gives `x`, `(x, y)` or dicts; labels are needed for `condition="label"` only. It is read once, and
                once or twice more when a layer is wider than its `max_dim`.
        """
        return self.fit_features(self.extractor.fit(loader)[0])

    def extract(self, loader: Iterable[Any]) -> Features:
        """Run the network over a loader and keep its reduced activations, as `LatentDensity.extract` does."""
        if self._reductions is not None:
            return self.extractor.extract(loader, self._reductions)
        features = self.extractor.fit(loader)[0]
        self._reductions = features.reductions
        return features

    @torch.inference_mode(False)
    @torch.no_grad()
    def fit_features(self, features: Features) -> Self:
        """Fit to features that `extract` gave, of this method or another."""
        features.require(self.layers, features.reductions)
        y = self.classes(features) if self.needs_classes else None
        self._device = features.z[self.layers[0]].device
        parts, sample = {}, features[:: -(-len(features) // ROWS)]
        for name in self.layers:
            z = features.z[name]
            if bool((z == z[0]).all()):
                raise ValueError(
                    f"layer {name!r} gives the same activations for all {len(z):,} inputs, so it says nothing about "
                    "any. Choose another layer."
                )
            parts[name] = self.fit_layer(z, y).to(self._device)
        self.parts, self._reductions = parts, dict(features.reductions)
        self.task = self.extractor.task if self.task is None else self.task
        self._standard = {}
        if self.combine == "mean" and len(parts) > 1:
            for name, scores in self._scores(sample.z, sample.prediction, seen=True).items():
                self._standard[name] = Standard(float(scores.mean()), float(scores.std()) or 1.0)
        return self

    def score(self, batch: Batch) -> Uncertainty:
        """Score one batch, which is where the model is."""
        output, reduced = self.extractor.read(batch, self.fitted())
        return self.result(self.read(output), {name: z for name, (z, _) in reduced.items()})

    def predict_features(self, features: Features) -> Uncertainty:
        """Score features that `extract` gave."""
        features.require(self.layers, self.fitted())
        return self.result(Prediction(features.prediction, features.classes, features.variance), features.z)

    def result(self, prediction: Prediction, z: Mapping[str, Tensor]) -> Uncertainty:
        """Scores of each layer's activations, and of all layers together."""
        scores = self._scores(z, prediction.value)
        layers = {name: LayerScores(values) for name, values in scores.items()}
        return Uncertainty(prediction.value, self.together(scores), layers=layers, variance=prediction.variance)

    def together(self, scores: Mapping[str, Tensor]) -> Tensor:
        """One score from those of all layers, as `combine` says."""
        if isinstance(self.combine, Mapping):
            return torch.stack([weight * scores[name] for name, weight in self.combine.items()]).sum(0)
        if self.combine != "mean":
            return scores[self.layers[-1] if self.combine == "last" else self.combine]
        if len(scores) == 1:
            return scores[self.layers[0]]
        standard = [(scores[name] - mean) / deviation for name, (mean, deviation) in self._standard.items()]
        return torch.stack(standard).mean(0)

    def classes(self, features: Features) -> Tensor:
        """The class of each input that `condition` names, (n,)."""
        if features.classes is None:
            raise ValueError(
                f"{type(self).__name__} needs classes, but the network predicts numbers. NearestNeighbours and "
                "KernelDensity(how='gaussian') need none."
            )
        return condition_of(features, self.condition)

    def fitted(self) -> Mapping[str, Reduction]:
        """The reduction of each layer; an error when nothing is fitted."""
        if not self.parts or self._reductions is None:
            raise RuntimeError(f"this {type(self).__name__} is not fitted: call fit(loader) first.")
        return {name: self._reductions[name] for name in self.layers}

    def read(self, output: Any) -> Prediction:
        """What the network predicts, from its output."""
        assert self.extractor.task is not None
        return self.extractor.task.predict(output)

    @torch.no_grad()
    def _scores(self, z: Mapping[str, Tensor], prediction: Tensor, *, seen: bool = False) -> dict[str, Tensor]:
        """Scores of each layer, finite for finite activations, however far."""
        scores, limit = {}, torch.finfo(torch.float32).max / 8
        for name, part in self.parts.items():
            pairs = zip(z[name].to(self._device).split(ROWS), prediction.to(self._device).split(ROWS), strict=True)
            with torch.autocast(self._device.type, enabled=False):
                found = [part(saturate(rows, torch.float64), classes, seen=seen) for rows, classes in pairs]
            dtype = torch.promote_types(z[name].dtype, torch.float32)
            scores[name] = torch.cat(found).clamp(-limit, limit).to(dtype)
        return scores


def _check_combine(combine: str | Mapping[str, float], layers: list[str]) -> str | Mapping[str, float]:
    if isinstance(combine, Mapping):
        if set(combine) != set(layers):
            raise ValueError(f"combine has weights for {list(combine)}, layers= names {layers}: name the same ones.")
        return dict(combine)
    if combine not in ("mean", "last", *layers):
        raise ValueError(f"combine must be 'mean', 'last', weights or one of the layers {layers}, not {combine!r}.")
    return combine
