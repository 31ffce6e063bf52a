"""From a model and a loader to reduced activations and predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..model.batches import Batch, count, require_repeatable
from ..model.capture import device_of, find, run
from ..model.tasks import Prediction, Task, finite, from_config
from ..progress import progress_bar
from ..reduce import Reduction, ReductionFit
from ..team import team
from .features import AsIs, Features, Rows, Unseen, refuse
from .reader import Later, Reader, Source, activation_of, chosen

Read = Callable[[Tensor], Any]


class Extractor(Reader):
    """Reads chosen layers of a model, batch by batch, and never keeps an activation that it has not reduced."""

    gathers = True

    def __init__(self, model: nn.Module, sources: Mapping[str, Source], *, seed: int, **options: Any) -> None:
        find(model, [source.layer for source in sources.values() if source.layer is not None])
        super().__init__(model, **options)
        self.sources, self.seed = dict(sources), seed
        self.learns = any(source.layer is not None for source in sources.values())

    def fit(self, loader: Iterable[Any], *, holdout: float = 0.0) -> tuple[Features | None, Unseen | None]:
        """Fit the reductions to a loader and extract its features; None where this process has an empty shard.

        A share of inputs, chosen by content, is not seen by the reductions and comes back second.
        """
        reductions, stream, seen = self.prepare(loader, holdout)
        with team().step():
            features, apart = self._extract(stream, reductions, count(loader), holdout)
            check_count(seen, sum(len(part) for part in (features, apart) if part is not None))
        return features, apart

    def prepare(
        self, loader: Iterable[Any], holdout: float = 0.0
    ) -> tuple[Mapping[str, Reduction], Iterable[Batch], int | None]:
        """Fit the reductions to the shards of all: with batches for one more pass, and how many inputs came."""
        crew, fits = team(), self._reduction_fits()
        with crew.step():
            stream = self._batches(loader)
            first = next(stream, None)
            if first is not None:
                # A copy, as the batch is read again: networks may write into their inputs.
                self._read(first.clone(), {name: fit.probe for name, fit in fits.items()}, 0)
        self._agree(fits, read=first is not None)
        passes = max((fit.passes_left or 0 for fit in fits.values()), default=0)
        whole = iter(()) if first is None else chain([first], stream)
        seen: int | None = None
        with crew.step():
            require_repeatable(loader, passes + 1)
        for number in range(passes):
            inputs = 0
            with (
                crew.step(),
                progress_bar(f"principal components, pass {number + 1} of {passes}", count(loader)) as bar,
            ):
                for index, batch in enumerate(whole):
                    keep = ~chosen(batch, holdout) if holdout else None
                    self._read(batch, {name: partial(fit.update, keep=keep) for name, fit in fits.items()}, index)
                    inputs += len(batch)
                    bar.advance()
                check_count(seen, inputs)
            seen = inputs
            for fit in fits.values():
                fit.end_pass(crew.sum if crew.size > 1 else None)
            whole = self._batches(loader)
        reductions = self._reductions(fits)
        if crew.size > 1:  # the last digits may differ between machines
            device = device_of(self.model) or torch.device("cpu")
            fitted = {name: reductions[name] for name in fits}
            sent = {name: (part.config(), tree_map(Tensor.cpu, part.state_dict())) for name, part in fitted.items()}
            for name, facts in crew.first(sent).items():
                reductions[name] = Reduction.from_config(*facts).to(device)
        self.reductions = reductions
        return reductions, whole, seen

    def _agree(self, fits: Mapping[str, ReductionFit], *, read: bool) -> None:
        """Have all processes take the task and the shapes of layers of the first that has inputs."""
        crew = team()
        if crew.size == 1:
            return
        own = (self.task.config(), {name: fit.shape for name, fit in fits.items()}) if read and self.task else None
        known = [facts for facts in crew.all(own) if facts is not None]
        if not known:
            raise ValueError("no process was given any input: all shards are empty.")
        task, shapes = known[0]
        self.task = from_config(task)
        for name, fit in fits.items():
            shape = shapes[name]
            assert shape is not None
            for _, others in known:
                fit.reduce.check_shape(fit.layer, shape, others[name] or ())
            if fit.shape is None:
                fit.probe(torch.zeros(0, *shape, device=device_of(self.model)))

    def extract(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Features:
        """Extract the features of a loader with reductions that were fitted before."""
        features = self.unseen(loader, reductions)
        assert isinstance(features, Features)
        return features

    def unseen(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Unseen:
        """The features of a loader."""
        features = self._extract(self._batches(loader), reductions, count(loader), 0.0)[0]
        return Later(self, (), reductions) if features is None else features  # its shard is empty

    def reading(
        self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None, *, labels: bool = False
    ) -> Rows:
        """Run the network on one batch: its predictions, and each term's rows."""
        prediction, reduced, unusable = self._read(batch, reductions, index, strict=labels)
        label = batch.label if labels else None
        return Rows(prediction=prediction, reduced=reduced, label=label, unusable=unusable)

    def _reduction_fits(self) -> dict[str, ReductionFit]:
        """What to fit to each layer; outputs are taken as they are."""
        return {
            name: ReductionFit(source.reduce, source.layer, seed=self.seed)
            for name, source in self.sources.items()
            if source.layer is not None
        }

    def _reductions(self, fits: Mapping[str, ReductionFit]) -> dict[str, Reduction]:
        return {name: fits[name].result() if name in fits else AsIs() for name in self.sources}

    def _read(
        self, batch: Batch, reads: Mapping[str, Read], index: int | None, *, strict: bool = True
    ) -> tuple[Prediction, dict[str, Any], Tensor | None]:
        """Run the network on one batch: its predictions, what `reads` make of what each term sees, what is unusable.

        That is for which inputs or pixels something is NaN or infinite: an error if `strict`, otherwise zeros are read.
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
                scores = task.scores(output, maps=self.pixels is not None)
                # A class may be ruled out by -inf.
                found[name] = read(scores if unusable is None else scores.nan_to_num(0.0, 0.0, -math.inf))
        for name, values in wrong.items():
            rows = self._touched(values, name, prediction)
            unusable = rows if unusable is None else unusable | rows.to(unusable.device)
        return prediction, found, unusable

    def _predict(self, task: Task, output: Any, found: Mapping[str, Any]) -> Prediction:
        return task.predict(output)

    def _touched(self, wrong: Tensor, name: str, prediction: Prediction) -> Tensor:
        """Which inputs, (n,), have something wrong in what a term reads."""
        return wrong.reshape(len(wrong), -1).any(1)

    def _extract(
        self, stream: Iterable[Batch], reductions: Mapping[str, Reduction], total: int | None, holdout: float
    ) -> tuple[Features | None, Features | None]:
        """The features of a loader, without those of the inputs that are set apart, and those; None of no batches."""
        kept: list[Features] = []
        apart: list[Features] = []
        for features, rows in self.pieces(stream, reductions, total, holdout):
            kept.append(features[~rows])
            apart.append(features[rows])
        return (Features.cat(kept), Features.cat(apart)) if kept else (None, None)

    def pieces(
        self, stream: Iterable[Batch], reductions: Mapping[str, Reduction], total: int | None, holdout: float = 0.0
    ) -> Iterator[tuple[Features, Tensor]]:
        """The features of each batch, which share no memory with others, and a mask of what is to be set apart."""
        with progress_bar("extracting features", total) as bar:
            for index, batch in enumerate(stream):
                # Before the network runs, which may write into its inputs.
                rows = chosen(batch, holdout)
                prediction, reduced, _ = self._read(batch, reductions, index)
                assert self.task is not None
                features = Features(
                    z={name: z for name, (z, _) in reduced.items()},
                    residual={name: residual for name, (_, residual) in reduced.items()},
                    prediction=prediction.value,
                    task=self.task,
                    reductions=dict(reductions),
                    label=None if batch.label is None else batch.label.clone(),  # the loader's own
                    classes=prediction.classes,
                    variance=prediction.variance,
                )
                yield features, rows
                bar.advance()


def check_count(before: int | None, now: int) -> None:
    """Raise unless a loader gave as many inputs in this pass as in the one before."""
    if before is not None and before != now:
        raise ValueError(
            f"the loader gave {before:,} inputs in one pass and {now:,} in the next: it must give the same ones each "
            "time (in any order). Turn off drop_last, or sampling with replacement."
        )
