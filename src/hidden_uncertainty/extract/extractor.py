"""From a model and a loader to reduced activations and predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from ..model.batches import Adapter, Batch, batches, called, count, dtype_of, names_of, require_repeatable
from ..model.capture import device_of, find, named, run
from ..model.infer import check_task, infer_task, warn_of_others
from ..model.tasks import Prediction, Task, finite
from ..notes import note
from ..progress import progress_bar
from ..reduce import Reduce, Reduction, ReductionFit
from .activations import activation_of
from .checks import check_count, refuse
from .features import AsIs, Features, Reading, Rows, Unseen
from .pixels import Pixels

Read = Callable[[Tensor], Any]


@dataclass(frozen=True)
class Source:
    """What a term reads, and how it becomes a vector.

    Args:
        layer: the dotted name of a layer, or None for the network's own outputs.
        reduce: how it is reduced.
    """

    layer: str | None
    reduce: Reduce

    def fits(self, reduction: Reduction) -> bool:
        """Whether a reduction was fitted to the same part of the same layer, however it reduces that."""
        if self.layer is None or isinstance(reduction, AsIs):
            return self.layer is None and isinstance(reduction, AsIs)
        theirs = reduction.reduce
        return (self.layer, self.reduce.read, self.reduce.select) == (reduction.layer, theirs.read, theirs.select)


def require_sources(features: Features, sources: Mapping[str, Source]) -> None:
    """Raise unless features were read where terms read."""
    other = [name for name, source in sources.items() if not source.fits(features.reductions[name])]
    if other:
        raise ValueError(
            f"the features of {other} were read elsewhere than this detector reads: extract them with a detector that "
            "has the same layers, and the same read= and select= in Reduce(...)."
        )


class Pass(NamedTuple):
    """What one run of the network gave."""

    task: Task
    prediction: Prediction
    found: dict[str, Any]  # what was made of what each term reads
    unusable: Tensor | None  # for which inputs or pixels something is NaN or infinite; zeros are read instead


class Reader:
    """Runs a network over batches; what is read of each, subclasses say with `reading`.

    Args:
        model: any `nn.Module`.
        task: what it predicts, or None to infer it from its first output.
        output: which tensor, when the network returns several.
        unpack: for loaders that give something else than `x`, `(x, y)` or a dict.
    """

    pixels: Pixels | None = None
    learns = True  # whether training data teach the reading itself something
    repeats = True  # whether an input is read alike each time, but for rounding

    def __init__(
        self, model: nn.Module, *, task: Task | None, output: int | str | None, unpack: Adapter | None = None
    ) -> None:
        self.model, self.task, self.output, self.unpack = model, task, output, unpack
        self._compared = False

    def fit(self, loader: Iterable[Any], *, holdout: float = 0.0) -> tuple[Features | None, Unseen | None]:
        """Fit what reading needs to training data; what is set apart comes second.

        Args:
            loader: the training data.
            holdout: share of inputs, chosen by content, to set apart.
        """
        raise NotImplementedError

    def extract(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Features:
        """Read all of a loader, with reductions that were fitted before."""
        raise NotImplementedError

    def unseen(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Unseen:
        """What to calibrate with: all of a loader."""
        raise NotImplementedError

    def reading(
        self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None, *, labels: bool = False
    ) -> Reading:
        """Run the network on one batch.

        Args:
            batch: where the model is.
            reductions: from what each term reads to z.
            index: the number of the batch, for errors.
            labels: take the batch's labels along, to calibrate with: NaN and infinities are then an error.
        """
        raise NotImplementedError

    def batches(self, loader: Iterable[Any], what: str) -> Iterator[Batch]:
        """The batches of a loader, where the model is, behind a bar that says what is done with them."""
        with progress_bar(what, count(loader)) as bar:
            for batch in self._batches(loader):
                yield batch
                bar.advance()

    def called(self, *args: Any, **kwargs: Any) -> Batch:
        """What a detector was called with, where the model is."""
        batch, device = called(args, kwargs, self.unpack, dtype_of(self.model)), device_of(self.model)
        return self._named(batch if device is None else batch.to(device))

    def _batches(self, loader: Iterable[Any]) -> Iterator[Batch]:
        return map(self._named, batches(loader, self.unpack, device_of(self.model), dtype_of(self.model)))

    def _named(self, batch: Batch) -> Batch:
        return replace(batch, names=names_of(next(named(self.model))[1]))

    @contextmanager
    def tentative(self) -> Iterator[None]:
        """A task that is found inside the block is not kept when the block fails."""
        task = self.task
        try:
            yield
        except BaseException:
            self.task = task
            raise

    def known_task(self, output: Any, batch: Batch) -> Task:
        """The task, inferred from the first output when it was not given."""
        if self.task is None:
            self.task = infer_task(output, batch.label, self.output, pixels=self.pixels is not None)
            predict = self.task.predict if self.pixels is None else self.task.predict_pixels
            note(f"task: {self.task.describe(predict(output))}. Pass task= to say otherwise.")
        if batch.label is not None:
            check_task(self.task, output, batch.label)
        if not self._compared:
            self._compared = True
            warn_of_others(self.task, output)
        return self.task


class NoNetwork(nn.Module):
    """Stands for the model of a detector that has none."""


class NoReader(Reader):
    """Reads nothing, for detectors without a network, which take features alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(NoNetwork(), **options)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            "this detector was built without a network, so it takes features, not inputs: call fit_features and "
            "predict_features with Features.from_arrays(z, prediction), or build it with the model."
        )

    batches = fit = extract = unseen = reading = _refuse


class Extractor(Reader):
    """Reads chosen layers of a model, batch by batch, and never keeps an activation that it has not reduced.

    Args:
        model: any `nn.Module`.
        sources: what each term reads, by the term's name.
        seed: of random projections.
        options: those of `Reader`.
    """

    def __init__(self, model: nn.Module, sources: Mapping[str, Source], *, seed: int, **options: Any) -> None:
        find(model, [source.layer for source in sources.values() if source.layer is not None])
        super().__init__(model, **options)
        self.sources, self.seed = dict(sources), seed
        self.learns = any(source.layer is not None for source in sources.values())

    def fit(self, loader: Iterable[Any], *, holdout: float = 0.0) -> tuple[Features, Unseen]:
        """Fit the reductions to a loader and extract its features.

        Args:
            loader: read once, and up to two times more if a layer is wide.
            holdout: share of inputs, chosen by content, that the reductions do not see and that come back second.
        """
        stream = self._batches(loader)
        first = next(stream)
        fits = self._reduction_fits()
        # A copy, as the batch is read again: networks may write into their inputs.
        self._read(first.clone(), {name: fit.probe for name, fit in fits.items()}, 0)
        passes = max((fit.passes_left or 0 for fit in fits.values()), default=0)
        require_repeatable(loader, passes + 1)
        seen: int | None = None
        for number in range(passes):
            whole = chain([first], stream) if number == 0 else self._batches(loader)
            inputs = 0
            with progress_bar(f"principal components, pass {number + 1} of {passes}", count(loader)) as bar:
                for index, batch in enumerate(whole):
                    keep = ~chosen(batch, holdout) if holdout else None
                    self._read(batch, {name: _rows(fit.update, keep) for name, fit in fits.items()}, index)
                    inputs += len(batch)
                    bar.advance()
            check_count(seen, inputs)
            seen = inputs
            for fit in fits.values():
                fit.end_pass()
        reductions = self._reductions(fits)
        whole = self._batches(loader) if passes else chain([first], stream)
        features, apart = self._extract(whole, reductions, count(loader), holdout)
        check_count(seen, len(features) + len(apart))
        return features, apart

    def extract(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Features:
        """Extract the features of a loader with reductions that were fitted before."""
        return self._extract(self._batches(loader), reductions, count(loader), 0.0)[0]

    def unseen(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Unseen:
        """The features of a loader."""
        return self.extract(loader, reductions)

    def reading(
        self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None, *, labels: bool = False
    ) -> Rows:
        """Run the network on one batch: its predictions, and each term's rows."""
        _, prediction, reduced, unusable = self._read(batch, reductions, index, strict=labels)
        return Rows(prediction, reduced, batch.label if labels else None, unusable=unusable)

    def _reduction_fits(self) -> dict[str, ReductionFit]:
        """What to fit to each layer; outputs are taken as they are."""
        return {
            name: ReductionFit(source.reduce, source.layer, seed=self.seed)
            for name, source in self.sources.items()
            if source.layer is not None
        }

    def _reductions(self, fits: Mapping[str, ReductionFit]) -> dict[str, Reduction]:
        return {name: fits[name].result() if name in fits else AsIs() for name in self.sources}

    def _read(self, batch: Batch, reads: Mapping[str, Read], index: int | None, *, strict: bool = True) -> Pass:
        """Run the network on one batch.

        Args:
            batch: where the model is.
            reads: what to make of what each term sees.
            index: the number of the batch, for errors.
            strict: whether NaN and infinities are an error.
        """
        outputs: dict[str, list[str]] = {}  # the terms that read what each layer gives
        inputs: dict[str, list[str]] = {}  # and what it is given
        for name in reads:
            source = self.sources[name]
            if source.layer is not None:
                (outputs if source.reduce.read == "output" else inputs).setdefault(source.layer, []).append(name)
        wrong: dict[str, Tensor] = {}  # where what a term reads is not finite
        found: dict[str, Any] = {}

        def tap(layer: str, names: list[str]) -> Callable[[Any], None]:
            def look(output: Any) -> None:
                for name in names:
                    reduce = self.sources[name].reduce
                    activation = activation_of(output, reduce, batch, layer, masked=self.pixels is None)
                    if not finite(activation):
                        wrong[name] = ~activation.isfinite()
                        if strict:
                            refuse(f"layer {layer!r} gave NaN or infinite activations", wrong[name], index)
                        activation = activation.masked_fill(wrong[name], 0)
                    found[name] = reads[name](activation)

            return look

        after, before = ({layer: tap(layer, names) for layer, names in some.items()} for some in (outputs, inputs))
        output, _ = run(self.model, after, batch.args, batch.kwargs, before=before)
        task = self.known_task(output, batch)
        prediction = self._predict(task, output, found)
        if strict and len(prediction.value) != len(batch):
            raise ValueError(f"the network gave {len(prediction.value)} predictions for {len(batch)} inputs.")
        unusable = task.unusable(output, prediction)
        if unusable is not None and strict:
            refuse("the network gave NaN or infinite outputs", unusable, index)
        for name, read in reads.items():
            if self.sources[name].layer is None:
                scores = self._outputs(task, output)
                # A class may be ruled out by -inf.
                found[name] = read(scores if unusable is None else scores.nan_to_num(0.0, 0.0, -math.inf))
        for name, values in wrong.items():
            rows = self._touched(values, name, prediction)
            unusable = rows if unusable is None else unusable | rows.to(unusable.device)
        return Pass(task, prediction, found, unusable)

    def _predict(self, task: Task, output: Any, found: Mapping[str, Any]) -> Prediction:
        return task.predict(output)

    def _outputs(self, task: Task, output: Any) -> Tensor:
        return task.scores(output)

    def _touched(self, wrong: Tensor, name: str, prediction: Prediction) -> Tensor:
        """Which inputs, (n,), have something wrong in what a term reads."""
        return wrong.reshape(len(wrong), -1).any(1)

    def _extract(
        self, stream: Iterable[Batch], reductions: Mapping[str, Reduction], total: int | None, holdout: float
    ) -> tuple[Features, Features]:
        """The features of a loader, without those of the inputs that are set apart, and those."""
        kept, apart = _Kept(), _Kept()
        with progress_bar("extracting features", total) as bar:
            for index, batch in enumerate(stream):
                # Before the network runs, which may write into its inputs.
                rows = chosen(batch, holdout)
                task, prediction, reduced, _ = self._read(batch, reductions, index)
                columns = {
                    **{f"z {name}": z for name, (z, _) in reduced.items()},
                    **{f"residual {name}": residual for name, (_, residual) in reduced.items()},
                    "prediction": prediction.value,
                    "variance": prediction.variance,
                    "label": None if batch.label is None else batch.label.clone(),  # the loader's own
                }
                kept.add(columns, ~rows)
                apart.add(columns, rows)
                bar.advance()
        return kept.features(task, prediction.classes, reductions), apart.features(task, prediction.classes, reductions)


class _Kept:
    """Rows of many batches, column by column."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Tensor]] = {}
        self._batches = 0

    def add(self, columns: Mapping[str, Tensor | None], rows: Tensor) -> None:
        """Add the rows of a batch that a mask (n,) takes: columns (n, ...), none of which shares memory with others."""
        self._batches += 1
        every = bool(rows.all())
        for name, values in columns.items():
            if values is not None:
                some = values if every else values[rows.to(values.device)]
                self._parts.setdefault(name, []).append(some)

    def features(self, task: Task, classes: int | None, reductions: Mapping[str, Reduction]) -> Features:
        """The rows as features."""
        return Features(
            z={name: torch.cat(self._parts.pop(f"z {name}")) for name in reductions},
            residual={name: self._joined(f"residual {name}") for name in reductions},
            prediction=torch.cat(self._parts.pop("prediction")),
            task=task,
            reductions=dict(reductions),
            label=self._joined("label"),
            classes=classes,
            variance=self._joined("variance"),
        )

    def _joined(self, name: str) -> Tensor | None:
        """A column, None where some batches had none."""
        parts = self._parts.pop(name, [])
        return torch.cat(parts) if len(parts) == self._batches else None


def chosen(batch: Batch, share: float) -> Tensor:
    """A share of inputs, chosen by a hash of their content: the same in every pass, however the loader shuffles."""
    return lowest(batch.digests(), share) if share else torch.zeros(len(batch), dtype=torch.bool, device="cpu")


def lowest(digests: np.ndarray, share: float) -> Tensor:
    """The share of digests that lie lowest of all there can be."""
    return torch.from_numpy(digests < np.uint64(min(share, 1.0) * (2**64 - 2**11)))


def _rows(update: Callable[[Tensor], None], keep: Tensor | None) -> Read:
    """An update that sees only the rows to keep."""
    if keep is None:
        return update

    def some(activation: Tensor) -> None:
        rows = activation[keep.to(activation.device)]
        if len(rows):
            update(rows)

    return some
