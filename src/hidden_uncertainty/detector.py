"""`Detector`: one estimator for all methods. It reads a network, fits terms, calibrates, scores, saves and loads."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from torch import nn

from . import io
from .abilities import require
from .exporting import Compiled
from .extract import AsIs, Extractor, Features, NoReader, PixelExtractor, Pixels, Reader, Reading
from .fitting import State, calibrate, check_features, check_state, fit_data, fit_loader, gather, read_unseen, work
from .model.batches import Adapter
from .model.layers import with_names
from .model.tasks import Condition, Task, TaskName, as_task
from .notes import warn
from .progress import bars
from .reduce import Reduction
from .scoring.combination import Combination, Combine, check_combine
from .scoring.decisions import Decisions
from .scoring.fitted import Calibrated, Fitted, load, save
from .scoring.head import FittedTerm, Head, counted
from .scoring.terms import Term, by_name
from .uncertainty import Uncertainty

_lock = threading.Lock()  # held while what was fitted is replaced


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


class Detector(Decisions):
    """Scores inputs of a trained network by terms that read its layers or outputs.

    `LatentDensity` and all of `baselines` are detectors. The model is never changed, moved or saved.

    Args:
        model: any trained `nn.Module`; None to fit and score features alone (`Features.from_arrays`).
        terms: what is read, and by which methods it is scored.
        combine: how the terms' epistemic scores become one: `"last"` takes the last term's; `"mean"` averages them,
            each standardised by its mean and deviation on training data; a mapping from names to weights takes the
            weighted sum of the scores as they are; `"fisher"` combines how rare each is (see `Combination`). What is
            not combined, such as the aleatoric score, is that of the last term that counts.
        condition: fit given the network's predictions, as in the paper, or given the labels.
        task: what the network predicts, `"classification"`, `"regression"`, or a task that says more; None infers it
            where the outputs leave no doubt, and logs it.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        pixels: for networks that predict a class or a number for every pixel: how these are drawn, scored and
            calibrated. Every score is then a map (n, H, W).
        unpack: turns what a loader gives into `(inputs, label)`, when it gives neither `x`, `(x, y)` nor a dict.
        seed: of random projections, and of which pixels are drawn.
        progress: show progress bars; None shows them on a terminal.
        reader: replaces the reading of layers and outputs, for methods that run networks in their own way.

    Example:
        >>> from hidden_uncertainty.scoring.bayes import DensityMethod
        >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> x = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
        >>> detector = Detector(model, [Term(DensityMethod(), "0")], task="classification").fit(x.split(100))
        >>> detector(x[:5]).epistemic.shape
        torch.Size([5])
    """

    kinds: ClassVar[dict[str, type[Detector]]] = {}  # every detector by its name, for files

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        io.register(Detector.kinds, cls)

    def __init__(
        self,
        model: nn.Module | None,
        terms: Sequence[Term],
        *,
        combine: Combine | str = "last",
        condition: Condition = "prediction",
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        pixels: Pixels | None = None,
        unpack: Adapter | None = None,
        seed: int = 0,
        progress: bool | None = None,
        reader: Reader | None = None,
    ) -> None:
        self.terms = by_name(terms)
        if condition not in ("prediction", "label"):
            raise ValueError(f"condition must be 'prediction' or 'label', not {condition!r}.")
        if pixels is not None:
            if not isinstance(pixels, Pixels):
                raise TypeError(f"pixels must be Pixels(...) or None, not {pixels!r}.")
            require(self, "pixels")
        self.combine = check_combine(with_names(model, combine), list(self.terms))
        self.condition, self.pixels, self.seed, self.progress = condition, pixels, io.plain(seed), progress
        self._combination = Combination(self.combine, self.layers)
        self._fits = self._combination.learns or any(term.method.fits for term in terms)
        options: dict[str, Any] = {"task": as_task(task, output), "output": output, "unpack": unpack}
        if model is None:
            reader = reader or NoReader(**options)
        elif reader is None:
            sources = {name: term.source for name, term in self.terms.items()}
            options["seed"] = self.seed
            if pixels is not None:
                options |= {"pixels": pixels, "condition": condition, "grid_of": self._combination.leading}
            reader = (Extractor if pixels is None else PixelExtractor)(model, sources, **options)
        self.reader = reader
        self._reductions: Mapping[str, Reduction] | None = None
        self._gathered: State | None = None  # what it was fitted to, where that is sums
        self._state = None if self._fits else self._unfitted()

    @property
    def model(self) -> nn.Module:
        """The network, as it was given."""
        return self.reader.model

    @property
    def layers(self) -> list[str]:
        """The names of the terms: those of the layers, `"outputs"` for the network's own."""
        return list(self.terms)

    @property
    def task(self) -> Task | None:
        """What the network predicts; None until it is known."""
        return self.reader.task

    @property
    def unit(self) -> str:
        """The unit of the epistemic score: the leading term's, or that which a combination brings all scores to."""
        if self._combination.learns:
            return "nats" if self._combination.tails else "deviations"
        return self.terms[self._combination.leading].method.unit

    @property
    def head(self) -> Head | None:
        """What was fitted, as a module; None before that."""
        return None if self._state is None else self._state.head

    @property
    def calibrated(self) -> Calibrated | None:
        """What kind of data p-values and thresholds come from."""
        return None if self._state is None else self._state.calibrated

    def fit(
        self,
        loader: Iterable[Any],
        calibration: Iterable[Any] | None = None,
        *,
        holdout: float | None = None,
        process_group: Any = None,
        spill: str | PathLike[str] | None = None,
    ) -> Self:
        """Fit to the activations on training data.

        Methods with one Gaussian per class are fitted in a stream, in memory that does not depend on the number of
        inputs; others keep reduced activations. Processes of `torch.distributed`, which must all call this, each read
        their own shard, and end with what one would fit to all data.

        Args:
            loader: the training data, as `x`, `(x, y)` or dicts; labels are needed for `condition="label"` only, and
                to tell which pixels to ignore. It is read once, and once or twice more when a layer is wider than its
                `max_dim`; for pixels it is read once, and once more for a holdout. Methods that look at outputs alone
                have nothing to fit and do not read it.
            calibration: data that the network was not trained on, for p-values and thresholds with a guarantee; with
                labels, for what `Decisions` has too. With `combine="fisher"`, the combination is learnt from a third.
            holdout: instead, a share of the loader's inputs to set apart for that. The network was trained on them
                and may find them more familiar than new data; alarms may then come far more often than asked for.
            process_group: which processes fit together; None is all there are, False is this one alone.
            spill: a folder for the features of mixtures, which are then fitted over passes of a file that is removed.
        """
        with work(self, process_group):
            ready, loader = self._ready(loader)
            ready._keep(*fit_loader(ready, loader, calibration, holdout, spill))
        self._become(ready)
        if holdout is not None:
            warn(
                "calibrated on a part of the training data, which the network has seen: p-values and thresholds come "
                "without their guarantee. Pass calibration= with unseen data for it."
            )
        return self

    def gather(self, loader: Iterable[Any], *, process_group: Any = None) -> State:
        """Sums over training data, to be added, saved, sent, and fitted to by `fit_state`; rows where sums do not do.

        Reductions that are not fitted yet are fitted to this loader. Processes of a group get the sums of all shards.
        """
        with work(self, process_group):
            ready, loader = self._ready(loader) if self._reductions is None else (self, loader)
            state = gather(ready, loader, self._reductions)
        self._become(ready)
        if state.sample is not None:
            self._reductions = state.sample.reductions
        return state

    def fit_state(self, state: State, calibration: Iterable[Any] | None = None, *, process_group: Any = None) -> Self:
        """Fit to what `gather` gave, of one loader or added up of several, and calibrate with unseen data."""
        check_state(self, state)
        with work(self, process_group):
            self.reader.task = self.reader.task or state.sample.task  # type: ignore[union-attr]
            fitted = fit_data(self, state, calibration)
        return self._keep(fitted, state)

    def partial_fit(
        self, loader: Iterable[Any], calibration: Iterable[Any] | None = None, *, process_group: Any = None
    ) -> Self:
        """Fit to more data: what a fit to all would give, with the reductions of the first; see `gather`.

        For methods that are not fitted to sums, such as mixtures, this is approximate beyond 65,536 inputs: they are
        fitted to as many, chosen by what they hold, of all that came.
        Scores change, so p-values and thresholds need unseen data again: pass `calibration=`, then call `threshold`.
        """
        if self._gathered is None and self._state is not None and self._fits:
            raise RuntimeError(
                "this detector was loaded, or fitted without keeping sums or a sample of rows: begin with "
                "partial_fit instead of fit, or keep state = detector.gather(loader) with it, and call "
                "fit_state(state + detector.gather(more))."
            )
        state = self.gather(loader, process_group=process_group)
        return self.fit_state(state + (self._gathered or 0), calibration, process_group=process_group)

    def extract(self, loader: Iterable[Any]) -> Features:
        """Run the network over a loader and keep its activations, reduced as fitted, or as this loader asks for.

        For pixels, these are rows drawn as for a fit.
        """
        require(self, "features")
        with bars(self.progress), self.reader.tentative():
            if self._reductions is not None:
                return self.reader.extract(loader, self._reductions)
            ready, loader = self._ready(loader)
            features, _ = ready.reader.fit(loader)
        assert features is not None
        ready._reductions = features.reductions
        self._become(ready)
        return features

    def fit_features(self, features: Features, calibration: Features | None = None) -> Self:
        """Fit to features of training data that `extract` gave, of any detector, and calibrate with unseen ones."""
        require(self, "features")
        check_features(self, features, calibration)
        with work(self, False):
            if self.reader.task is None:
                own = self.reader.output is not None and self.reader.output != features.task.output
                self.reader.task = type(features.task)(self.reader.output) if own else features.task
            fitted = fit_data(self, features, unseen=calibration)
        return self._keep(fitted)

    def calibrate(self, loader: Iterable[Any], *, process_group: Any = None) -> Self:
        """Calibrate with other unseen data; what was fitted stays. Set the threshold again."""
        fitted = self._fitted()
        with work(self, process_group):
            unseen, kept = read_unseen(self, loader, fitted.head.reductions)
            return self._keep(calibrate(self, fitted, unseen, "unseen", kept), self._gathered)

    def __call__(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Score inputs: one batch as a loader gives it, `detector(batch)`, or several as the model takes them."""
        fitted = self._fitted()
        reading = self.reader.reading(self.reader.called(*args, **kwargs), fitted.head.reductions)
        (u,) = map(fitted.result, counted([reading]))
        return u

    def predict(self, loader: Iterable[Any]) -> Uncertainty:
        """Score all of a loader; the result is on the CPU. For pixels, all images must have one size."""
        fitted = self._fitted()
        with bars(self.progress):
            batches = enumerate(self.reader.batches(loader, "scoring"))
            readings = (self.reader.reading(batch, fitted.head.reductions, index) for index, batch in batches)
            return Uncertainty.cat([fitted.result(reading).cpu() for reading in counted(readings)])

    def read(self, *args: Any, **kwargs: Any) -> Reading:
        """Run the network on inputs, given as it takes them: its predictions, and what each term reads as rows."""
        return self.reader.reading(self.reader.called(*args, **kwargs), self._fitted().head.reductions)

    def predict_features(self, features: Features) -> Uncertainty:
        """Score features that `extract` gave."""
        require(self, "features")
        fitted = self._fitted()
        Features.require(features, self.layers, fitted.head.reductions)
        (u,) = map(fitted.result, counted(features.readings()))
        return u

    def threshold(self, false_alarm: float, confidence: float | None = None) -> float:
        """The score above which inputs are surprising from now on (`u.surprising`), chosen without any outlier.

        Each layer gets one of its own at the same rate (`u.layers[name].surprising`). For pixels, an image is a false
        alarm when more than a `share` of its pixels are surprising (see `Pixels`).

        Args:
            false_alarm: at most this share of new in-distribution inputs is called surprising, on average over
                calibration sets (see `Calibration` for what that takes).
            confidence: have it hold for this one calibration set, with this probability.
        """
        with _lock:  # so that what another thread has calibrated meanwhile is not lost
            self._state = after = self._fitted().alarm(false_alarm, confidence)
        assert after.threshold is not None
        return after.threshold

    def compile(self) -> Compiled:
        """A scorer that runs network and uncertainty as one compiled graph: for services that score few inputs at once.

        It needs a C++ compiler, and compiles at its first call, for inputs of that call's size in any number.
        """
        return Compiled(self)

    def to(self, device: torch.device | str) -> Self:
        """Move what was fitted; the model stays where it is."""
        fitted = self._fitted()
        # A copy, as other threads may score with what there is; precisions stay.
        return self._keep(replace(fitted, head=copy.deepcopy(fitted.head).to(torch.device(device))), self._gathered)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what was fitted to a safetensors file; the model is not in it."""
        require(self, "save")
        save(self, self._fitted(), path)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        model: nn.Module | None,
        *,
        device: torch.device | str | None = None,
        unpack: Adapter | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Read a detector that `save` wrote; what a subclass of your own sets in its `__init__` is not in the file.

        Args:
            path: the file.
            model: the network it was fitted for; None where it had none.
            device: where to put what was fitted; None is where the model is.
            unpack, progress: as for the class; they are not saved.
        """
        detector, fitted = load(cls, Detector, path, model, device, unpack=unpack, progress=progress)
        return detector._keep(fitted)

    def __repr__(self) -> str:
        fitted = self._state
        state = "not fitted" if fitted is None else f"calibrated: {fitted.calibrated}, threshold: {fitted.threshold}"
        return f"{type(self).__name__}({type(self.model).__name__}, layers={self.layers}, {state})"

    def _fitted(self) -> Fitted:
        if self._state is None:
            raise RuntimeError(
                f"this {type(self).__name__} is not fitted: call fit(train_loader, calibration=unseen_loader) first."
            )
        return self._state

    def _ready(self, loader: Iterable[Any]) -> tuple[Self, Iterable[Any]]:
        """What to fit, whose terms may be known only when the model has seen some inputs; and all of the loader."""
        return self, loader

    def _become(self, ready: Self) -> None:
        if ready is not self:
            self.__dict__ = {**self.__dict__, **ready.__dict__}  # in one step, as others may be scoring

    def _keep(self, fitted: Fitted, data: Any = None) -> Self:
        with _lock:
            self._state, self._reductions = fitted, fitted.head.reductions
            self._gathered = data if isinstance(data, State) else None
        return self

    def _unfitted(self) -> Fitted:
        """The methods as they are, where there is nothing to fit to features."""
        parts = {name: FittedTerm(AsIs(), copy.deepcopy(term.method)) for name, term in self.terms.items()}
        return Fitted(Head(parts, self._combination))
