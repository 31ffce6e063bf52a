"""`LatentDensity`: uncertainty from the density of a trained network's activations."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from . import io
from .batches import Adapter, Batch
from .calibration import Calibration
from .capture import device_of
from .density import KINDS, Density, GaussianMixture
from .extract import Extractor, Features
from .head import Head, LayerHead
from .identity import check_same, describe, weights
from .marginal import Categorical
from .reduce import How, Reduce, Reduction
from .tasks import Classification, TaskName
from .uncertainty import LayerScores, Uncertainty

Condition = Literal["prediction", "label"]


class LatentDensity:
    r"""Epistemic and aleatoric uncertainty of a trained network, from the density of its hidden activations.

    .. math::
        \text{epistemic} = -\log p(z) = -\log \sum_{\hat y} p(z \mid \hat y)\, p(\hat y), \qquad
        \text{aleatoric} = -\sum_{\hat y} p(\hat y \mid z) \log p(\hat y \mid z)

    with z the activations of a layer, reduced to at most `max_dim` dimensions (paper, eq. 5, 6 and Algorithm 1). The
    model is referenced, not owned: it is never changed, moved or saved.

    Args:
        model: any trained `nn.Module`.
        layers: the dotted name of a layer, several of them, or a mapping from names to how each is reduced
            (`Reduce`). List them with `layers(model, example)`.
        density: p(z | ŷ), copied for every layer; or a mapping with one for each layer.
        max_dim: layers that are wider are reduced to this many dimensions; None never reduces.
        reduce: how a layer's output becomes a vector: `"flatten"`, `"channels"`, `"tokens"`, `"token"`, `"project"`, or
            a `Reduce`, whose own `max_dim` then counts.
        task: what the network predicts; None infers it where the outputs leave no doubt, and says so.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        condition: fit p(z | ŷ) given the network's predictions, as in the paper, or given the labels.
        combine: which layer the top-level scores are: `"last"` named, or a layer's name.
        unpack: turns what a loader gives into `(inputs, label)`, when it gives neither `x`, `(x, y)` nor a dict.
        seed: of random projections.
        progress: show progress bars; None shows them on a terminal.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> x = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0))
        >>> detector = LatentDensity(model, layers="0", density=GaussianMixture(components=2), task="classification")
        >>> detector = detector.fit(x[:2000].split(100), calibration=x[2000:].split(100))
        >>> threshold = detector.threshold(false_alarm=0.01)
        >>> detector(torch.tensor([[0.1, 0.2], [30.0, -20.0]])).surprising
        tensor([False,  True])
    """

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str] | Mapping[str, Reduce],
        density: Density | Mapping[str, Density] | None = None,
        *,
        max_dim: int | None = 512,
        reduce: How | Reduce = "flatten",
        task: TaskName | None = None,
        output: int | str | None = None,
        condition: Condition = "prediction",
        combine: str = "last",
        unpack: Adapter | None = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        default = reduce if isinstance(reduce, Reduce) else Reduce(reduce, max_dim=max_dim)
        chosen = _layers(layers, default)
        if task not in (None, "classification"):
            raise ValueError(f"task must be 'classification' or None, not {task!r}.")
        if condition not in ("prediction", "label"):
            raise ValueError(f"condition must be 'prediction' or 'label', not {condition!r}.")
        if combine != "last" and combine not in chosen:
            raise ValueError(f"combine must be 'last' or one of the layers {list(chosen)}, not {combine!r}.")
        self.densities = _densities(GaussianMixture() if density is None else density, chosen)
        self.extractor = Extractor(
            model,
            chosen,
            task=None if task is None else Classification(output),
            output=output,
            unpack=unpack,
            seed=seed,
            progress=progress,
        )
        self.condition, self.combine, self.progress = condition, combine, progress
        self.head: Head | None = None
        self._reductions: Mapping[str, Reduction] | None = None
        self.calibrated: Literal["unseen", "holdout"] | None = None
        self._threshold: float | None = None

    @property
    def model(self) -> nn.Module:
        """The network, as it was given."""
        return self.extractor.model

    @property
    def layers(self) -> list[str]:
        """The names of the layers."""
        return list(self.extractor.layers)

    def fit(
        self, loader: Iterable[Any], calibration: Iterable[Any] | None = None, *, holdout: float | None = None
    ) -> Self:
        """Fit reductions, densities and marginal to the activations on training data.

        Args:
            loader: the training data, as `x`, `(x, y)` or dicts; labels are needed for `condition="label"` only. It
                is read once, and once or twice more when a layer is wider than its `max_dim`.
            calibration: data that the network was not trained on, for p-values and thresholds with a guarantee.
            holdout: instead, a share of the loader's inputs to set apart for that. The network was trained on them
                and may find them more familiar than new data; alarms may then come far more often than asked for.
        """
        if calibration is not None and holdout is not None:
            raise ValueError("pass calibration or holdout, not both.")
        if holdout is not None and not 0 < holdout < 1:
            raise ValueError(f"holdout is a share between 0 and 1, not {holdout}.")
        train, apart = self.extractor.fit(loader, held_out=holdout or 0.0)
        if calibration is not None:
            apart = self.extractor.extract(calibration, train.reductions)
        elif holdout is None:
            return self.fit_features(train)
        self.fit_features(train, calibration=apart)
        if holdout is not None:
            self.calibrated = "holdout"
            warnings.warn(
                "calibrated on a part of the training data, which the network has seen: p-values and thresholds come "
                "without their guarantee. Pass calibration= with unseen data for it.",
                stacklevel=2,
            )
        return self

    def extract(self, loader: Iterable[Any]) -> Features:
        """Run the network over a loader and keep its reduced activations, to fit or score densities without it.

        Layers are reduced as fitted; if nothing is fitted yet, reductions are fitted to this loader and kept.
        """
        if self._reductions is not None:
            return self.extractor.extract(loader, self._reductions)
        features = self.extractor.fit(loader)[0]
        self._reductions = features.reductions
        return features

    def fit_features(self, features: Features, calibration: Features | None = None) -> Self:
        """Fit densities and marginal to features that `extract` gave; they may come from another detector.

        Args:
            features: of training data.
            calibration: of data that the network was not trained on.
        """
        self._require(features, features.reductions)
        y = self._condition(features)
        marginal = Categorical().fit(y, classes=max(features.classes, int(y.max()) + 1))
        if len(marginal.support) < 2:
            raise ValueError(
                f"all {len(y):,} inputs have the {self.condition} {int(y[0])}, so there is nothing to be torn between. "
                "Check the network and the loader; a single logit, (n, 1), must be one, not a probability."
            )
        if len(y) < features.classes:
            raise ValueError(f"{len(y)} inputs are fewer than the network's {features.classes} classes: fit to more.")
        parts = {}
        for name in self.layers:
            if bool((features.z[name] == features.z[name][0]).all()):
                raise ValueError(
                    f"layer {name!r} gives the same activations for all {len(y):,} inputs, so its density says nothing "
                    "about any. Choose another layer."
                )
            with _layer_in_warnings(name):
                density = copy.deepcopy(self.densities[name]).fit(features.z[name], y, progress=self.progress)
            part = LayerHead(features.reductions[name], density)
            if calibration is not None:
                self._require(calibration, features.reductions)
                part.calibration = Calibration().fit(part(calibration.z[name], marginal).epistemic)
            parts[name] = part
        self.head = Head(parts, marginal.to(features.prediction.device))
        self._reductions = self.head.reductions
        self.calibrated = None if calibration is None else "unseen"
        self._threshold = None
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Score inputs, given as the model takes them."""
        batch = Batch(args, kwargs, None)
        device = device_of(self.model)
        return self._score(batch if device is None else batch.to(device))

    def predict(self, loader: Iterable[Any]) -> Uncertainty:
        """Score all of a loader; the result is on the CPU."""
        self._fitted()
        batches = self.extractor.batches(loader)
        return Uncertainty.cat([self._score(batch, index).cpu() for index, batch in enumerate(batches)])

    def predict_features(self, features: Features) -> Uncertainty:
        """Score features that `extract` gave."""
        head = self._fitted()
        self._require(features, head.reductions)
        scores = head.score({name: (features.z[name], features.residual[name]) for name in self.layers})
        return self._result(features.prediction, scores)

    def threshold(self, false_alarm: float, confidence: float | None = None) -> float:
        """The score above which inputs are surprising from now on (`u.surprising`), chosen without any outlier.

        Args:
            false_alarm: at most this share of new in-distribution inputs is called surprising, on average over
                calibration sets (see `Calibration` for what that takes).
            confidence: have it hold for this one calibration set, with this probability.
        """
        calibration = self._fitted().layers[self._top].calibration
        if calibration is None:
            raise RuntimeError(
                "there is nothing to choose a threshold from: call fit(train, calibration=unseen) with data that the "
                "network was not trained on."
            )
        self._threshold = calibration.threshold(false_alarm, confidence)
        return self._threshold

    def to(self, device: torch.device | str) -> Self:
        """Move what was fitted; the model stays where it is."""
        self._fitted().to(device)
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Write what was fitted to a safetensors file; the model is not in it."""
        head = self._fitted()
        assert self.extractor.task is not None
        header = {
            "head": head.config(),
            "model": describe(self.model),
            "densities": {
                name: {"kind": type(density).__name__, **density.config()} for name, density in self.densities.items()
            },
            "task": self.extractor.task.name,
            "output": self.extractor.output,
            "condition": self.condition,
            "combine": self.combine,
            "seed": self.extractor.seed,
            "calibrated": self.calibrated,
            "threshold": self._threshold,
        }
        io.write(path, header, {**head.state_dict(), "weights": weights(self.model)})

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        model: nn.Module,
        *,
        device: torch.device | str | None = None,
        unpack: Adapter | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Read a detector that `save` wrote.

        Args:
            path: the file.
            model: the network it was fitted for.
            device: where to put what was fitted; None is where the model is.
            unpack: as for the class; functions are not saved.
            progress: as for the class.
        """
        header, tensors = io.read(path)
        check_same(model, header["model"], tensors.pop("weights"), path)
        head = Head.from_config(header["head"])
        head.load_state_dict(tensors)
        densities = {}
        for name, config in header["densities"].items():
            densities[name] = KINDS[config.pop("kind")].from_config(config)
        detector = cls(
            model,
            {name: reduction.reduce for name, reduction in head.reductions.items()},
            densities,
            task=header["task"],
            output=header["output"],
            condition=header["condition"],
            combine=header["combine"],
            unpack=unpack,
            seed=header["seed"],
            progress=progress,
        )
        detector.head = head.to(device or device_of(model) or "cpu")
        detector._reductions = detector.head.reductions
        detector.calibrated, detector._threshold = header["calibrated"], header["threshold"]
        return detector

    def __repr__(self) -> str:
        state = "not fitted" if self.head is None else f"calibrated: {self.calibrated}, threshold: {self._threshold}"
        return f"LatentDensity({type(self.model).__name__}, layers={self.layers}, {state})"

    @property
    def _top(self) -> str:
        return self.layers[-1] if self.combine == "last" else self.combine

    def _fitted(self) -> Head:
        if self.head is None:
            raise RuntimeError("this detector is not fitted: call fit(train_loader, calibration=unseen_loader) first.")
        return self.head

    def _score(self, batch: Batch, index: int | None = None) -> Uncertainty:
        head = self._fitted()
        output, reduced = self.extractor.read(batch, head.reductions, index)
        assert self.extractor.task is not None
        prediction, _ = self.extractor.task.predict(output)
        return self._result(prediction, head.score(reduced))

    def _result(self, prediction: Tensor, scores: Mapping[str, LayerScores]) -> Uncertainty:
        top = scores[self._top]
        return Uncertainty(
            prediction, top.epistemic, top.aleatoric, top.log_aleatoric, top.p_value, scores, self._threshold
        )

    def _condition(self, features: Features) -> Tensor:
        if self.condition == "prediction":
            return features.prediction
        label = features.label
        if label is None or label.dim() != 1 or label.is_floating_point():
            got = "none" if label is None else f"{tuple(label.shape)} of {label.dtype}"
            raise ValueError(f"condition='label' needs one whole-numbered label an input in the loader, but got {got}.")
        return label.long().to(features.prediction.device)

    def _require(self, features: Features, reductions: Mapping[str, Reduction]) -> None:
        missing = [name for name in self.layers if name not in features.z]
        if missing:
            raise ValueError(f"the features have no layer {missing}; they have {list(features.z)}.")
        other = [name for name in self.layers if not features.reductions[name].same_as(reductions[name])]
        if other:
            raise ValueError(
                f"the features of layer {other} were reduced otherwise than those that the density is fitted to: "
                "extract both with the same detector."
            )


@contextmanager
def _layer_in_warnings(name: str) -> Iterator[None]:
    """Say which layer a density warns about, to the caller of `fit`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        warnings.warn(f"layer {name!r}: {warning.message}", warning.category, stacklevel=4)


def _layers(layers: str | Sequence[str] | Mapping[str, Reduce], default: Reduce) -> dict[str, Reduce]:
    if isinstance(layers, str):
        layers = [layers]
    if isinstance(layers, Mapping):
        chosen = dict(layers)
    else:
        chosen = dict.fromkeys(layers, default)
        if len(chosen) != len(layers):
            raise ValueError(f"a layer is named twice in {list(layers)}.")
    if not chosen:
        raise ValueError("name at least one layer. List them with layers(model, example).")
    return chosen


def _densities(density: Density | Mapping[str, Density], layers: Mapping[str, Reduce]) -> dict[str, Density]:
    if isinstance(density, Density):
        return dict.fromkeys(layers, density)
    if set(density) != set(layers):
        raise ValueError(f"density names the layers {list(density)}, layers= names {list(layers)}: name the same ones.")
    return dict(density)
