"""What every metric does with its arguments: one precision, no NaN, no order among ties."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..arrays import to_tensor

Values: TypeAlias = Tensor | ArrayLike  # whatever torch.as_tensor takes
P = ParamSpec("P")
R = TypeVar("R")


def by_name(elsewhere: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Say what to write when arguments come without their names, and what users of another library may have meant."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        first = [one.name for one in parameters if one.name not in named]
        call = ", ".join([*(name for name in first if name != "self"), *(f"{name}=..." for name in named)])
        message = f"{function.__name__} takes arguments by name: write {function.__name__}({call}). {elsewhere}"

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) > len(first):
                raise TypeError(message.rstrip())
            return function(*args, **kwargs)

        return checked

    return decorate


def as_scores(values: Values, name: str) -> Tensor:
    """`values` as a float64 tensor, without gradient; ValueError when it is empty or holds NaN.

    Args:
        values: anything that `torch.as_tensor` takes.
        name: what the error calls it.

    Example:
        >>> as_scores([1, 2], "negative")
        tensor([1., 2.], dtype=torch.float64)
    """
    values = to_tensor(values)
    if isinstance(values, Tensor):
        # Apple's GPUs have no float64.
        scores = (values.detach().cpu() if values.device.type == "mps" else values.detach()).double()
    else:
        scores = torch.as_tensor(values, dtype=torch.float64, device="cpu")
    if scores.numel() == 0:
        raise ValueError(f"{name} is empty (shape {tuple(scores.shape)}): give at least one value.")
    missing = int(scores.isnan().sum())
    if missing:
        raise ValueError(f"{name} holds {missing} NaN among {scores.numel()} values: leave them out.")
    return scores


def last_of_ties(ordered: Tensor) -> Tensor:
    """Positions at which runs of equal values end, (groups,)."""
    last = torch.ones(len(ordered), dtype=torch.bool, device=ordered.device)
    torch.ne(ordered[1:], ordered[:-1], out=last[:-1])
    return last.nonzero().flatten()


def alike(**values: Values) -> list[Tensor]:
    """Flat float64 tensors on the device of the first; their shapes must be the same."""
    tensors = {name: as_scores(given, name) for name, given in values.items()}
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if len(set(shapes)) > 1:
        raise ValueError(
            f"{_listed(tensors)} must have the same shape, got {_listed(shapes)}: give one value per input, and "
            "squeeze (n, 1) to (n,) first."
        )
    device = next(iter(tensors.values())).device
    return [tensor.flatten().to(device) for tensor in tensors.values()]


def _listed(things: Iterable[object]) -> str:
    *most, last = map(str, things)
    return f"{', '.join(most)} and {last}"


def mean_of_kept(scores: Tensor, values: Tensor) -> Tensor:
    """Mean of the values with the k lowest scores, k from 1 to n, averaged over all orders of equal scores."""
    scores, order = scores.sort()
    last = last_of_ties(scores)
    ends = torch.nn.functional.pad(last + 1, (1, 0))  # inputs kept after each whole group, from 0
    sums = torch.nn.functional.pad(values[order].cumsum(0)[last], (1, 0))  # and the sum of their values
    sizes = ends.diff()
    k = torch.arange(1, len(scores) + 1, device=scores.device)
    group = torch.repeat_interleave(sizes)  # (n,)
    # Product before quotient: at the end of a group the division of integers is exact.
    part = (k - ends[group]) * sums.diff()[group] / sizes[group].double()
    return (sums[group] + part) / k
