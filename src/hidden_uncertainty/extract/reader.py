"""Running a network over batches: what all ways of reading it share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import nn

from ..model.batches import Adapter, Batch, batches, called, count, dtype_of, names_of
from ..model.capture import device_of, named
from ..model.infer import check_task, infer_task, warn_of_others
from ..model.tasks import Task
from ..notes import note
from ..progress import progress_bar
from ..reduce import Reduce, Reduction
from .features import AsIs, Features, Reading, Unseen
from .pixels import Pixels


@dataclass(frozen=True)
class Source:
    """What a term reads, and how it becomes a vector."""

    layer: str | None  # its dotted name, or None for the network's own outputs
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


class Reader:
    """Runs a network over batches, with options of `Detector`; what is read of each, subclasses say with `reading`."""

    pixels: Pixels | None = None
    reductions: Mapping[str, Reduction] | None = None  # the latest that were fitted
    learns = True  # whether training data teach the reading itself something
    gathers = False  # whether `prepare` and `pieces` read in a stream, and several processes together
    repeats = True  # whether an input is read alike each time, but for rounding

    def __init__(
        self, model: nn.Module, *, task: Task | None, output: int | str | None, unpack: Adapter | None = None
    ) -> None:
        self.model, self.task, self.output, self.unpack = model, task, output, unpack
        self._compared = False

    def fit(self, loader: Iterable[Any], *, holdout: float = 0.0) -> tuple[Features | None, Unseen | None]:
        """Fit what reading needs to training data; the share of inputs that is set apart, by content, comes second."""
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
        """Run the network on one batch; `reductions` lead from what each term reads to z, and `index` is for errors.

        With `labels`, those of the batch are taken along, to calibrate with: NaN and infinities are then an error.
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
        if len(batch.args) + len(batch.kwargs) < 2:  # a mask comes beside what it masks
            return batch
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
