"""How well scores detect, tell right from wrong and state confidence; and what every metric does with its arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad

from ..arrays import to_tensor

Values: TypeAlias = Tensor | ArrayLike  # whatever torch.as_tensor takes
P = ParamSpec("P")
R = TypeVar("R")

_SCIKIT_LEARN = (
    "scikit-learn's order is (y_true, y_score): negative is y_score[y_true == 0], positive is y_score[y_true == 1]."
)


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
    """Values as a float64 tensor without gradient; an error with their name if there are none or some are NaN."""
    values = to_tensor(values)
    if not isinstance(values, Tensor):
        values = torch.as_tensor(values, dtype=torch.float64, device="cpu")
    # Apple's GPUs have no float64.
    scores = (values.cpu() if values.device.type == "mps" else values).detach().double()
    if scores.numel() == 0:
        raise ValueError(f"{name} is empty (shape {tuple(scores.shape)}): give at least one value.")
    missing = int(scores.isnan().sum())
    if missing:
        raise ValueError(f"{name} holds {missing} NaN among {scores.numel()} values: leave them out.")
    return scores


def alike(**values: Values) -> list[Tensor]:
    """Flat float64 tensors on the device of the first; their shapes must be the same."""
    tensors = {name: as_scores(given, name) for name, given in values.items()}
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if len(set(shapes)) > 1:
        raise ValueError(
            f"{' and '.join(tensors)} must have the same shape, got {' and '.join(map(str, shapes))}: give one value "
            "per input, and squeeze (n, 1) to (n,) first."
        )
    device = next(iter(tensors.values())).device
    return [tensor.flatten().to(device) for tensor in tensors.values()]


def mean_of_kept(scores: Tensor, values: Tensor) -> Tensor:
    """Mean of the values with the k lowest scores, k from 1 to n, averaged over all orders of equal scores."""
    scores, order = scores.sort()
    _, sizes = scores.unique_consecutive(return_counts=True)
    ends = pad(sizes.cumsum(0), (1, 0))  # inputs kept after each whole group, from 0
    sums = pad(values[order].cumsum(0), (1, 0))[ends]  # and the sum of their values
    k = torch.arange(1, len(scores) + 1, device=scores.device)
    group = torch.repeat_interleave(sizes)  # (n,)
    # Product before quotient: at the end of a group the division of integers is exact.
    part = (k - ends[group]) * sums.diff()[group] / sizes[group].double()
    return (sums[group] + part) / k


@by_name(_SCIKIT_LEARN)
def auroc(*, negative: Values, positive: Values) -> float:
    r"""Area under the ROC curve: the chance that a positive scores above a negative, a tie counting half.

    .. math:: P(s_+ > s_-) + \tfrac12 P(s_+ = s_-)

    1 is perfect detection, ½ is chance. The count of pairs is exact.

    Args:
        negative: scores of in-distribution inputs, any shape.
        positive: scores of the inputs to be detected, any shape.

    Example:
        >>> auroc(negative=[0.1, 0.2, 0.3], positive=[0.3, 0.9])
        0.9166666666666666
    """
    fp, tp = _counts(negative, positive)
    twice_pairs = int((fp.diff() * (tp[1:] + tp[:-1])).sum())
    return twice_pairs / (2 * int(fp[-1]) * int(tp[-1]))


@by_name(_SCIKIT_LEARN)
def average_precision(*, negative: Values, positive: Values) -> float:
    r"""Area under the precision-recall curve as a step function, as scikit-learn defines it; arguments as for `auroc`.

    .. math:: \sum_t (R_t - R_{t-1})\, P_t

    with precision :math:`P_t` and recall :math:`R_t` at each distinct score :math:`t`, highest first. Chance is the
    share of positives, so it depends on how many there are of each group.

    Example:
        >>> average_precision(negative=[0.1, 0.2, 0.3], positive=[0.25, 0.9])
        0.8333333333333333
    """
    fp, tp = _counts(negative, positive)
    precision = tp[1:].double() / (tp[1:] + fp[1:])
    return float((tp.diff() * precision).sum() / tp[-1])


@by_name(_SCIKIT_LEARN)
def fpr_at_tpr(*, negative: Values, positive: Values, tpr: float = 0.95) -> float:
    """Share of negatives at or above the highest threshold that catches at least `tpr` of the positives ("FPR95").

    Lower is better. Inputs whose score equals the threshold are caught: the answer is a point of `roc_curve`.

    Args:
        negative, positive: as for `auroc`.
        tpr: share of positives to catch, in (0, 1].

    Example:
        >>> fpr_at_tpr(negative=[0.1, 0.2, 0.3, 0.4], positive=[0.3, 0.5, 0.6, 0.7], tpr=0.95)
        0.5
    """
    fp, tp = _counts(negative, positive)
    first = torch.searchsorted(tp, positives_to_catch(int(tp[-1]), tpr))
    return int(fp[first]) / int(fp[-1])


@by_name(_SCIKIT_LEARN)
def roc_curve(*, negative: Values, positive: Values) -> tuple[Tensor, Tensor]:
    """False and true positive rates as the threshold falls, one point per distinct score; arguments as for `auroc`.

    Returns:
        Two float64 vectors that rise from (0, 0) to (1, 1); the area under straight lines between them is `auroc`.

    Example:
        >>> fpr, tpr = roc_curve(negative=[0.1, 0.3], positive=[0.3, 0.9])
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    fp, tp = _counts(negative, positive)
    return fp.double() / fp[-1], tp.double() / tp[-1]


def accuracy_rejection(uncertainty: Values, correct: Values) -> tuple[Tensor, Tensor]:
    """Accuracy of the k least uncertain inputs, for every k from 1 to n.

    Inputs of equal uncertainty could be kept in any order: the accuracy is its mean over all those orders.

    Args:
        uncertainty: one score per input.
        correct: whether the prediction was right, of the same shape: booleans, or 0 and 1.

    Returns:
        The share kept k/n and the accuracy of the kept, float64 vectors of length n.

    Example:
        >>> kept, accuracy = accuracy_rejection([0.1, 0.2, 0.2, 0.9], [True, True, False, False])
        >>> kept.tolist(), accuracy.tolist()
        ([0.25, 0.5, 0.75, 1.0], [1.0, 0.75, 0.6666666666666666, 0.5])
    """
    scores, right = _scores_and_correct(uncertainty, correct, "uncertainty")
    kept = torch.arange(1, len(scores) + 1, dtype=torch.float64, device=scores.device) / len(scores)
    return kept, mean_of_kept(scores, right.long())


def aurc(uncertainty: Values, correct: Values) -> float:
    r"""Area under the risk-coverage curve: the error rate of the kept, averaged over how many are kept.

    .. math:: \frac1n \sum_{k=1}^n \big(1 - \text{accuracy of the } k \text{ least uncertain}\big)

    Lower is better; a random uncertainty gives, in expectation, the error rate. Arguments and ties are as in
    `accuracy_rejection`.

    Example:
        >>> aurc([0.1, 0.2, 0.3, 0.9], [True, True, True, False])
        0.0625
    """
    _, accuracy = accuracy_rejection(uncertainty, correct)
    return float((1 - accuracy).mean())


def expected_calibration_error(confidence: Values, correct: Values, bins: int = 15) -> float:
    r"""Mean distance between confidence and accuracy over bins of equal width (Guo et al. 2017, eq. 3).

    .. math:: \sum_{b=1}^{B} \frac{n_b}{n} \big| \text{accuracy}_b - \overline{\text{confidence}}_b \big|

    Bin b holds confidences in :math:`((b-1)/B, b/B]`; a confidence of exactly 0 goes into the first.

    Args:
        confidence: probability that the network gave to its prediction, in [0, 1].
        correct: whether the prediction was right, of the same shape: booleans, or 0 and 1.
        bins: B, at least 1.

    Example:
        >>> round(expected_calibration_error([0.9, 0.9, 0.6, 0.6], [True, True, True, False]), 6)
        0.1
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}.")
    stated, right = _scores_and_correct(confidence, correct, "confidence")
    low, high = float(stated.min()), float(stated.max())
    if low < 0 or high > 1 + 1e-6:  # sums of float32 probabilities end a little above 1
        raise ValueError(f"confidence must lie in [0, 1], got values from {low:g} to {high:g}: pass probabilities.")
    stated, order = stated.sort()
    edges = torch.arange(1, bins, dtype=torch.float64, device=stated.device) / bins  # linspace rounds them otherwise
    ends = torch.searchsorted(stated, edges, right=True).tolist()
    # n_b (accuracy_b - confidence_b) is a plain sum over the bin; sums of slices are reproducible on every device.
    gaps = [gap.sum().abs() for gap in (right[order].double() - stated).tensor_split(ends)]
    return float(torch.stack(gaps).sum()) / len(stated)


def positives_to_catch(count: int, tpr: float) -> int:
    """The fewest of `count` positives that are a share of at least `tpr`."""
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must be above 0 and at most 1, got {tpr}.")
    caught = math.ceil(tpr * count)
    return caught - 1 if (caught - 1) / count >= tpr else caught  # 0.07 * 100 rounds to just above 7


def raulc(uncertainty: Values, correct: Values) -> float:
    r"""Area between the lift curve and 1, relative to that of the best order (Postels et al. 2022).

    .. math:: \frac{\text{AULC}(\text{uncertainty})}{\text{AULC}(\text{oracle})}, \qquad
        \text{AULC} = \frac1n \sum_{k=1}^n
        \frac{\text{accuracy of the } k \text{ least uncertain}}{\text{accuracy of all}} - 1

    The oracle puts all wrong predictions last and has 1. A random uncertainty has 0 in expectation, and one that keeps
    wrong predictions rather than right ones is negative. Arguments are as in `accuracy_rejection`; some predictions
    must be right, and some wrong.

    Example:
        >>> round(raulc([0.1, 0.2, 0.8, 0.9], [True, False, True, False]), 3)
        0.571
    """
    _, accuracy = accuracy_rejection(uncertainty, correct)
    if accuracy[-1] in (0, 1):
        which = "all" if accuracy[-1] else "none"
        raise ValueError(f"{which} of {len(accuracy)} predictions are right: no order is better than another.")
    right = as_scores(correct, "correct")
    _, best = accuracy_rejection(-right, right)
    return float(accuracy.mean() - accuracy[-1]) / float(best.mean() - best[-1])


def _counts(negative: Values, positive: Values) -> tuple[Tensor, Tensor]:
    """Negatives and positives at or above each distinct score, highest first, after a leading (0, 0)."""
    low = as_scores(negative, "negative").flatten()
    high = as_scores(positive, "positive").flatten().to(low.device)
    scores, order = torch.cat([low, high]).sort(descending=True)
    _, sizes = scores.unique_consecutive(return_counts=True)
    ends = pad(sizes.cumsum(0), (1, 0))
    tp = pad((order >= len(low)).cumsum(0), (1, 0))[ends]
    return ends - tp, tp


def _scores_and_correct(scores: Values, correct: Values, name: str) -> tuple[Tensor, Tensor]:
    values, right = alike(**{name: scores, "correct": correct})
    binary = (right == 0) | (right == 1)
    if not binary.all():
        odd = float(right[~binary][0])
        raise ValueError(f"correct must hold booleans, or 0 and 1, got {odd:g}: pass prediction == label.")
    return values, right.bool()
