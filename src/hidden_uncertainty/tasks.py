"""What ŷ is: how a prediction is read from a network's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from .capture import select

TaskName = Literal["classification", "regression"]
Spread = Literal["variance", "log_variance", "deviation"]


class Prediction(NamedTuple):
    """What a network predicts for n inputs."""

    value: Tensor  # classes (n,), numbers (n,) or vectors (n, q); of pixels, classes or numbers (n, H, W)
    classes: int | None = None  # how many there are
    variance: Tensor | None = None  # the network's own, of the shape of value


class Classification:
    """The output holds one score a class, (n, C), and the prediction is the class with the largest.

    A single column, (n, 1) or (n,), is the logit of the second of two classes. Networks that predict a class a pixel
    give (n, C, H, W).

    Args:
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).

    Example:
        >>> prediction = Classification().predict(torch.tensor([[0.1, 2.0, 0.3]]))
        >>> prediction.value, prediction.classes
        (tensor([1]), 3)
    """

    name: TaskName = "classification"

    def __init__(self, output: int | str | None = None) -> None:
        self.output = output

    def predict(self, output: Any) -> Prediction:
        """The class of each input, and how many classes there are."""
        scores = _tensor(output, self.output)
        if scores.dim() == 1 or (scores.dim() == 2 and scores.shape[1] == 1):
            return Prediction((scores.reshape(len(scores)) > 0).long(), 2)
        if scores.dim() != 2:
            raise ValueError(
                f"a classifier's output is (n, classes), but the network gave {_show(scores)}. If it predicts a class "
                "for every pixel, use LatentDensity with pixels=Pixels(); of several outputs, choose one with output=."
            )
        return Prediction(scores.argmax(1), scores.shape[1])

    def predict_pixels(self, output: Any, size: tuple[int, int] | None = None) -> Prediction:
        """The class of each pixel, (n, H, W).

        Args:
            output: scores (n, C, H, W), or the logits of the second of two classes, (n, 1, H, W) or (n, H, W).
            size: a grid to interpolate the scores to first.
        """
        scores = _resized(_maps(_tensor(output, self.output)), size)
        if scores.shape[1] == 1:
            return Prediction((scores[:, 0] > 0).long(), 2)
        return Prediction(scores.argmax(1), scores.shape[1])

    def describe(self, prediction: Prediction) -> str:
        """What is predicted, for people."""
        return f"classification, {prediction.classes} classes{', one a pixel' if prediction.value.dim() > 1 else ''}"

    def config(self) -> dict[str, Any]:
        """Its name and arguments."""
        return {"name": self.name, "output": self.output}


class Regression:
    """The output is a number an input, (n,) or (n, 1), or a vector of them, (n, q).

    Networks that predict a number a pixel give (n, 1, H, W) or (n, H, W).

    Args:
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        spread: where the network's own uncertainty is, if it predicts one: the position or key of that tensor, or
            `"columns"` when it is the second half of the columns of the prediction's own.
        spread_is: what that is: `"variance"`, `"log_variance"` or `"deviation"`.

    Example:
        >>> Regression().predict(torch.tensor([[0.5], [2.0]])).value
        tensor([0.5000, 2.0000])
        >>> prediction = Regression(spread="columns", spread_is="log_variance").predict(torch.tensor([[0.5, 0.0]]))
        >>> prediction.value, prediction.variance
        (tensor([0.5000]), tensor([1.]))
    """

    name: TaskName = "regression"

    def __init__(
        self,
        output: int | str | None = None,
        *,
        spread: int | str | None = None,
        spread_is: Spread = "variance",
    ) -> None:
        if spread_is not in get_args(Spread):
            raise ValueError(f"spread_is must be one of {get_args(Spread)}, not {spread_is!r}.")
        if spread is not None and spread != "columns" and output is None:
            raise ValueError(f"with spread={spread!r}, say where the prediction itself is: output=.")
        self.output, self.spread, self.spread_is = output, spread, spread_is

    def predict(self, output: Any) -> Prediction:
        """The number or numbers of each input, in at least float32, and the network's own variance of them."""
        values, spread = self._read(output, _numbers)
        return Prediction(_squeeze(values), variance=None if spread is None else _squeeze(self._variance(spread)))

    def predict_pixels(self, output: Any, size: tuple[int, int] | None = None) -> Prediction:
        """The number of each pixel, (n, H, W), and the network's own variance of it.

        Args:
            output: (n, 1, H, W) or (n, H, W).
            size: a grid to interpolate to.
        """
        values, spread = self._read(output, _number_maps)
        if values.shape[1] != 1:
            raise ValueError(
                f"a number a pixel is (n, 1, H, W) or (n, H, W), but the network gave {_show(values)}. If these are "
                "scores of classes, pass task='classification'; if they are a mean and a variance, "
                "task=Regression(spread='columns')."
            )
        variance = None if spread is None else _resized(self._variance(spread), size)[:, 0]
        return Prediction(_resized(values, size)[:, 0], variance=variance)

    def describe(self, prediction: Prediction) -> str:
        """What is predicted, for people."""
        value = prediction.value
        if value.dim() == 2:
            return f"regression, {value.shape[1]} numbers an input"
        return f"regression, a number {'an input' if value.dim() == 1 else 'a pixel'}"

    def config(self) -> dict[str, Any]:
        """Its name and arguments."""
        return {"name": self.name, "output": self.output, "spread": self.spread, "spread_is": self.spread_is}

    def _read(self, output: Any, shape: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
        """The prediction and its spread, each with its numbers along the second dimension."""
        values = shape(_tensor(output, self.output))
        if self.spread is None:
            return values, None
        if self.spread == "columns":
            if values.shape[1] % 2:
                raise ValueError(
                    f"spread='columns' takes the second half of the columns, but the network gave {values.shape[1]}."
                )
            values, spread = values.chunk(2, dim=1)
        else:
            spread = shape(select(output, self.spread, "the network", "spread"))
        if spread.shape != values.shape:
            raise ValueError(
                f"the network gave predictions {_show(values)} with a spread {_show(spread)}: they must agree."
            )
        return values, spread

    def _variance(self, spread: Tensor) -> Tensor:
        if self.spread_is == "log_variance":
            return spread.exp()
        low = float(spread.min()) if spread.numel() else 0.0
        if low < 0:
            raise ValueError(
                f"the network gave a {self.spread_is} of {low:.4g}; none can be negative. If it is a logarithm, pass "
                "spread_is='log_variance'."
            )
        return spread if self.spread_is == "variance" else spread.square()


Task = Classification | Regression


def as_task(task: TaskName | Task | None, output: int | str | None = None) -> Task | None:
    """The task that a name stands for; a task or None is returned as it is.

    Example:
        >>> as_task("regression").name
        'regression'
    """
    if task is None:
        return None
    if isinstance(task, Classification | Regression):
        if output is not None and output != task.output:
            raise ValueError(f"output={output!r} and the task's own output={task.output!r} differ: say it once.")
        return task
    if task not in get_args(TaskName):
        raise ValueError(f"task must be one of {get_args(TaskName)}, a task, or None, not {task!r}.")
    return Classification(output) if task == "classification" else Regression(output)


def from_config(config: dict[str, Any]) -> Task:
    """The task that `Task.config` describes.

    Example:
        >>> from_config(Regression(output="depth").config()).output
        'depth'
    """
    options = {key: value for key, value in config.items() if key != "name"}
    return Classification(**options) if config["name"] == "classification" else Regression(**options)


def infer_task(output: Any, label: Tensor | None, choose: int | str | None, *, pixels: bool = False) -> Task:
    """The task that an output and labels leave no doubt about; an error that asks, where they do.

    Example:
        >>> infer_task(torch.randn(8, 10), None, None).name
        'classification'
        >>> infer_task(torch.randn(8, 1), torch.randn(8), None).name
        'regression'
        >>> infer_task(torch.randn(8, 1, 5, 5), torch.randn(8, 5, 5), None, pixels=True).name
        'regression'
    """
    scores = _tensor(output, choose)
    numbers, classes = _may_be_pixels(scores, label) if pixels else _may_be(scores, label)
    if numbers != classes:
        return Regression(choose) if numbers else Classification(choose)
    hint = (
        " Of one prediction a pixel, (n, C, H, W), pass pixels=Pixels() too." if scores.dim() > 3 and not pixels else ""
    )
    with_labels = "without labels" if label is None else f"with labels {_show(label)} of {label.dtype}"
    raise ValueError(
        f"an output of {_show(scores)} {with_labels} does not say what the network predicts. "
        "If the outputs are scores of classes, pass task='classification'; if they are numbers, task='regression'; if "
        f"they are a mean and a variance, task=Regression(spread='columns').{hint}"
    )


def _may_be(scores: Tensor, label: Tensor | None) -> tuple[bool, bool]:
    """Whether an output (n, ...) is certainly numbers, and whether it is certainly scores of classes."""
    classes = scores.shape[1] if scores.dim() == 2 else 0
    if label is None:
        return False, classes >= 3
    if label.is_floating_point():
        return scores.dim() <= 2 and scores.numel() == label.numel() and not _of_classes(label), False
    return False, label.dim() == 1 and classes >= 2 and int(label.min()) >= 0 and int(label.max()) < classes


def _may_be_pixels(scores: Tensor, label: Tensor | None) -> tuple[bool, bool]:
    """The same of an output (n, C, H, W) or (n, H, W), whose labels may have values to ignore."""
    channels = _maps(scores).shape[1]
    if label is None:
        return False, channels >= 3
    if label.is_floating_point():
        return channels == 1 and not _of_classes(label), False
    return False, channels >= 2


def _tensor(output: Any, choose: int | str | None) -> Tensor:
    scores = select(output, choose, "the network", "output")
    if scores.dim() == 0:
        raise ValueError("the network gave a single number; its output must have one row an input, (n, ...).")
    return scores


def _numbers(values: Tensor) -> Tensor:
    """The output of a regression network as (n, q), in at least float32."""
    if values.dim() > 2:
        raise ValueError(
            f"a regression network's output is (n,) or (n, numbers), but the network gave {_show(values)}. If it "
            "predicts one for every pixel, use LatentDensity with pixels=Pixels(); of several outputs, choose one with "
            "output=."
        )
    values = _real(values)
    return values[:, None] if values.dim() == 1 else values


def _number_maps(values: Tensor) -> Tensor:
    """The output of a network that predicts a number a pixel as (n, q, H, W), in at least float32."""
    return _real(_maps(values))


def _real(values: Tensor) -> Tensor:
    if values.is_complex():
        raise TypeError(f"a regression network's output is real, but the network gave {values.dtype}.")
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _maps(values: Tensor) -> Tensor:
    """The output of a network that predicts for every pixel as (n, C, H, W)."""
    if values.dim() not in (3, 4):
        raise ValueError(
            "pixels=Pixels() is for networks whose output is (n, classes, H, W), (n, 1, H, W) or (n, H, W), but the "
            f"network gave {_show(values)}. Leave pixels= out, or of several outputs choose one with output=."
        )
    return values[:, None] if values.dim() == 3 else values


def _resized(values: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Maps (n, C, H, W) on another grid, bilinearly."""
    if size is None or values.shape[2:] == size:
        return values
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return interpolate(values, size, mode="bilinear", align_corners=False)


def _squeeze(values: Tensor) -> Tensor:
    return values[:, 0] if values.shape[1] == 1 else values


def _of_classes(label: Tensor) -> bool:
    """Floating labels that stand for classes: zeros and ones, as binary cross-entropy wants them, or probabilities."""
    if bool(((label == 0) | (label == 1)).all()):
        return True
    several = label.dim() == 2 and label.shape[1] > 1
    return several and bool((label >= 0).all() and ((label.sum(1) - 1).abs() < 1e-3).all())


def _show(tensor: Tensor) -> str:
    return f"({', '.join(['n', *map(str, tensor.shape[1:])])})"
