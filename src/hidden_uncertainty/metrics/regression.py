"""How large the errors of numbers are, and how well scores rank them.

The *error* of an input is one number, prediction minus target or its size; of vectors it is the length of that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .detection import Values, alike, as_scores, by_name, mean_of_kept


def rmse(prediction: Values, target: Values) -> float:
    r"""Root of the mean squared error, over all numbers.

    .. math:: \sqrt{\tfrac1n \sum_i (\hat y_i - y_i)^2}

    Args:
        prediction: numbers of any shape.
        target: the true numbers, of the same shape.

    Example:
        >>> rmse([1.0, 2.0, 3.0], [1.0, 2.0, 6.0]) == 3**0.5
        True
    """
    predicted, true = alike(prediction=prediction, target=target)
    difference = _finite(predicted, "prediction") - _finite(true, "target")
    size = _size(difference)
    return size * math.sqrt(float((difference / size).square().mean()))


def rank_correlation(a: Values, b: Values) -> float:
    """Spearman's correlation: how far two scores agree on the order of inputs; equal values share a rank.

    1 is the same order, -1 the opposite, 0 none. A score with a single value has no order and raises a ValueError.

    Args:
        a: one score per input.
        b: another, of the same shape.

    Example:
        >>> rank_correlation([0.1, 0.5, 0.9, 2.0], [1.0, 10.0, 100.0, 99.0])
        0.8
    """
    first, second = (_ranks(values, name) for name, values in zip("ab", alike(a=a, b=b), strict=True))
    # Ranks are multiples of a half, so these sums are exact.
    return float((first * second).sum() / (first.square().sum() * second.square().sum()).sqrt())


@by_name()
def sparsification(*, uncertainty: Values, error: Values) -> tuple[Tensor, Tensor]:
    """Error of the rest when the most uncertain inputs are removed, for every number of them from 0 to n - 1.

    Inputs of equal uncertainty could be removed in any order: the mean squared error is averaged over all orders.

    Args:
        uncertainty: one score per input.
        error: of the same shape; its sign does not matter.

    Returns:
        The share removed, and the root of the mean squared error of the rest: float64 vectors of length n.

    Example:
        >>> removed, rest = sparsification(uncertainty=[0.1, 0.9, 0.2, 0.8], error=[3.0, 4.0, 3.0, -3.0])
        >>> removed.tolist(), rest.tolist()
        ([0.0, 0.25, 0.5, 0.75], [3.278719262151, 3.0, 3.0, 3.0])
    """
    scores, errors = alike(uncertainty=uncertainty, error=error)
    size = _size(_finite(errors, "error"))
    kept = mean_of_kept(scores, (errors / size).square())
    removed = torch.arange(len(scores), dtype=torch.float64, device=scores.device) / len(scores)
    return removed, size * kept.flip(0).sqrt()


def sparsification_oracle(error: Values) -> tuple[Tensor, Tensor]:
    """The lowest curve that any uncertainty can have in `sparsification`: the largest errors are removed first.

    Args:
        error: one number per input; its sign does not matter.

    Example:
        >>> removed, rest = sparsification_oracle([3.0, 4.0, -3.0, 0.0])
        >>> rest[1:].tolist() == [6**0.5, 4.5**0.5, 0.0]
        True
    """
    errors = as_scores(error, "error")
    return sparsification(uncertainty=errors.abs(), error=errors)


@by_name()
def ause(*, uncertainty: Values, error: Values) -> float:
    r"""Area between the sparsification curve and the oracle's, in units of the error of all inputs (Ilg et al. 2018).

    .. math:: \frac1n \sum_{k=0}^{n-1} \frac{e_k - e^*_k}{e_0}

    with :math:`e_k` the root of the mean squared error without the :math:`k` most uncertain inputs and
    :math:`e^*_k` without the :math:`k` of largest error. 0 is the perfect order, and what no error at all gives.
    Arguments are as in `sparsification`.

    Example:
        >>> ause(uncertainty=[4.0, 3.0, 2.0, 1.0], error=[0.0, -1.0, 1.0, 5.0]) > 0.7
        True
    """
    _, rest = sparsification(uncertainty=uncertainty, error=error)
    _, best = sparsification_oracle(error)
    total = float(rest[0])
    # Rounding may put the curve slightly below the oracle.
    return max(float((rest - best.to(rest.device)).mean()) / total, 0.0) if total else 0.0


def psnr(x: Values, reconstruction: Values, peak: float = 1.0) -> float:
    r"""Peak signal-to-noise ratio in decibels, over all images together; infinite where nothing differs.

    .. math:: 10 \log_{10} \frac{\mathrm{peak}^2}{\mathrm{MSE}(x, \hat x)}

    Args:
        x: images of any shape.
        reconstruction: of the same shape.
        peak: the largest value that a pixel can have: 1 for images in [0, 1], 255 for bytes.

    Example:
        >>> round(psnr([0.0, 1.0], [0.1, 0.9]), 6)
        20.0
    """
    true, found = alike(x=x, reconstruction=reconstruction)
    if not (peak > 0 and math.isfinite(peak)):
        raise ValueError(f"peak must be positive and finite, got {peak}.")
    error = float((_finite(true, "x") - _finite(found, "reconstruction")).div_(peak).square_().mean())
    return math.inf if error == 0 else -10 * math.log10(error)


def _finite(values: Tensor, name: str) -> Tensor:
    infinite = int(values.isinf().sum())
    if infinite:
        raise ValueError(f"{name} holds {infinite} infinite among {len(values)} values: leave them out.")
    return values


def _size(values: Tensor) -> float:
    """A power of two to divide by before squaring, so that nothing overflows or underflows."""
    largest = float(values.abs().max())
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0


def _ranks(values: Tensor, name: str) -> Tensor:
    """Centred ranks; equal values share the mean of theirs."""
    distinct, group, counts = values.unique(return_inverse=True, return_counts=True)
    if len(distinct) == 1:
        raise ValueError(f"{name} holds {len(values)} times the value {float(distinct):g}, which has no order.")
    return (counts.cumsum(0).double() - (counts.double() - 1) / 2)[group] - (len(values) + 1) / 2
