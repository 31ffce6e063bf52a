"""How much better the predictions are that an uncertainty keeps, relative to all of them and to the best order."""

from __future__ import annotations

from torch import Tensor

from ._values import Values, as_scores
from .detection import accuracy_rejection


def lift_curve(uncertainty: Values, correct: Values) -> tuple[Tensor, Tensor]:
    r"""Accuracy of the k least uncertain inputs, relative to that of all, for every k from 1 to n.

    .. math:: \text{lift}_k = \frac{\text{accuracy of the } k \text{ least uncertain}}{\text{accuracy of all}}

    It ends at 1; an uncertainty that knows nothing stays there in expectation. Ties as in `accuracy_rejection`.

    Args:
        uncertainty: one score an input.
        correct: whether the prediction was right, of the same shape: booleans, or 0 and 1. One at least must be.

    Returns:
        The share kept k/n and the lift, float64 vectors of length n.

    Example:
        >>> kept, lift = lift_curve([0.1, 0.2, 0.8, 0.9], [True, True, False, False])
        >>> kept.tolist(), lift.round(decimals=3).tolist()
        ([0.25, 0.5, 0.75, 1.0], [2.0, 2.0, 1.333, 1.0])
    """
    kept, accuracy = accuracy_rejection(uncertainty, correct)
    if not accuracy[-1]:
        raise ValueError(f"none of {len(accuracy)} predictions is right: there is no accuracy to be relative to")
    return kept, accuracy / accuracy[-1]


def raulc(uncertainty: Values, correct: Values) -> float:
    r"""Area between the lift curve and 1, relative to that of the best order (Postels et al. 2022).

    .. math:: \frac{\text{AULC}(\text{uncertainty})}{\text{AULC}(\text{oracle})}, \qquad
        \text{AULC} = \frac1n \sum_{k=1}^n \text{lift}_k - 1

    The oracle puts all wrong predictions last and has 1. An uncertainty that knows nothing has 0 in expectation, one
    that keeps wrong predictions rather than right ones less.

    Args:
        uncertainty: one score an input.
        correct: whether the prediction was right, of the same shape: booleans, or 0 and 1. Some must be, and some not.

    Example:
        >>> raulc([0.1, 0.2, 0.8, 0.9], [True, True, False, False])
        1.0
        >>> round(raulc([0.1, 0.2, 0.8, 0.9], [True, False, True, False]), 3)
        0.571
    """
    _, lift = lift_curve(uncertainty, correct)
    right = as_scores(correct, "correct")
    if bool(right.all()):
        raise ValueError(f"all of {right.numel()} predictions are right: no order of them is better than another")
    _, best = lift_curve(-right, right)
    return float((lift.mean() - 1) / (best.mean().to(lift.device) - 1))
