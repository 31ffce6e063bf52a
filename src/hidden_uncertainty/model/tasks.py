"""What ŷ is: how a prediction is read from a network's output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .outputs import (
    as_maps,
    as_numbers,
    as_real,
    finite,
    match_labels,
    resized,
    shape_of,
    show,
    tensor_of,
    to_logits,
    whole_labels,
)

TaskName = Literal["classification", "regression", "multi-label"]
Condition = Literal["prediction", "label"]
Spread = Literal["variance", "log_variance", "deviation"]


class Prediction(NamedTuple):
    """What a network predicts for n inputs."""

    value: Tensor  # classes or numbers (n,), vectors or labels (n, q); of pixels, classes or numbers (n, H, W)
    classes: int | None = None  # how many there are; 2 for labels, each of which is 0 or 1
    variance: Tensor | None = None  # the network's own, of the shape of value
    probabilities: Tensor | None = None  # of each class, (n, C), where several networks or passes tell them together


class Task(ABC):
    """What a network predicts, and all that differs by it; `output` says which tensor, of a tuple or a dict."""

    name: TaskName
    discrete: bool  # whether predictions are classes, which can be counted

    def __init__(self, output: int | str | None = None) -> None:
        self.output = output

    @abstractmethod
    def predict(self, output: Any) -> Prediction:
        """What is predicted for each input."""

    def predict_pixels(self, output: Any, size: tuple[int, ...] | None = None) -> Prediction:
        """What is predicted for each pixel, on the output's grid or on one of another size."""
        raise ValueError(f"task={self.name!r} is for whole inputs, not for pixels: leave pixels= out.")

    @abstractmethod
    def scores(self, output: Any, *, maps: bool = False) -> Tensor:
        """The output itself as numbers per input, (n, C), a copy in at least float32.

        With `maps` as numbers per pixel, (n, C, H, W), which may share the output's memory.
        """

    @abstractmethod
    def unusable(self, output: Any, prediction: Prediction) -> Tensor | None:
        """For which inputs, (n,), or pixels, (n, H, W), the output is NaN or infinite; None where for none."""

    def condition(self, prediction: Tensor, label: Tensor | None, condition: Condition) -> Tensor:
        """What densities are conditioned on: the predictions, or the labels in their shape; an error without these."""
        whole = prediction if condition == "prediction" else whole_labels(label, prediction)
        if whole is None:
            raise ValueError(
                f"condition='label' needs whole-numbered labels of the predictions' shape, {tuple(prediction.shape)}, "
                f"in the loader, but got {shape_of(label)}."
            )
        return whole

    def describe(self, prediction: Prediction) -> str:
        """What is predicted, for people."""
        value, per_pixel = prediction.value, prediction.value.dim() == 3
        if self.discrete:
            what = f"{value.shape[1]} labels" if value.dim() == 2 else f"{prediction.classes} classes"
            return f"{self.name}, {what}{', one per pixel' if per_pixel else ''}"
        count = f"{value.shape[1]} numbers" if value.dim() == 2 else "one number"
        return f"{self.name}, {count} per {'pixel' if per_pixel else 'input'}"

    def config(self) -> dict[str, Any]:
        """Its name and arguments, as JSON."""
        return {"name": self.name, **{option: getattr(self, option) for option in signature(type(self)).parameters}}

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

    def predict_pixels(self, output: Any, size: tuple[int, ...] | None = None) -> Prediction:
        """The class of each pixel, (n, H, W), of the output's grid or one that its scores are interpolated to."""
        return self._largest(resized(as_maps(tensor_of(output, self.output)), size))

    def scores(self, output: Any, *, maps: bool = False) -> Tensor:
        """Logits or log-probabilities of all classes, (n, C) or (n, C, H, W), with C at least 2."""
        scores = tensor_of(output, self.output)
        scores = as_maps(scores) if maps else scores[:, None] if scores.dim() == 1 else scores
        scores = as_real(scores, copy=not maps)
        single = scores.shape[1] == 1
        if not self.logits and not torch.compiler.is_compiling():
            total = scores.sum(1)
            off = (total - 1).clamp(min=0) if single else (total - 1).abs()
            if bool((scores < 0).any()) or bool((off.isfinite() & (off >= 2e-2)).any()):  # the rest is `unusable`
                raise ValueError(
                    f"logits=False takes probabilities, not negative and of sum 1, but the network gave values from "
                    f"{scores.min():.4g} to {scores.max():.4g} and sums from {total.min():.4g} to {total.max():.4g}. "
                    "Leave logits=True for logits and for log-probabilities."
                )
        if single:
            # Half of a single logit z for each of the two classes: the probabilities are those of (0, z), and the
            # energy is the same for z and -z.
            half = (scores if self.logits else to_logits(scores)) / 2
            return torch.cat([-half, half], 1)
        return scores if self.logits else scores.log()

    def unusable(self, output: Any, prediction: Prediction) -> Tensor | None:
        """For which inputs or pixels no class can be told: one score is NaN or infinite, or all are -inf.

        A score of -inf beside others only rules its class out.
        """
        scores = tensor_of(output, self.output)
        if finite(scores):
            return None
        if prediction.value.dim() == 3:
            scores = resized(as_maps(scores), prediction.value.shape[1:])
        wrong = ~scores.reshape(len(scores), -1, *scores.shape[2:]).amax(1).isfinite()
        return wrong if bool(wrong.any()) else None

    def _largest(self, scores: Tensor) -> Prediction:
        if scores.shape[1] == 1:
            return Prediction((scores[:, 0] > (0 if self.logits else 0.5)).long(), 2)
        return Prediction(scores.argmax(1), scores.shape[1])


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
        return Prediction(values.squeeze(1), variance=None if spread is None else self._variance(spread).squeeze(1))

    def predict_pixels(self, output: Any, size: tuple[int, ...] | None = None) -> Prediction:
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

    def scores(self, output: Any, *, maps: bool = False) -> Tensor:
        """The predicted numbers, (n, q), or the one of each pixel, (n, 1, H, W)."""
        return self._read(output, as_maps if maps else as_numbers)[0]

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

    def _read(self, output: Any, shape: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
        """Copies of the prediction and its spread in at least float32, their numbers along the second dimension."""
        values = as_real(shape(tensor_of(output, self.output)))
        if self.spread is None:
            return values, None
        if self.spread == "columns":
            half = values.shape[1] // 2
            values, spread = values[:, :half], values[:, half:]
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


class MultiLabel(Task):
    """The output holds one logit per label, (n, L), and an input may have several labels, or none.

    The prediction is (n, L) whole numbers: 1 for each label whose probability is above the threshold, 0 for the others.
    Labels in a loader are zeros and ones of this shape. No output is taken for this by itself: say it.

    Args:
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        logits: False when the outputs are probabilities, as those of a network that ends in a sigmoid.
        threshold: the probability above which a label is predicted, for all labels, or one for each.

    Example:
        >>> MultiLabel().predict(torch.tensor([[2.0, -1.0, 0.5], [-3.0, -1.0, -2.0]])).value
        tensor([[1, 0, 1],
                [0, 0, 0]])
    """

    name: TaskName = "multi-label"
    discrete = True

    def __init__(
        self, output: int | str | None = None, *, logits: bool = True, threshold: float | Sequence[float] = 0.5
    ) -> None:
        super().__init__(output)
        limits = torch.as_tensor(threshold, dtype=torch.float64, device="cpu")
        self.logits, self.threshold = logits, limits.tolist()
        if not bool(((limits > 0) & (limits < 1)).all()):
            raise ValueError(f"threshold is a probability between 0 and 1, or one for each label, not {threshold!r}.")

    def predict(self, output: Any) -> Prediction:
        """Which labels each input has, (n, L)."""
        values = self._read(output)
        limit = torch.as_tensor(self.threshold, dtype=values.dtype, device=values.device)
        if limit.dim() and limit.shape != values.shape[1:]:
            raise ValueError(f"threshold= has {len(limit)} numbers, but the network gave {values.shape[1]} labels.")
        return Prediction((values > (limit.logit() if self.logits else limit)).long(), 2)

    def scores(self, output: Any, *, maps: bool = False) -> Tensor:
        """The logit of each label, (n, L)."""
        values = self._read(output)
        return values.clone() if self.logits else to_logits(values)

    def unusable(self, output: Any, prediction: Prediction) -> Tensor | None:
        """For which inputs the output of some label is NaN or infinite."""
        values = tensor_of(output, self.output)
        return None if finite(values) else ~values.isfinite().all(1)

    def _read(self, output: Any) -> Tensor:
        """The logits or probabilities of labels, (n, L), in at least float32."""
        values = as_real(tensor_of(output, self.output), copy=False)
        if values.dim() != 2 or values.shape[1] < 2:
            raise ValueError(
                f"the output for several labels is (n, labels), but the network gave {show(values)}. A single label is "
                "task='classification'; if the network has several outputs, choose one with output=."
            )
        if not self.logits and bool(((values < 0) | (values > 1)).any()):
            raise ValueError(
                f"logits=False takes probabilities from 0 to 1, but the network gave values from {values.min():.4g} to "
                f"{values.max():.4g}. Leave logits=True for logits."
            )
        return values


TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Classification, Regression, MultiLabel)}


def as_task(task: TaskName | Task | None, output: int | str | None = None) -> Task | None:
    """The task that a name stands for; a task or None is returned as it is."""
    if isinstance(task, Task) and output is not None and output != task.output:
        raise ValueError(f"output={output!r} and the task's own output={task.output!r} differ: say it once.")
    if task is None or isinstance(task, Task):
        return task
    if task not in get_args(TaskName):
        raise ValueError(f"task must be one of {get_args(TaskName)}, a task, or None, not {task!r}.")
    return TASKS[task](output)


def from_config(config: dict[str, Any]) -> Task:
    """The task that `Task.config` describes."""
    return TASKS[config["name"]](**{key: value for key, value in config.items() if key != "name"})
