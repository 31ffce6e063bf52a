"""What ŷ is: how a prediction is read from a network's output."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from .capture import select

TaskName = Literal["classification"]


class Classification:
    """The output holds one score a class, (n, C), and the prediction is the class with the largest.

    A single column, (n, 1) or (n,), is the logit of the second of two classes.

    Args:
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).

    Example:
        >>> prediction, classes = Classification().predict(torch.tensor([[0.1, 2.0, 0.3]]))
        >>> prediction, classes
        (tensor([1]), 3)
    """

    name: TaskName = "classification"

    def __init__(self, output: int | str | None = None) -> None:
        self.output = output

    def predict(self, output: Any) -> tuple[Tensor, int]:
        """The class of each input (n,), and how many classes there are."""
        scores = _scores(output, self.output)
        if scores.dim() == 1 or (scores.dim() == 2 and scores.shape[1] == 1):
            return (scores.reshape(len(scores)) > 0).long(), 2
        if scores.dim() != 2:
            raise ValueError(
                f"a classifier's output is (n, classes), but the network gave {_show(scores)}. Networks that predict a "
                "class a pixel are not supported yet; of several outputs, choose one with output=."
            )
        return scores.argmax(1), scores.shape[1]


def infer_task(output: Any, label: Tensor | None, choose: int | str | None) -> Classification:
    """The task that an output and labels leave no doubt about; an error that asks, where they do.

    Example:
        >>> infer_task(torch.randn(8, 10), None, None).name
        'classification'
    """
    scores = _scores(output, choose)
    classes = scores.shape[1] if scores.dim() == 2 else 0
    whole = label is not None and label.dim() == 1 and not label.is_floating_point()
    if label is not None and whole and classes >= 2 and int(label.min()) >= 0 and int(label.max()) < classes:
        return Classification(choose)
    if label is None and classes >= 3:
        return Classification(choose)
    with_labels = "without labels" if label is None else f"with labels {_show(label)} of {label.dtype}"
    raise ValueError(
        f"an output of {_show(scores)} {with_labels} does not say what the network predicts. "
        "If the outputs are scores of classes, pass task='classification'."
    )


def _scores(output: Any, choose: int | str | None) -> Tensor:
    scores = select(output, choose, "the network", "output")
    if scores.dim() == 0:
        raise ValueError("the network gave a single number; its output must have one row an input, (n, ...).")
    return scores


def _show(tensor: Tensor) -> str:
    return f"({', '.join(['n', *map(str, tensor.shape[1:])])})"
