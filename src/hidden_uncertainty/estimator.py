"""`LatentDensity`: uncertainty from the density of a trained network's activations."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from . import io
from ._calibrate import calibrate
from ._condition import default_density
from ._fit import fit_head
from ._options import chosen_densities, chosen_layers
from ._pixel_extract import PixelExtractor
from ._reading import Reading
from .batches import Adapter, Batch
from .capture import device_of
from .density import KINDS, Density
from .distribution import OutputDistribution
from .extract import Condition, Extractor, Features, Unseen
from .head import Head, build, with_kind
from .identity import check_same, describe, weights
from .marginal import KINDS as MARGINALS
from .marginal import Categorical, Marginal
from .marginal.base import MarginalName
from .pixels import Pixels
from .reduce import How, Reduce, Reduction
from .tasks import Task, TaskName, as_task, from_config
from .uncertainty import Uncertainty

MOST_MASSES = 1 << 29  # of distributions at a time: 2 GiB of float32


class LatentDensity:
    r"""Epistemic and aleatoric uncertainty of a trained network, from the density of its hidden activations.

    .. math::
        \text{epistemic} = -\log p(z) = -\log \sum_{\hat y} p(z \mid \hat y)\, p(\hat y), \qquad
        \text{aleatoric} = -\sum_{\hat y} p(\hat y \mid z) \log p(\hat y \mid z)

    with z the activations of a layer, reduced to at most `max_dim` dimensions (paper, eq. 5, 6 and Algorithm 1); the
    sums are integrals where the network predicts numbers. The model is referenced, not owned: it is never changed,
    moved or saved.

    Args:
        model: any trained `nn.Module`.
        layers: the dotted name of a layer, several of them, or a mapping from names to how each is reduced
            (`Reduce`). List them with `layers(model, example)`.
        density: p(z | ŷ), copied for every layer; or a mapping with one for each layer. None is a `GaussianMixture` a
            class for classes and a `JointMixture` for numbers.
        max_dim: layers that are wider are reduced to this many dimensions; None never reduces.
        reduce: how a layer's output becomes a vector: `"flatten"`, `"channels"`, `"tokens"`, `"token"`, `"project"`, or
            a `Reduce`, whose own `max_dim` then counts.
        task: what the network predicts, `"classification"`, `"regression"`, or a `Regression` that says where a
            predicted variance is; None infers it where the outputs leave no doubt, and says so.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        condition: fit p(z | ŷ) given the network's predictions, as in the paper, or given the labels. With predictions
            p(ŷ | z) is as narrow as the density allows, since ŷ is a function of z; labels show the noise of the data.
        marginal: p(ŷ) of numbers: `"auto"` chooses by held-out likelihood among `"uniform"`, `"gaussian"`,
            `"beta-prime"` and `"histogram"`; a marginal of your own can say its support too.
        combine: which layer the top-level scores are: `"last"` named, or a layer's name.
        pixels: for networks that predict a class or a number for every pixel: how these are drawn, scored and
            calibrated. Every score is then a map (n, H, W).
        unpack: turns what a loader gives into `(inputs, label)`, when it gives neither `x`, `(x, y)` nor a dict.
        seed: of random projections, and of which pixels are drawn.
        progress: show progress bars; None shows them on a terminal.

    Example:
        >>> from hidden_uncertainty import GaussianMixture
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
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        condition: Condition = "prediction",
        marginal: MarginalName | Literal["auto"] | Marginal = "auto",
        combine: str = "last",
        pixels: Pixels | None = None,
        unpack: Adapter | None = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        default = reduce if isinstance(reduce, Reduce) else Reduce(reduce, max_dim=max_dim)
        chosen = chosen_layers(layers, default)
        if condition not in ("prediction", "label"):
            raise ValueError(f"condition must be 'prediction' or 'label', not {condition!r}.")
        if combine != "last" and combine not in chosen:
            raise ValueError(f"combine must be 'last' or one of the layers {list(chosen)}, not {combine!r}.")
        if isinstance(marginal, str) and marginal not in ("auto", *get_args(MarginalName)):
            raise ValueError(
                f"marginal must be 'auto', one of {get_args(MarginalName)} or a marginal, not {marginal!r}."
            )
        self.densities = None if density is None else chosen_densities(density, chosen)
        self.condition, self.marginal, self.combine, self.progress = condition, marginal, combine, progress
        self.pixels = pixels
        options: dict[str, Any] = {"unpack": unpack, "seed": seed, "progress": progress}
        options |= {"task": as_task(task, output), "output": output}
        if pixels is None:
            self.extractor = Extractor(model, chosen, **options)
        else:
            top = list(chosen)[-1] if combine == "last" else combine
            self.extractor = PixelExtractor(model, chosen, pixels=pixels, condition=condition, grid_of=top, **options)
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
            loader: the training data, as `x`, `(x, y)` or dicts; labels are needed for `condition="label"` only, and
                to tell which pixels to ignore. It is read once, and once or twice more when a layer is wider than its
                `max_dim`; of pixels, once, and once more for a holdout.
            calibration: data that the network was not trained on, for p-values and thresholds with a guarantee.
            holdout: instead, a share of the loader's inputs to set apart for that. The network was trained on them
                and may find them more familiar than new data; alarms may then come far more often than asked for.
        """
        if calibration is not None and holdout is not None:
            raise ValueError("pass calibration or holdout, not both.")
        if holdout is not None and not 0 < holdout < 1:
            raise ValueError(f"holdout is a share between 0 and 1, not {holdout}.")
        train, apart = self.extractor.fit(loader, held_out=holdout or 0.0)
        unseen = apart if holdout is not None else None
        if calibration is not None:
            unseen = self.extractor.unseen(calibration, train.reductions)
        self._fit(train, unseen)
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

        Of pixels, these are rows drawn as for a fit. Layers are reduced as fitted; if nothing is fitted yet, reductions
        are fitted to this loader and kept.
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
        features.require(self.layers, features.reductions)
        if calibration is not None:
            calibration.require(self.layers, features.reductions)
            if calibration.population is not None:
                raise ValueError(
                    "thresholds for pixels are calibrated over whole images, not over pixels that were drawn: call "
                    "fit_features(features), then calibrate(unseen_loader)."
                )
        self.extractor.take_task(features)
        return self._fit(features, calibration)

    def calibrate(self, loader: Iterable[Any]) -> Self:
        """Take p-values and thresholds from other data than before; what was fitted stays.

        Args:
            loader: data that the network was not trained on.
        """
        head = self._fitted()
        calibrate(head, self.extractor.unseen(loader, head.reductions).readings())
        self.calibrated, self._threshold = "unseen", None
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Score inputs, given as the model takes them."""
        return self._score(self._batch(args, kwargs))

    def predict(self, loader: Iterable[Any]) -> Uncertainty:
        """Score all of a loader; the result is on the CPU. Of pixels, all images must have one size."""
        self._fitted()
        batches = self.extractor.batches(loader)
        return Uncertainty.cat([self._score(batch, index).cpu() for index, batch in enumerate(batches)])

    def predict_features(self, features: Features) -> Uncertainty:
        """Score features that `extract` gave."""
        head = self._fitted()
        features.require(self.layers, head.reductions)
        return self._result(next(features.readings()))

    def distribution(self, *args: Any, **kwargs: Any) -> OutputDistribution:
        """p(ŷ | z) as a whole, for networks that predict one number: quantiles, and regions of asked mass.

        Inputs are given as the model takes them; z is that of the layer that `combine` names. Of pixels, there is one
        for each, row by row of each image.
        """
        head, top = self._fitted(), self._top
        reading = self.extractor.reading(self._batch(args, kwargs), {top: head.reductions[top]})
        prediction = reading.prediction.value.to(head.device)
        prediction = prediction if self.pixels is None else prediction.flatten()
        points = head.marginal.nodes(prediction[:1]).points
        if points.dim() != 1 or isinstance(head.marginal, Categorical):
            raise TypeError("a distribution over a grid is for networks that predict one number an input.")
        if len(prediction) * len(points) > MOST_MASSES:
            raise ValueError(
                f"the distributions of {len(prediction):,} numbers on {len(points):,} points would take "
                f"{len(prediction) * len(points) * 4 / 1e9:,.0f} GB: give fewer inputs at a time, or smaller ones."
            )
        log_mass: list[Tensor] = []
        for z, _, said in reading.rows(top):
            rows = z.to(head.device), head.marginal, said.to(head.device)
            log_mass += head.layers[top].posteriors(*rows, lambda p, *_: p.log_posterior)
        return OutputDistribution(points, torch.cat(log_mass), prediction)

    def interval(self, u: Uncertainty, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        r"""Bounds that hold the label of a share of new inputs, whatever the density: split conformal prediction.

        .. math:: \hat y \pm q\, s(z), \qquad s(z)^2 = E[(y - \hat y)^2 \mid z]

        with q from the errors on the calibration data, in units of s(z): P(y between) ≥ coverage over calibration and
        new inputs, if these are exchangeable. Of several outputs, all lie between together. Where s(z) follows the
        noise of the data, as it can with `condition="label"`, so do the bounds. Of pixels, an image counts as held when
        the labels of all but a `share` of its pixels lie between (see `Pixels`).

        Args:
            u: scores of this detector.
            coverage: the share asked.
        """
        conformal = self._fitted().layers[self._top].conformal
        if conformal is None or u.expected_error is None:
            raise RuntimeError(
                "intervals are for networks that predict numbers and need labelled data that the network was not "
                "trained on: call fit(train, calibration=unseen) with a loader that gives (x, y)."
            )
        half = conformal.covering(coverage) * u.expected_error.to(u.prediction.device)
        return u.prediction - half, u.prediction + half

    def threshold(self, false_alarm: float, confidence: float | None = None) -> float:
        """The score above which inputs are surprising from now on (`u.surprising`), chosen without any outlier.

        Of pixels, an image is a false alarm when more than a `share` of its pixels are surprising (see `Pixels`).

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
        self._fitted().to(torch.device(device))  # precisions stay
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Write what was fitted to a safetensors file; the model is not in it."""
        head = self._fitted()
        assert self.extractor.task is not None
        header = {
            "head": head.config(),
            "model": describe(self.model),
            "densities": {name: with_kind(density) for name, density in (self.densities or {}).items()},
            "task": self.extractor.task.config(),
            "marginal": self.marginal if isinstance(self.marginal, str) else with_kind(self.marginal),
            "condition": self.condition,
            "combine": self.combine,
            "pixels": None if self.pixels is None else self.pixels.config(),
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
        marginal: Any = header["marginal"]
        pixels = header.get("pixels")  # not in files of version 0.1.0
        detector = cls(
            model,
            {name: reduction.reduce for name, reduction in head.reductions.items()},
            {name: build(KINDS, config, "density") for name, config in header["densities"].items()} or None,
            task=from_config(header["task"]),
            condition=header["condition"],
            marginal=build(MARGINALS, marginal, "marginal") if isinstance(marginal, dict) else marginal,
            combine=header["combine"],
            pixels=None if pixels is None else Pixels.from_config(pixels),
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

    def _fit(self, features: Features, unseen: Unseen | None) -> Self:
        densities = self.densities or chosen_densities(default_density(features.classes), self.extractor.layers)
        head = fit_head(features, densities, self.marginal, self.condition, progress=self.progress)
        if unseen is not None:
            calibrate(head, unseen.readings())
        self.head, self._reductions = head, head.reductions
        self.calibrated, self._threshold = None if unseen is None else "unseen", None
        return self

    def _score(self, batch: Batch, index: int | None = None) -> Uncertainty:
        return self._result(self.extractor.reading(batch, self._fitted().reductions, index))

    def _batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Batch:
        batch, device = Batch(args, kwargs, None), device_of(self.model)
        return batch if device is None else batch.to(device)

    def _result(self, reading: Reading) -> Uncertainty:
        scores = self._fitted().score(reading)
        top = scores[self._top]
        return Uncertainty(
            reading.prediction.value,
            top.epistemic,
            top.aleatoric,
            top.log_aleatoric,
            top.p_value,
            scores,
            self._threshold,
            top.expected_error,
            reading.prediction.variance,
        )
