"""From a model and a loader to reduced activations and predictions, kept for one or many densities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from ._reading import Reading, Rows
from .batches import Adapter, Batch, batches, count, require_repeatable
from .capture import device_of, find, run, select
from .progress import say, task
from .reduce import Reduce, Reduction, ReductionFit
from .tasks import Classification, Prediction, Regression, Task, infer_task

Reader = Callable[[Tensor], Any]
Condition = Literal["prediction", "label"]


class Population(NamedTuple):
    """What all pixels have, of which a balanced sample was drawn: p(y) is fitted to this."""

    values: Tensor  # how many pixels there are of each class, (C,), or a uniform sample of numbers, (s,)
    condition: Condition  # whether these are predictions or labels


@dataclass(frozen=True, eq=False)
class Features:
    """What densities are fitted to: the reduced activations of each layer, with the network's predictions.

    Made by `LatentDensity.extract`, so that the network runs once for as many densities as one wants to try.

    Args:
        z: reduced activations of each layer, (n, d).
        residual: squared norm of what the reduction dropped, (n,), or None where it dropped nothing.
        prediction: what the network predicts: classes or numbers (n,), or vectors (n, q).
        label: what is true, where the loader said it.
        classes: how many classes the network has; None where it predicts numbers.
        reductions: how each layer was reduced, to reduce new inputs alike.
        variance: the network's own variance of its prediction, where it predicts one.
        population: where the rows are pixels that were drawn, what all of them have.
    """

    z: Mapping[str, Tensor]
    residual: Mapping[str, Tensor | None]
    prediction: Tensor
    label: Tensor | None
    classes: int | None
    reductions: Mapping[str, Reduction]
    variance: Tensor | None = None
    population: Population | None = None

    def __len__(self) -> int:
        return len(self.prediction)

    def __getitem__(self, index: slice | Tensor) -> Self:
        """Some of the inputs: a slice, a mask or a tensor of indices."""

        def rows(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[index.to(values.device) if isinstance(index, Tensor) else index]

        prediction = rows(self.prediction)
        assert prediction is not None
        return type(self)(
            {name: z for name, values in self.z.items() if (z := rows(values)) is not None},
            {name: rows(values) for name, values in self.residual.items()},
            prediction,
            rows(self.label),
            self.classes,
            self.reductions,
            rows(self.variance),
            self.population,
        )

    def readings(self) -> Iterator[Reading]:
        """The features as one batch, to score or to calibrate with."""
        prediction = Prediction(self.prediction, self.classes, self.variance)
        yield Rows(prediction, {name: (z, self.residual[name]) for name, z in self.z.items()}, self.label)

    def require(self, layers: Iterable[str], reductions: Mapping[str, Reduction]) -> None:
        """Raise unless the features have these layers, reduced in this way."""
        missing = [name for name in layers if name not in self.z]
        if missing:
            raise ValueError(f"the features have no layer {missing}; they have {list(self.z)}.")
        other = [name for name in layers if not self.reductions[name].same_as(reductions[name])]
        if other:
            raise ValueError(
                f"the features of layer {other} were reduced otherwise than those that were fitted to: extract both "
                "with the same detector."
            )

    def __repr__(self) -> str:
        widths = ", ".join(f"{name!r} {z.shape[1]}-d" for name, z in self.z.items())
        return f"Features of {len(self):,} {'inputs' if self.population is None else 'pixels'} ({widths})"


class Unseen(Protocol):
    """Data to calibrate with: features, or images that are read again."""

    def readings(self) -> Iterator[Reading]:
        """Its readings, batch by batch."""


class Extractor:
    """Reads chosen layers of a model, batch by batch, and never keeps an activation that it has not reduced.

    Args:
        model: any `nn.Module`.
        layers: for each layer's name, how it is reduced.
        task: what the network predicts; None infers it from the first batch and says so.
        output: which tensor of the network's output holds the prediction.
        unpack: turns what the loader gives into `(inputs, label)`; None understands `x`, `(x, y)` and dicts.
        seed: of random projections.
        progress: show bars; None shows them on a terminal.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[str, Reduce],
        *,
        task: Task | None,
        output: int | str | None,
        unpack: Adapter | None,
        seed: int,
        progress: bool | None,
    ) -> None:
        find(model, layers)
        self.model, self.layers, self.task, self.output = model, dict(layers), task, output
        self.unpack, self.seed, self.progress = unpack, seed, progress

    def fit(self, loader: Iterable[Any], *, held_out: float = 0.0) -> tuple[Features, Unseen]:
        """Fit the reductions to a loader and extract its features, some of them set apart.

        Args:
            loader: read once, and up to two times more if a layer is wide.
            held_out: share of inputs, chosen by content, that the reductions do not see and that come back second.
        """
        stream = self._batches(loader)
        first = next(stream)
        fits = {name: ReductionFit(reduce, name, seed=self.seed) for name, reduce in self.layers.items()}
        # Of a copy, as the batch is read again: networks may write into their inputs.
        output = self._read(first.clone(), {name: fit.probe for name, fit in fits.items()}, 0)[0]
        if self.task is None:
            self.task = infer_task(output, first.label, self.output)
            say(f"task: {self.task.describe(self.task.predict(output))}. Pass task= to say otherwise.")
        passes = max(fit.passes_left or 0 for fit in fits.values())
        require_repeatable(loader, passes + 1)
        seen: int | None = None
        for number in range(passes):
            whole = chain([first], stream) if number == 0 else self._batches(loader)
            inputs = 0
            with task(
                f"principal components, pass {number + 1} of {passes}", count(loader), enabled=self.progress
            ) as bar:
                for index, batch in enumerate(whole):
                    keep = ~chosen(batch, held_out) if held_out else None
                    self._read(batch, {name: _rows(fit.update, keep) for name, fit in fits.items()}, index)
                    inputs += len(batch)
                    bar.advance()
            _check_count(seen, inputs)
            seen = inputs
            for fit in fits.values():
                fit.end_pass()
        reductions = {name: fit.result() for name, fit in fits.items()}
        whole = self._batches(loader) if passes else chain([first], stream)
        features, apart = self._extract(whole, reductions, count(loader), held_out)
        _check_count(seen, len(features))
        return features[~apart], features[apart]

    def extract(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Features:
        """Extract the features of a loader with reductions that were fitted before."""
        return self._extract(self._batches(loader), reductions, count(loader), 0.0)[0]

    def read(
        self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Run the network on one batch: its output, and each layer's reduced activation and residual."""
        return self._read(batch, dict(reductions), index)

    def reading(self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None) -> Reading:
        """Run the network on one batch: its predictions, and each layer's rows."""
        assert self.task is not None
        output, reduced = self._read(batch, dict(reductions), index)
        return Rows(self.task.predict(output), reduced, batch.label)

    def unseen(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Unseen:
        """What to calibrate with: readings of a loader."""
        return self.extract(loader, reductions)

    def take_task(self, features: Features) -> None:
        """Where no task was given, take the one that features of another detector show."""
        if self.task is None:
            if features.variance is not None:
                raise ValueError("the features have the network's own variance: pass task=Regression(spread=...) too.")
            self.task = Regression(self.output) if features.classes is None else Classification(self.output)

    def batches(self, loader: Iterable[Any]) -> Iterator[Batch]:
        """The batches of a loader, where the model is, with progress."""
        with task("scoring", count(loader), enabled=self.progress) as bar:
            for batch in self._batches(loader):
                yield batch
                bar.advance()

    def _batches(self, loader: Iterable[Any]) -> Iterator[Batch]:
        return batches(loader, self.unpack, device_of(self.model))

    def _read(self, batch: Batch, readers: Mapping[str, Reader], index: int | None) -> tuple[Any, dict[str, Any]]:
        def tap(name: str, reader: Reader) -> Callable[[Any], Any]:
            def look(output: Any) -> Any:
                activation = select(output, self.layers[name].select, f"layer {name!r}")
                _check_activation(activation, name, len(batch), index)
                return reader(activation)

            return look

        taps = {name: tap(name, reader) for name, reader in readers.items()}
        return run(self.model, taps, batch.args, batch.kwargs)

    def _extract(
        self, stream: Iterable[Batch], reductions: Mapping[str, Reduction], total: int | None, held_out: float
    ) -> tuple[Features, Tensor]:
        assert self.task is not None
        kept: dict[str, list[tuple[Tensor, Tensor | None]]] = {name: [] for name in reductions}
        predictions, labels, apart = [], [], []
        with task("extracting features", total, enabled=self.progress) as bar:
            for index, batch in enumerate(stream):
                # Before the network runs, which may write into its inputs.
                apart.append(
                    chosen(batch, held_out) if held_out else torch.zeros(len(batch), dtype=torch.bool, device="cpu")
                )
                output, reduced = self._read(batch, dict(reductions), index)
                prediction = self.task.predict(output)
                if len(prediction.value) != len(batch):
                    raise ValueError(f"the network gave {len(prediction.value)} predictions for {len(batch)} inputs.")
                for name, pair in reduced.items():
                    kept[name].append(pair)
                predictions.append(prediction)
                labels.append(batch.label)
                bar.advance()
        with_labels = [label for label in labels if label is not None]
        features = Features(
            {name: torch.cat([z for z, _ in pairs]) for name, pairs in kept.items()},
            {name: _cat([residual for _, residual in pairs]) for name, pairs in kept.items()},
            torch.cat([prediction.value for prediction in predictions]),
            torch.cat(with_labels) if len(with_labels) == len(labels) else None,
            predictions[0].classes,
            dict(reductions),
            _cat([prediction.variance for prediction in predictions]),
        )
        return features, torch.cat(apart)


def _rows(update: Callable[[Tensor], None], keep: Tensor | None) -> Reader:
    """An update that sees only the rows to keep."""
    if keep is None:
        return update

    def some(activation: Tensor) -> None:
        rows = activation[keep.to(activation.device)]
        if len(rows):
            update(rows)

    return some


def chosen(batch: Batch, share: float) -> Tensor:
    """A share of inputs, chosen by a hash of their content: the same in every pass, however the loader shuffles."""
    return torch.from_numpy(batch.digests() < np.uint64(min(share, 1.0) * (2**64 - 2**11)))


def _check_activation(activation: Tensor, name: str, samples: int, index: int | None) -> None:
    if activation.dim() == 0 or len(activation) != samples:
        raise ValueError(
            f"layer {name!r} gave {tuple(activation.shape)} for {samples} inputs; its first dimension must count the "
            "inputs. Choose another layer, or another part of its output with select=."
        )
    # A sum is finite only if every summand is; where it is not it may have overflowed, and each is looked at.
    suspect = activation.is_floating_point() and not math.isfinite(activation.sum().item())
    if suspect and not bool(activation.isfinite().all()):
        bad = int((~activation.isfinite()).flatten(1).any(1).sum()) if activation.dim() > 1 else samples
        where = "" if index is None else f" in batch {index}"
        raise ValueError(
            f"layer {name!r} gave NaN or infinite activations for {bad} of {samples} inputs{where}: look for them in "
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
