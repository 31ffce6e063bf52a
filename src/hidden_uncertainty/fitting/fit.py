"""How a detector is fitted: what it gathers from loaders, by one process or several, and what is made of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..density import Sums
from ..extract import Extractor, Features, Later, Reading, Unseen
from ..extract.extractor import check_count
from ..model.batches import Adapter, Batch, batches, count, dtype_of, leaves
from ..model.capture import device_of
from ..model.identity import describe
from ..model.tasks import MultiLabel
from ..notes import note, warn
from ..progress import bars
from ..reduce import Reduction
from ..scoring.fitted import Calibrated, Fitted, fit_terms, of_first, require_classes
from ..scoring.head import SAMPLE
from ..team import Team, team, together
from .state import Rows, State

INPUTS = 150  # read again, at most; of a long loader, at least 60
TOGETHER = 10  # of one batch at least, where it has them
BYTES = 1 << 28  # kept of them, at most
ROWS = 1 << 16  # that a state keeps, at least, for what is not fitted to sums

Some = TypeVar("Some", Batch, Features)


@contextmanager
def work(detector: Any, process_group: Any) -> Iterator[Team]:
    """Work on a detector, by all processes of a group together; what was found of its task goes if that fails."""
    with bars(detector.progress), detector.reader.tentative(), together(process_group) as crew:
        check_model(detector.model)
        known = f"{type(detector).__name__} of {detector.layers} given the {detector.condition}, {sums_of(detector)}"
        crew.same("the detector", known)
        yield crew


def fit_loader(
    detector: Any,
    loader: Iterable[Any],
    calibration: Iterable[Any] | None,
    holdout: float | None,
    spill: str | PathLike[str] | None = None,
) -> tuple[Fitted, State | Features | None]:
    """What `Detector.fit` fits, and what to, where that can be fitted to again."""
    if spill is not None and (holdout is not None or team().size > 1):
        raise ValueError("spill= is for one process (process_group=False), and for calibration= instead of holdout=.")
    if spill is not None and detector._fits:
        if not Path(spill).is_dir():
            raise FileNotFoundError(f"spill={str(spill)!r} is no folder: make it first.")
        with TemporaryDirectory(prefix="hidden-uncertainty-", dir=spill, ignore_cleanup_errors=True) as folder:
            return fit_data(detector, gather(detector, loader, folder=Path(folder)), calibration), None
    if calibration is not None and holdout is not None:
        raise ValueError("pass calibration or holdout, not both.")
    if holdout is not None and not 0 < holdout < 1:
        raise ValueError(f"holdout is a share between 0 and 1, not {holdout}.")
    kept, unseen, streams = None, None, detector.reader.gathers and not sums_of(detector)[1]
    data: State | Features | None = None
    if holdout is not None and not isinstance(loader, Iterator):
        loader = kept = _kept(detector, loader)
    if streams and detector._fits and holdout is None:
        data = gather(detector, loader)
    elif detector._fits or detector.reader.learns or holdout is not None:
        data, unseen = gather_features(detector, loader, holdout or 0.0)
    return fit_data(detector, data, calibration, unseen, kept, apart=holdout is not None), data


def fit_data(
    detector: Any,
    data: State | Features | None,
    calibration: Iterable[Any] | None = None,
    unseen: Unseen | None = None,
    kept: Kept | None = None,
    *,
    apart: bool = False,
) -> Fitted:
    """Fit a detector to what was gathered, of its own kind, and calibrate it by a loader, or by what was read of one.

    `kept` are inputs of that, to be read again; `apart` says whether they were set apart of the training data.
    """
    crew, sample = team(), data.sample if isinstance(data, State) else data
    crew.same("whether calibration= or holdout= was given,", [calibration is not None, unseen is not None])
    if calibration is not None:  # before the fit, so that an error in it comes first
        reductions = detector.reader.reductions if sample is None else sample.reductions
        unseen, kept = read_unseen(detector, calibration, reductions)

    def fit() -> Fitted:
        if sample is None:
            return detector._unfitted()
        methods = {name: term.method for name, term in detector.terms.items()}
        moments = {**data.moments, **data.rows} if isinstance(data, State) else {}
        options: dict[str, Any] = {"owner": detector, "moments": moments}
        return fit_terms(methods, sample, detector.condition, detector._combination, **options)

    fitted = of_first(fit, device_of(detector.model)) if detector._fits else detector._unfitted()
    if unseen is None:
        return fitted
    if not apart:
        fitted, unseen = fitted.learn(unseen)
    return calibrate(detector, fitted, unseen, "holdout" if apart else "unseen", kept)


def read_unseen(
    detector: Any, loader: Iterable[Any], reductions: Mapping[str, Reduction] | None
) -> tuple[Unseen, Kept]:
    """What was read of unseen data, and some of their inputs, to be read again."""
    with team().step():
        warn_of_padding(loader)
        kept = _kept(detector, loader)
        return detector.reader.unseen(kept, reductions or detector._unfitted().head.reductions), kept


def check_features(detector: Any, features: Features, calibration: Features | None) -> None:
    """Raise unless a detector can be fitted to features, and calibrated with others."""
    Features.require(features, detector.layers, getattr(features, "reductions", {}))
    _check_sources(detector, features)
    if calibration is not None:
        Features.require(calibration, detector.layers, features.reductions)
        if calibration.population is not None:
            raise ValueError(
                "thresholds for pixels are calibrated over whole images, not over pixels that were drawn: call "
                "fit_features(features), then calibrate(unseen_loader)."
            )


def check_state(detector: Any, state: State) -> None:
    """Raise unless a state is of such a detector, and not empty."""
    if not isinstance(state, State):
        raise TypeError(f"fit_state takes a State, as detector.gather(loader) or State.load(path), not {state!r}.")
    (sums, rows), sample = sums_of(detector), state.settle().sample
    same = (sums, detector.condition) == (dict(state.sums), state.condition) and (not rows or state.limit >= ROWS)
    if sample is None or not same:
        raise ValueError(
            f"the state has {dict(state.sums)} of {state.inputs:,} inputs given the {state.condition}; this detector "
            f"needs {sums or rows or 'layers'} given the {detector.condition}. Gather it with such a detector, "
            "or with this one where it is to find its layers."
        )
    if rows and len(sample) < state.inputs:
        note(f"{rows} is fitted to rows, not to sums: to those of {len(sample):,} of {state.inputs:,} inputs.")
    _check_sources(detector, sample)


def _check_sources(detector: Any, features: Features) -> None:
    other = [name for name, term in detector.terms.items() if not term.source.fits(features.reductions[name])]
    if other:
        raise ValueError(
            f"the features of {other} were read elsewhere than this detector reads: extract them with a detector that "
            "has the same layers, and the same read= and select= in Reduce(...)."
        )


def calibrate(detector: Any, fitted: Fitted, unseen: Unseen, how: Calibrated, kept: Kept | None = None) -> Fitted:
    """The same with calibrations from data that nothing was fitted to, and without a threshold."""

    def read(batch: Batch) -> Reading:
        return detector.reader.reading(detector.reader.called(batch), fitted.head.reductions, labels=True)

    again = read_again(kept, unseen, read) if detector.reader.repeats else ()
    head = fitted.head.calibrated(unseen.readings(), again, fitted.condition)
    return Fitted(head, how, condition=fitted.condition)


def sums_of(detector: Any, *, chunks: bool = False) -> tuple[dict[str, Sums], str]:
    """What to gather for each term that is fitted, but to `chunks` if so asked; and in words what takes rows."""
    found: dict[str, Sums] = {}
    rows, several = "", isinstance(detector.task, MultiLabel)
    chunks = chunks and not several and (detector.task is None or detector.task.discrete)
    for name, term in detector.terms.items():
        if term.method.fits and not (chunks and term.method.chunks):
            if several:  # whose sets of labels are known only when all inputs have come
                rows = f"{_name(detector)} of several labels"
            elif term.method.sums is None:
                rows = f"{getattr(term.method, 'density', None) or _name(detector)} of layer {name!r}"
            else:
                found[name] = term.method.sums
    return {} if several else found, rows


def gather(
    detector: Any, loader: Iterable[Any], reductions: Mapping[str, Reduction] | None = None, folder: Path | None = None
) -> State:
    """The state of a loader's inputs, and of those of all processes of a team; reductions are fitted where none are."""
    crew, reader, (sums, rows) = team(), detector.reader, sums_of(detector, chunks=folder is not None)
    if not reader.gathers or (rows and folder is not None):
        what = rows or f"what {_name(detector)} reads"
        raise NotImplementedError(f"{what} is neither summed nor kept in a file: use fit(loader) alone.")
    assert isinstance(reader, Extractor)
    state = State(detector.condition, sums, max(ROWS if rows else 0, SAMPLE if detector._combination.learns else 0))
    if folder is not None:
        on_disk = [name for name, term in detector.terms.items() if term.method.chunks]
        state.rows = {name: Rows(folder / str(place), name) for place, name in enumerate(on_disk)}
    if reductions is None:
        reductions, stream, seen = reader.prepare(loader)
    else:
        stream, seen = reader._batches(loader), None
    with crew.step():
        warn_of_padding(loader)
        for features, _ in reader.pieces(stream, reductions, count(loader)):
            if sums or state.rows:
                require_classes(features.task, type(detector).__name__)
            state.add(features)
        check_count(seen, state.inputs)
    total = state.summed(crew, reductions, device_of(reader.model) or "cpu")
    if total.sample is not None and reader.task is None:
        reader.task = total.sample.task
    return total


def gather_features(detector: Any, loader: Iterable[Any], holdout: float) -> tuple[Features | None, Unseen | None]:
    """The features of a loader, and what is set apart; in a team, those of all shards, in the first process alone."""
    crew, reader = team(), detector.reader
    if crew.size > 1 and not reader.gathers and detector._fits:
        raise NotImplementedError(
            f"{_name(detector)} cannot be fitted by several processes: fit it in one, with process_group=False, save "
            "it, and load it in the others."
        )
    with crew.step():
        warn_of_padding(loader)
    features, apart = reader.fit(loader, holdout=holdout)
    if not holdout:
        apart = None
    elif apart is None:  # the shard is empty
        apart = Later(reader, (), {})
    if crew.size > 1 and detector._fits:
        every = crew.to_first(None if features is None else features.plain())
        if crew.rank == 0:
            assert reader.reductions is not None
            features = Features.received(every, reader.reductions, device_of(reader.model) or "cpu")
            size = sum(z.nbytes for z in features.z.values()) / 1e6
            note(f"the features of {len(features):,} inputs, {size:,.0f} MB, are fitted to in the first process.")
    return features, apart


def check_model(model: nn.Module) -> None:
    """Raise where the weights of a model are sharded, or where processes of a team have different models."""
    kinds = {base.__name__ for part in model.modules() for base in type(part).__mro__}
    if kinds & {"FullyShardedDataParallel", "FSDPModule"}:
        raise NotImplementedError(
            "the model's weights are sharded (FSDP), so that it runs only when all processes give it a batch at once, "
            "and shards of data need not be equally long. Put its whole weights, get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)), into a plain copy of the model."
        )
    crew = team()
    if crew.size > 1:
        shapes = crew.all(describe(model)["tensors"])
        other = [rank for rank, known in enumerate(shapes) if known != shapes[0]]
        if other:
            raise ValueError(f"process {other[0]} has another model than process 0: all must have the same.")


def warn_of_padding(loader: Any) -> None:
    """Warn where a sampler gives some inputs twice, to make shards equally long."""
    dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "sampler", None)
    given = getattr(sampler, "total_size", 0)  # to all processes, by a DistributedSampler
    if isinstance(dataset, Sized) and given > len(dataset) and team().size > 1 and team().rank == 0:
        warn(
            f"{given:,} inputs come of {len(dataset):,}: {type(sampler).__name__} repeats some, so that shards are "
            "equally long, which they need not be here. Repeated inputs count twice, and break what calibration "
            "promises. Give each process Subset(dataset, range(rank, len(dataset), processes)) instead."
        )


def _name(detector: Any) -> str:
    return type(detector).__name__ + ("" if detector.pixels is None else " with pixels=")


class Kept:
    """A loader some of whose inputs are kept, as copies: read again, alone, their scores differ by rounding.

    They are spread over all batches, as those of one class may come together and differ from the others by more.
    """

    def __init__(self, loader: Iterable[Any], unpack: Adapter | None = None, dtype: torch.dtype | None = None) -> None:
        self.loader, self.unpack, self.dtype = loader, unpack, dtype
        self.batches: list[Batch] = []

    def __iter__(self) -> Iterator[Batch]:
        self.batches, every = [], 1
        for place, batch in enumerate(batches(self.loader, self.unpack, dtype=self.dtype)):
            if place % every == 0 and len(batch):
                each = sum(tensor.nbytes for tensor in leaves((batch.args, batch.kwargs), Tensor)) // len(batch)
                room = max(1, min(INPUTS, BYTES // max(each, 1)))
                share = min(room, max(TOGETHER, room // (len(self.batches) + 1)))
                self.batches = [_some(part, share).clone() for part in (*self.batches, batch)]
                if sum(map(len, self.batches)) > room:
                    self.batches, every = self.batches[::2], 2 * every
            yield batch

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]


def _kept(detector: Any, loader: Iterable[Any]) -> Kept:
    return Kept(loader, detector.reader.unpack, dtype_of(detector.model))


def read_again(
    kept: Kept | None, unseen: Unseen, read: Callable[[Batch], Reading]
) -> Iterator[tuple[Reading, list[Reading]]]:
    """Readings of some inputs together, and of each alone, as `read` runs the network on a batch.

    Without inputs, or where the network cannot be run on one, rows of the features are taken apart instead.
    """
    try:
        for batch in [] if kept is None else kept.batches:
            # A copy, as networks may write into their inputs.
            whole, alone = read(batch.clone()), [read(batch[i : i + 1]) for i in range(len(batch))]
            if any(len(reading.prediction.value) != 1 for reading in alone):
                raise ValueError("it gave none or several predictions for one")
            yield whole, alone
        if kept is not None:
            return
    except Exception as error:  # whatever a network makes of a single input
        note(
            f"the network does not take a single input ({type(error).__name__}: {error}), so that how far scores "
            "depend on the batch is measured without it."
        )
    if isinstance(unseen, Features) and len(unseen):
        some = _some(unseen, INPUTS)
        yield next(some.readings()), [next(some[i : i + 1].readings()) for i in range(len(some))]


def _some(inputs: Some, most: int) -> Some:
    """At most so many of them, evenly spread."""
    return inputs[:: -(-len(inputs) // most)]
