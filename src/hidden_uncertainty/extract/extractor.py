"""From a model and a loader to reduced activations and predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..model.batches import Adapter, Batch, batches, count, require_repeatable
from ..model.capture import device_of, find, run, select
from ..model.infer import infer_task
from ..model.tasks import Prediction, Task
from ..notes import note
from ..progress import progress_bar
from ..reduce import Reduce, Reduction, ReductionFit
from .features import Features, Reading, Rows, Unseen
from .pixels import Pixels

Read = Callable[[Tensor], Any]
OUTPUTS = "outputs"  # the name of a term that reads the network's own outputs


@dataclass(frozen=True)
class Source:
    """What a term reads, and how it becomes a vector.

    Args:
        layer: the dotted name of a layer, or None for the network's own outputs.
        reduce: how it is reduced.
    """

    layer: str | None
    reduce: Reduce


class AsIs(Reduction):
    """What is read of the network's outputs, which are never reduced."""

    def __init__(self) -> None:
        super().__init__(Reduce(max_dim=None), OUTPUTS, ())

    def forward(self, activation: Tensor) -> tuple[Tensor, Tensor | None]:
        """The outputs as they are."""
        return activation, None


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

    def __init__(
        self, model: nn.Module, *, task: Task | None, output: int | str | None, unpack: Adapter | None = None
    ) -> None:
        self.model, self.task, self.output, self.unpack = model, task, output, unpack

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
            labels: take the batch's labels along, to calibrate with.
        """
        raise NotImplementedError

    def batches(self, loader: Iterable[Any], what: str) -> Iterator[Batch]:
        """The batches of a loader, where the model is, behind a bar that says what is done with them."""
        with progress_bar(what, count(loader)) as bar:
            for batch in batches(loader, self.unpack, device_of(self.model)):
                yield batch
                bar.advance()

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
        return self.task


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
            _check_count(seen, inputs)
            seen = inputs
            for fit in fits.values():
                fit.end_pass()
        reductions = self._reductions(fits)
        whole = self._batches(loader) if passes else chain([first], stream)
        features, apart = self._extract(whole, reductions, count(loader), holdout)
        _check_count(seen, len(features))
        return features[~apart], features[apart]

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
        task, output, reduced = self._read(batch, reductions, index)
        return Rows(task.predict(output), reduced, batch.label if labels else None)

    def _batches(self, loader: Iterable[Any]) -> Iterator[Batch]:
        return batches(loader, self.unpack, device_of(self.model))

    def _reduction_fits(self) -> dict[str, ReductionFit]:
        """What to fit to each layer; outputs are taken as they are."""
        layers = {name: source for name, source in self.sources.items() if source.layer is not None}
        return {name: ReductionFit(source.reduce, name, seed=self.seed) for name, source in layers.items()}

    def _reductions(self, fits: Mapping[str, ReductionFit]) -> dict[str, Reduction]:
        return {name: fits[name].result() if name in fits else AsIs() for name in self.sources}

    def _read(self, batch: Batch, reads: Mapping[str, Read], index: int | None) -> tuple[Task, Any, dict[str, Any]]:
        """Run the network on one batch: its task, its output, and what each of `reads` makes of what its term sees."""
        layers: dict[str, list[str]] = {}  # the terms that read each
        for name in reads:
            layer = self.sources[name].layer
            if layer is not None:
                layers.setdefault(layer, []).append(name)

        def tap(layer: str) -> Callable[[Any], dict[str, Any]]:
            def look(output: Any) -> dict[str, Any]:
                found = {}
                for name in layers[layer]:
                    activation = select(output, self.sources[name].reduce.select, f"layer {layer!r}")
                    _check_activation(activation, layer, len(batch), index)
                    found[name] = reads[name](activation)
                return found

            return look

        output, kept = run(self.model, {layer: tap(layer) for layer in layers}, batch.args, batch.kwargs)
        found = {name: value for part in kept.values() for name, value in part.items()}
        task = self.known_task(output, batch)
        for name, read in reads.items():
            if self.sources[name].layer is None:
                found[name] = read(self._outputs(task, output))
        return task, output, found

    def _outputs(self, task: Task, output: Any) -> Tensor:
        return task.scores(output)

    def _extract(
        self, stream: Iterable[Batch], reductions: Mapping[str, Reduction], total: int | None, holdout: float
    ) -> tuple[Features, Tensor]:
        kept: dict[str, list[tuple[Tensor, Tensor | None]]] = {name: [] for name in reductions}
        predictions: list[Prediction] = []
        labels, apart = [], []
        with progress_bar("extracting features", total) as bar:
            for index, batch in enumerate(stream):
                # Before the network runs, which may write into its inputs.
                apart.append(chosen(batch, holdout) if holdout else none_chosen(batch))
                task, output, reduced = self._read(batch, reductions, index)
                prediction = task.predict(output)
                if len(prediction.value) != len(batch):
                    raise ValueError(f"the network gave {len(prediction.value)} predictions for {len(batch)} inputs.")
                for name, pair in reduced.items():
                    kept[name].append(pair)
                predictions.append(prediction)
                labels.append(batch.label)
                bar.advance()
        known = [label for label in labels if label is not None]
        features = Features(
            z={name: torch.cat([z for z, _ in pairs]) for name, pairs in kept.items()},
            residual={name: _cat([residual for _, residual in pairs]) for name, pairs in kept.items()},
            prediction=torch.cat([prediction.value for prediction in predictions]),
            task=task,
            reductions=dict(reductions),
            label=torch.cat(known) if len(known) == len(labels) else None,
            classes=predictions[0].classes,
            variance=_cat([prediction.variance for prediction in predictions]),
        )
        return features, torch.cat(apart)


def chosen(batch: Batch, share: float) -> Tensor:
    """A share of inputs, chosen by a hash of their content: the same in every pass, however the loader shuffles."""
    return torch.from_numpy(batch.digests() < np.uint64(min(share, 1.0) * (2**64 - 2**11)))


def none_chosen(batch: Batch) -> Tensor:
    """No input of the batch."""
    return torch.zeros(len(batch), dtype=torch.bool, device="cpu")


def _rows(update: Callable[[Tensor], None], keep: Tensor | None) -> Read:
    """An update that sees only the rows to keep."""
    if keep is None:
        return update

    def some(activation: Tensor) -> None:
        rows = activation[keep.to(activation.device)]
        if len(rows):
            update(rows)

    return some


def _check_activation(activation: Tensor, layer: str, samples: int, index: int | None) -> None:
    if activation.dim() == 0 or len(activation) != samples:
        raise ValueError(
            f"layer {layer!r} gave {tuple(activation.shape)} for {samples} inputs; its first dimension must count the "
            "inputs. Choose another layer, or another part of its output with select=."
        )
    # A sum is finite only if every summand is; where it is not it may have overflowed, and each is looked at.
    suspect = activation.is_floating_point() and not math.isfinite(activation.sum().item())
    if suspect and not bool(activation.isfinite().all()):
        bad = int((~activation.isfinite()).flatten(1).any(1).sum()) if activation.dim() > 1 else samples
        where = "" if index is None else f" in batch {index}"
        raise ValueError(
            f"layer {layer!r} gave NaN or infinite activations for {bad} of {samples} inputs{where}: look for them in "
            "the inputs, or for an overflow in the network's precision."
        )


def _check_count(before: int | None, now: int) -> None:
    if before is not None and before != now:
        raise ValueError(
            f"the loader gave {before:,} inputs in one pass and {now:,} in the next: it must give the same ones each "
            "time (in any order). Turn off drop_last, or sampling with replacement."
        )


def _cat(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None
