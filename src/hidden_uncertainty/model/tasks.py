"""What ŷ is: how a prediction is read from a network's output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ._outputs import as_maps, as_numbers, as_real, finite, resized, show, squeezed, tensor_of

TaskName = Literal["classification", "regression"]
Condition = Literal["prediction", "label"]
Spread = Literal["variance", "log_variance", "deviation"]


class Prediction(NamedTuple):
    """What a network predicts for n inputs."""

    value: Tensor  # classes (n,), numbers (n,) or vectors (n, q); of pixels, classes or numbers (n, H, W)
    classes: int | None = None  # how many there are
    variance: Tensor | None = None  # the network's own, of the shape of value


class Task(ABC):
    """What a network predicts, and all that differs by it.

    Args:
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
    """

    name: TaskName
    discrete: bool  # whether predictions are classes, which can be counted

    def __init__(self, output: int | str | None = None) -> None:
        self.output = output

    @abstractmethod
    def predict(self, output: Any) -> Prediction:
        """What is predicted for each input."""

    @abstractmethod
    def predict_pixels(self, output: Any, size: tuple[int, int] | None = None) -> Prediction:
        """What is predicted for each pixel, on the output's grid or on one of another size."""

    @abstractmethod
    def scores(self, output: Any) -> Tensor:
        """The output itself as numbers per input, (n, C), a copy in at least float32."""

    @abstractmethod
    def score_maps(self, output: Any) -> Tensor:
        """The output itself as numbers per pixel, (n, C, H, W), in at least float32; it may share the output's memory.

        Predictions and `scores` never do.
        """

    @abstractmethod
    def unusable(self, output: Any, prediction: Prediction) -> Tensor | None:
        """For which inputs, (n,), or pixels, (n, H, W), the output is NaN or infinite; None where for none."""

    @abstractmethod
    def condition(self, prediction: Tensor, label: Tensor | None, condition: Condition) -> Tensor:
        """What densities are conditioned on: the predictions, or the labels in their shape; an error without these."""

    @abstractmethod
    def describe(self, prediction: Prediction) -> str:
        """What is predicted, for people."""

    def config(self) -> dict[str, Any]:
        """Its name and arguments, as JSON."""
        return {"name": self.name, "output": self.output}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.config().items() if name != "name")
        return f"{type(self).__name__}({options})"


class Classification(Task):
    """The output holds one score per class, (n, C), and the prediction is the class with the largest.

    A single column, (n, 1) or (n,), is the logit of the second of two classes. Networks that predict a class per pixel
    give (n, C, H, W), or such logits (n, 1, H, W) or (n, H, W).

    Args:
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        logits: False when the scores are probabilities, as those of a network that ends in a softmax or a sigmoid.

    Example:
        >>> prediction = Classification().predict(torch.tensor([[0.1, 2.0, 0.3]]))
        >>> prediction.value, prediction.classes
        (tensor([1]), 3)
    """

    name: TaskName = "classification"
    discrete = True

    def __init__(self, output: int | str | None = None, *, logits: bool = True) -> None:
        super().__init__(output)
        self.logits = logits

    def predict(self, output: Any) -> Prediction:
        """The class of each input, and how many classes there are."""
        scores = tensor_of(output, self.output)
        if scores.dim() == 1:
            scores = scores[:, None]
        if scores.dim() != 2:
            raise ValueError(
                f"a classifier's output is (n, classes), but the network gave {show(scores)}. If it predicts a class "
                "for every pixel, pass pixels=Pixels(); if it has several outputs, choose one with output=."
            )
        return self._largest(scores)

    def predict_pixels(self, output: Any, size: tuple[int, int] | None = None) -> Prediction:
        """The class of each pixel, (n, H, W), of the output's grid or one that its scores are interpolated to."""
        return self._largest(resized(as_maps(tensor_of(output, self.output)), size))

    def scores(self, output: Any) -> Tensor:
        """Logits or log-probabilities of all classes, (n, C) with C at least 2."""
        scores = tensor_of(output, self.output)
        return self._log_scores(as_real(scores[:, None] if scores.dim() == 1 else scores))

    def score_maps(self, output: Any) -> Tensor:
        """Logits or log-probabilities of all classes at each pixel, (n, C, H, W)."""
        return self._log_scores(as_real(as_maps(tensor_of(output, self.output)), copy=False))

    def unusable(self, output: Any, prediction: Prediction) -> Tensor | None:
        """For which inputs or pixels no class can be told: one score is NaN or infinite, or all are -inf.

        A score of -inf beside others only rules its class out.
        """
        scores = tensor_of(output, self.output)
        if finite(scores):
            return None
        if prediction.value.dim() == 3:
            height, width = prediction.value.shape[1:]
            scores = resized(as_maps(scores), (height, width))
        wrong = ~scores.reshape(len(scores), -1, *scores.shape[2:]).amax(1).isfinite()
        return wrong if bool(wrong.any()) else None

    def condition(self, prediction: Tensor, label: Tensor | None, condition: Condition) -> Tensor:
        """The class of each input, (n,)."""
        if condition == "prediction":
            return prediction
        if label is None or label.dim() != 1 or label.is_floating_point():
            raise ValueError(
                f"condition='label' needs one whole-numbered label per input in the loader, but got {_shape_of(label)}."
            )
        return label.long().to(prediction.device)

    def describe(self, prediction: Prediction) -> str:
        """What is predicted, for people."""
        each = ", one per pixel" if prediction.value.dim() > 1 else ""
        return f"classification, {prediction.classes} classes{each}"

    def config(self) -> dict[str, Any]:
        """Its name and arguments, as JSON."""
        return {**super().config(), "logits": self.logits}

    def _largest(self, scores: Tensor) -> Prediction:
        if scores.shape[1] == 1:
            return Prediction((scores[:, 0] > (0 if self.logits else 0.5)).long(), 2)
        return Prediction(scores.argmax(1), scores.shape[1])

    def _log_scores(self, scores: Tensor) -> Tensor:
        single = scores.shape[1] == 1
        if self.logits:
            # Half of a single logit z for each of the two classes: the probabilities are those of (0, z), and the
            # energy is the same for z and -z.
            return torch.cat([-scores / 2, scores / 2], 1) if single else scores
        scores = torch.cat([1 - scores, scores], 1) if single else scores
        total = scores.sum(1)
        off = (total - 1).abs()
        wrong = (scores < 0).any() | (off.isfinite() & (off >= 2e-2)).any()  # the rest is `unusable`
        if not torch.compiler.is_compiling() and bool(wrong):
            raise ValueError(
                "logits=False takes probabilities that are not negative and sum to 1, but the network gave values from "
                f"{scores.min():.4g} to {scores.max():.4g} and sums from {total.min():.4g} to {total.max():.4g}. Leave "
                "logits=True for logits and for log-probabilities."
            )
        return scores.log()


class Regression(Task):
    """The output is one number per input, (n,) or (n, 1), or a vector of them, (n, q).

    Networks that predict a number per pixel give (n, 1, H, W) or (n, H, W).

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
    discrete = False

    def __init__(
        self, output: int | str | None = None, *, spread: int | str | None = None, spread_is: Spread = "variance"
    ) -> None:
        if spread_is not in get_args(Spread):
            raise ValueError(f"spread_is must be one of {get_args(Spread)}, not {spread_is!r}.")
        if spread is not None and spread != "columns" and output is None:
            raise ValueError(f"with spread={spread!r}, say where the prediction itself is: output=.")
        super().__init__(output)
        self.spread, self.spread_is = spread, spread_is

    def predict(self, output: Any) -> Prediction:
        """The number or numbers of each input, in at least float32, and the network's own variance of them."""
        values, spread = self._read(output, as_numbers)
        return Prediction(squeezed(values), variance=None if spread is None else squeezed(self._variance(spread)))

    def predict_pixels(self, output: Any, size: tuple[int, int] | None = None) -> Prediction:
        """The number of each pixel, (n, H, W), and the network's own variance of it."""
        values, spread = self._read(output, as_maps)
        if values.shape[1] != 1:
            raise ValueError(
                f"a number per pixel is (n, 1, H, W) or (n, H, W), but the network gave {show(values)}. If these are "
                "scores of classes, pass task='classification'; if they are a mean and a variance, "
                "task=Regression(spread='columns')."
            )
        variance = None if spread is None else resized(self._variance(spread), size)[:, 0]
        return Prediction(resized(values, size)[:, 0], variance=variance)

    def scores(self, output: Any) -> Tensor:
        """The predicted numbers, (n, q)."""
        return self._read(output, as_numbers)[0]

    def score_maps(self, output: Any) -> Tensor:
        """The predicted number of each pixel, (n, 1, H, W)."""
        return self._read(output, as_maps)[0]

    def unusable(self, output: Any, prediction: Prediction) -> Tensor | None:
        """For which inputs or pixels a number, or the network's own variance of it, is NaN or infinite."""
        parts = [part for part in (prediction.value, prediction.variance) if part is not None]
        if all(map(finite, parts)):
            return None
        wrong = torch.stack([~part.isfinite() for part in parts]).any(0)
        return wrong.any(1) if wrong.dim() == 2 else wrong

    def condition(self, prediction: Tensor, label: Tensor | None, condition: Condition) -> Tensor:
        """The number or numbers of each input, finite."""
        values = prediction if condition == "prediction" else match_labels(label, prediction)
        wrong = int((~values.isfinite()).sum())
        if wrong:
            raise ValueError(
                f"{wrong:,} of {values.numel():,} {condition}s are NaN or infinite: leave those inputs out, or find "
                "out why."
            )
        return values

    def describe(self, prediction: Prediction) -> str:
        """What is predicted, for people."""
        value = prediction.value
        if value.dim() == 2:
            return f"regression, {value.shape[1]} numbers per input"
        return f"regression, one number per {'input' if value.dim() == 1 else 'pixel'}"

    def config(self) -> dict[str, Any]:
        """Its name and arguments, as JSON."""
        return {**super().config(), "spread": self.spread, "spread_is": self.spread_is}

    def _read(self, output: Any, shape: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
        """Copies of the prediction and its spread in at least float32, their numbers along the second dimension."""
        values = as_real(shape(tensor_of(output, self.output)))
        if self.spread is None:
            return values, None
        if self.spread == "columns":
            if values.shape[1] % 2:
                raise ValueError(
                    f"spread='columns' takes the second half of the columns, but the network gave {values.shape[1]}."
                )
            values, spread = values.chunk(2, dim=1)
        else:
            spread = as_real(shape(tensor_of(output, self.spread, "spread")))
        if spread.shape != values.shape:
            raise ValueError(
                f"the network gave predictions {show(values)} with a spread {show(spread)}: they must agree."
            )
        return values, spread

    def _variance(self, spread: Tensor) -> Tensor:
        if self.spread_is == "log_variance":
            return spread.exp()
        low = 0.0 if torch.compiler.is_compiling() or not spread.numel() else float(spread.nan_to_num().min())
        if low < 0:
            raise ValueError(
                f"the network gave a {self.spread_is} of {low:.4g}; none can be negative. If it is a logarithm, pass "
                "spread_is='log_variance'."
            )
        return spread if self.spread_is == "variance" else spread.square()


def match_labels(label: Tensor | None, prediction: Tensor) -> Tensor:
    """Labels of numbers, in the shape of the predictions and where these are."""
    if label is None or label.numel() != prediction.numel():
        raise ValueError(
            f"condition='label' and intervals need labels of the predictions' shape, {tuple(prediction.shape)}, in the "
            f"loader, but got {_shape_of(label)}."
        )
    return label.reshape(prediction.shape).to(prediction.device, prediction.dtype)


TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Classification, Regression)}


def as_task(task: TaskName | Task | None, output: int | str | None = None) -> Task | None:
    """The task that a name stands for; a task or None is returned as it is."""
    if task is None:
        return None
    if isinstance(task, Task):
        if output is not None and output != task.output:
            raise ValueError(f"output={output!r} and the task's own output={task.output!r} differ: say it once.")
        return task
    if task not in get_args(TaskName):
        raise ValueError(f"task must be one of {get_args(TaskName)}, a task, or None, not {task!r}.")
    return TASKS[task](output)


def from_config(config: dict[str, Any]) -> Task:
    """The task that `Task.config` describes."""
    return TASKS[config["name"]](**{key: value for key, value in config.items() if key != "name"})


def _shape_of(label: Tensor | None) -> str:
    """Labels in the words of an error."""
    return "none" if label is None else f"{tuple(label.shape)} of {label.dtype}"
