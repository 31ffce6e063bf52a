"""What ŷ is: how a prediction is read from a network's output."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .capture import select

TaskName = Literal["classification", "regression"]
Spread = Literal["variance", "log_variance", "deviation"]


class Prediction(NamedTuple):
    """What a network predicts for n inputs."""

    value: Tensor  # classes (n,), numbers (n,) or vectors (n, q)
    classes: int | None = None  # how many there are
    variance: Tensor | None = None  # the network's own, of the shape of value


class Classification:
    """The output holds one score a class, (n, C), and the prediction is the class with the largest.

    A single column, (n, 1) or (n,), is the logit of the second of two classes.

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
                f"a classifier's output is (n, classes), but the network gave {_show(scores)}. Networks that predict a "
                "class a pixel are not supported yet; of several outputs, choose one with output=."
            )
        return Prediction(scores.argmax(1), scores.shape[1])

    def describe(self, prediction: Prediction) -> str:
        """What is predicted, for people."""
        return f"classification, {prediction.classes} classes"

    def config(self) -> dict[str, Any]:
        """Its name and arguments."""
        return {"name": self.name, "output": self.output}


class Regression:
    """The output is a number an input, (n,) or (n, 1), or a vector of them, (n, q).

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
        values = _numbers(_tensor(output, self.output))
        if self.spread is None:
            return Prediction(_squeeze(values))
        if self.spread == "columns":
            if values.shape[1] % 2:
                raise ValueError(
                    f"spread='columns' takes the second half of the columns, but the network gave {values.shape[1]}."
                )
            values, spread = values.chunk(2, dim=1)
        else:
            spread = _numbers(select(output, self.spread, "the network", "spread"))
        if spread.shape != values.shape:
            raise ValueError(
                f"the network gave predictions {_show(values)} with a spread {_show(spread)}: they must agree."
            )
        return Prediction(_squeeze(values), variance=_squeeze(self._variance(spread)))

    def describe(self, prediction: Prediction) -> str:
        """What is predicted, for people."""
        many = prediction.value.dim() > 1
        return f"regression, {prediction.value.shape[1]} numbers an input" if many else "regression, a number an input"

    def config(self) -> dict[str, Any]:
        """Its name and arguments."""
        return {"name": self.name, "output": self.output, "spread": self.spread, "spread_is": self.spread_is}

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


def infer_task(output: Any, label: Tensor | None, choose: int | str | None) -> Task:
    """The task that an output and labels leave no doubt about; an error that asks, where they do.

    Example:
        >>> infer_task(torch.randn(8, 10), None, None).name
        'classification'
        >>> infer_task(torch.randn(8, 1), torch.randn(8), None).name
        'regression'
    """
    scores = _tensor(output, choose)
    classes = scores.shape[1] if scores.dim() == 2 else 0
    if label is not None and label.is_floating_point():
        if scores.dim() <= 2 and scores.numel() == label.numel() and not _of_classes(label):
            return Regression(choose)
    elif label is not None:
        if label.dim() == 1 and classes >= 2 and int(label.min()) >= 0 and int(label.max()) < classes:
            return Classification(choose)
    elif classes >= 3:
        return Classification(choose)
    with_labels = "without labels" if label is None else f"with labels {_show(label)} of {label.dtype}"
    raise ValueError(
        f"an output of {_show(scores)} {with_labels} does not say what the network predicts. "
        "If the outputs are scores of classes, pass task='classification'; if they are numbers, task='regression'; if "
        "they are a mean and a variance, task=Regression(spread='columns')."
    )


def _tensor(output: Any, choose: int | str | None) -> Tensor:
    scores = select(output, choose, "the network", "output")
    if scores.dim() == 0:
        raise ValueError("the network gave a single number; its output must have one row an input, (n, ...).")
    return scores


def _numbers(values: Tensor) -> Tensor:
    """The output of a regression network as (n, q), in at least float32."""
    if values.dim() > 2:
        raise ValueError(
            f"a regression network's output is (n,) or (n, numbers), but the network gave {_show(values)}. Networks "
            "that predict a number a pixel are not supported yet; of several outputs, choose one with output=."
        )
    if values.is_complex():
        raise TypeError(f"a regression network's output is real, but the network gave {values.dtype}.")
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return values[:, None] if values.dim() == 1 else values


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
