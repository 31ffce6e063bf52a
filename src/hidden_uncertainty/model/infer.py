"""What a network predicts, inferred from an output and labels that leave no doubt."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..notes import warn
from .outputs import as_maps, show, tensor_of
from .tasks import Classification, Regression, Task

SEVERAL = (
    "the labels are zeros and ones, several ones or none per input: where an input may have several labels, pass "
    "task='multi-label', or task=MultiLabel(...) with a threshold or for outputs that are probabilities."
)


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
    if bool(((label == 0) | (label == 1)).all()):
        return True
    several = label.dim() == 2 and label.shape[1] > 1
    return several and bool((label >= 0).all() and ((label.sum(1) - 1).abs() < 1e-3).all())
