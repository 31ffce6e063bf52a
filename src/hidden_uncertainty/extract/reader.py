"""What a term reads of what a layer returned; running a network over batches; and what a network predicts, inferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from ..model.batches import Adapter, Batch, batches, called, count, dtype_of, names_of
from ..model.capture import device_of, named
from ..model.outputs import as_maps, select_masked, show, tensor_of
from ..model.tasks import Classification, Regression, Task
from ..notes import note, warn
from ..progress import progress_bar
from ..reduce import Reduce, Reduction, pool_tokens
from .features import AsIs, Features, Reading, Unseen
from .pixels import Pixels

SEVERAL = (
    "the labels are zeros and ones, several ones or none per input: where an input may have several labels, pass "
    "task='multi-label', or task=MultiLabel(...) with a threshold or for outputs that are probabilities."
)


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


def activation_of(output: Any, reduce: Reduce, batch: Batch, layer: str, *, masked: bool = True) -> Tensor:
    """What is reduced of what a layer returned, (n, ...); tokens of which some are padding come pooled, as one."""
    activation, real = select_masked(output, reduce.select, f"layer {layer!r}")
    axis, samples = 0 if real is not None else reduce.batch_axis, batch.size  # packed sequences count their inputs
    if not -activation.dim() <= axis < activation.dim() or activation.shape[axis] != samples:
        fitting = [place for place, size in enumerate(activation.shape) if size == samples]
        hint = f"Its axis {fitting[0]} does: Reduce(batch_axis={fitting[0]}). Or choose" if fitting else "Choose"
        raise ValueError(
            f"layer {layer!r} gave {tuple(activation.shape)} for {samples} inputs; its "
            f"{'first dimension' if axis == 0 else f'axis {axis}'} must count the inputs. {hint} another layer, or "
            "another part of its output with select=; a single input needs a first dimension too: x[None]."
        )
    activation = activation.movedim(axis, 0)
    if not masked or reduce.how not in ("tokens", "token") or activation.dim() < 3:
        return activation
    if real is None:
        real = _mask(reduce, batch, activation.shape[1])
    traced = torch.compiler.is_compiling()  # a graph does not branch on what it is given
    if real is None or (not traced and bool(real.all())):
        return activation
    if real.dim() != activation.dim() - 1 and real.numel() == activation.shape[:-1].numel():
        real = real.reshape(activation.shape[:-1])  # such as (n, 1, 1, T)
    if real.shape != activation.shape[:-1]:
        raise ValueError(
            f"layer {layer!r} gave tokens {tuple(activation.shape[:-1])}, but the mask {reduce.mask!r} is of shape "
            f"{tuple(real.shape)}, as where a network adds tokens. Name a mask of these tokens with Reduce(mask=), or "
            "count all of them, also padding, with mask=None."
        )
    if reduce.how == "token":
        if not traced and not bool(real[:, reduce.token :][:, :1].all()):
            raise ValueError(
                f"layer {layer!r} is read at token {reduce.token}, which for some inputs is padding: a text would be "
                "scored differently beside longer ones. Take a token that is never padding, such as the first with "
                "reduce='token', or the last real one with Reduce('tokens', pool='last'), or the mean with 'tokens'."
            )
        return activation
    pooled = pool_tokens(activation, reduce.pool, real)
    pooled = pooled if pooled.dim() == 3 else pooled[:, None]
    return pooled.reshape(pooled.shape[0], *[1] * (activation.dim() - 3), *pooled.shape[1:])


def _mask(reduce: Reduce, batch: Batch, tokens: int) -> Tensor | None:
    """Which tokens are real, as the batch says by a mask or by lengths (n,); None where it says nothing."""
    if reduce.mask is None:
        return None
    given = batch.given
    name = reduce.mask.removeprefix("~") if isinstance(reduce.mask, str) else reduce.mask
    mask = given.get(name)
    if isinstance(mask, Tensor):
        if not torch.compiler.is_compiling() and bool((mask < 0).any()):
            raise ValueError(
                f"the mask {name!r} has numbers below zero, as those that are added to attention scores: expected zero "
                "for padding and one for real tokens. Name another input with Reduce(mask=), or mask=None."
            )
        if mask.dim() == 1:
            mask = torch.arange(tokens, device=mask.device) < mask[:, None]
        return mask != 0 if name == reduce.mask else mask == 0
    if reduce.mask == "attention_mask":
        return None
    raise ValueError(f"mask={reduce.mask!r} names none of the network's inputs: {', '.join(map(repr, given))}.")


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
        """What to calibrate with: all of a loader, read when it is asked for."""
        return Later(self, loader, reductions)

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
        return self._named(called(args, kwargs, self.unpack, dtype_of(self.model)).to(device_of(self.model)))

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
        check_task(self.task, output, batch.label)
        if not self._compared:
            self._compared = True
            warn_of_others(self.task, output)
        return self.task


@dataclass(frozen=True, eq=False)
class Later:
    """Inputs to calibrate with, read when they are asked for: all of a loader's, or those that were set apart."""

    reader: Reader
    loader: Iterable[Any]
    reductions: Mapping[str, Reduction]
    holdout: float | None = None  # the share that was set apart; None takes all

    def readings(self) -> Iterator[Reading]:
        """Their readings, batch by batch."""
        for index, batch in enumerate(self.reader.batches(self.loader, "calibrating")):
            if self.holdout is not None:
                batch = batch[chosen(batch, self.holdout)]
            if len(batch):
                yield self.reader.reading(batch, self.reductions, index, labels=True)


def chosen(batch: Batch, share: float) -> Tensor:
    """A share of inputs, chosen by a hash of their content: the same in every pass, however the loader shuffles."""
    return lowest(batch.digests(), share) if share else torch.zeros(len(batch), dtype=torch.bool, device="cpu")


def lowest(digests: np.ndarray, share: float) -> Tensor:
    """The share of digests that lie lowest of all there can be."""
    return torch.from_numpy(digests < np.uint64(min(share, 1.0) * (2**64 - 2**11)))


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


def infer_task(output: Any, label: Tensor | None, select: int | str | None, *, pixels: bool = False) -> Task:
    """The task that an output and labels leave no doubt about; an error that asks, where they do."""
    scores = tensor_of(output, select)
    if several_labels(scores, label):
        raise ValueError(f"{SEVERAL} If they are numbers, pass task='regression'.")
    numbers, classes = _certainly(scores, label, pixels)
    if numbers != classes:
        return Regression(select) if numbers else Classification(select)
    maps = scores.dim() > 3 and not pixels
    hint = " If it predicts for every pixel, (n, C, H, W), pass pixels=Pixels() too." if maps else ""
    with_labels = "without labels" if label is None else f"with labels {show(label)} of {label.dtype}"
    raise ValueError(
        f"an output of {show(scores)} {with_labels} does not say what the network predicts. "
        "If the outputs are scores of classes, or one logit for two classes, pass task='classification'; if they are "
        "logits of labels of which several may hold, task='multi-label'; if they are numbers, task='regression'; if "
        f"they are a mean and a variance, task=Regression(spread='columns').{hint}"
    )


def several_labels(scores: Tensor, label: Tensor | None) -> bool:
    """Whether labels of the shape of an output (n, C) mark several classes of an input, or none."""
    if label is None or label.dim() != 2 or label.shape[1] < 2 or label.shape != scores.shape:
        return False
    return bool(((label == 0) | (label == 1)).all()) and bool((label.sum(1) != 1).any())


def check_task(task: Task, output: Any, label: Tensor | None) -> None:
    """Raise where labels say that an input has several classes, which a classifier's one prediction cannot tell."""
    if isinstance(task, Classification) and label is not None and several_labels(tensor_of(output, task.output), label):
        raise ValueError(SEVERAL)


def warn_of_others(task: Task, output: Any) -> None:
    """Warn where a network that predicts numbers returned further tensors of their shape, which are not read."""
    if not isinstance(task, Regression) or task.output is not None or task.spread is not None:
        return
    parts = [part for part in output if isinstance(part, Tensor)] if isinstance(output, tuple | list) else []
    if len(parts) > 1 and any(part.shape == parts[0].shape for part in parts[1:]):
        warn(
            f"the network returned {len(parts)} tensors, of which the first is taken as the prediction. If the second "
            "is its variance, pass task=Regression(output=0, spread=1), with spread_is= for a logarithm or a "
            "deviation. output=0 takes the first silently."
        )


def _certainly(scores: Tensor, label: Tensor | None, pixels: bool) -> tuple[bool, bool]:
    """Whether an output is certainly numbers, and whether it is certainly scores of classes, of inputs or of pixels."""
    classes = as_maps(scores).shape[1] if pixels else scores.shape[1] if scores.dim() == 2 else 0
    if label is None:
        return False, classes >= 3
    if label.is_floating_point():
        alike = classes == 1 if pixels else scores.dim() <= 2 and scores.numel() == label.numel()
        return alike and not _of_classes(label), False
    if pixels:  # whose labels may have values to ignore
        return False, classes >= 2
    return False, label.dim() == 1 and classes >= 2 and int(label.min()) >= 0 and int(label.max()) < classes


def _of_classes(label: Tensor) -> bool:
    """Floating labels that stand for classes: zeros and ones, as binary cross-entropy wants them, or probabilities."""
    several = label.dim() == 2 and label.shape[1] > 1
    shares = several and bool((label >= 0).all() and ((label.sum(1) - 1).abs() < 1e-3).all())
    return shares or bool(((label == 0) | (label == 1)).all())
