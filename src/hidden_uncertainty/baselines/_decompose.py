"""What several predictions for one input say together: their agreement, and the doubt that each has of its own."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..inference import infer

CELLS, CELLS_ON_GPU = 1 << 18, 1 << 26  # members times inputs times classes at a time


class Parts(NamedTuple):
    """A prediction for n inputs and the two kinds of uncertainty, in the order of `Uncertainty`."""

    prediction: Tensor  # (n,) classes, or (n,) or (n, q) numbers
    epistemic: Tensor  # (n,)
    aleatoric: Tensor | None = None  # (n,)
    log_aleatoric: Tensor | None = None  # (n,)


def decompose_classes(scores: Tensor) -> Parts:
    r"""Mean entropy and mutual information of K predicted distributions over classes, in nats.

    .. math::
        \text{aleatoric} = \frac1K \sum_k H(p_k), \qquad
        \text{epistemic} = H(\bar p) - \frac1K \sum_k H(p_k)
            = \frac1K \sum_k \sum_c p_{kc} \left(e^{t_{kc}} - 1 - t_{kc}\right), \quad
        t_{kc} = \log \bar p_c - \log p_{kc}

    with p̄ the mean of the p_k, and the prediction its largest class. (The paper's appendix prints both entropies
    without their minus signs; these are the quantities it names.) The last form has terms that are never negative: it
    keeps its digits where the two entropies agree in all of theirs, and is exactly zero where all members are equal.

    Args:
        scores: logits or log-probabilities, (K, n, C).

    Example:
        >>> agree, differ = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]
        >>> parts = decompose_classes(torch.tensor([agree, differ]).log().transpose(0, 1))
        >>> parts.aleatoric, parts.epistemic
        (tensor([0.6931, 0.0000]), tensor([0.0000, 0.6931]))
    """
    # Some inputs at a time: of maps, all that lies on the way would take gigabytes, and on a CPU no cache holds it.
    cells = CELLS if scores.device.type == "cpu" else CELLS_ON_GPU
    rows = max(1, cells // (scores.shape[0] * scores.shape[2]))
    parts = [_decompose(part) for part in scores.split(rows, dim=1)]
    return parts[0] if len(parts) == 1 else Parts(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _decompose(scores: Tensor) -> Parts:
    members, n, classes = scores.shape
    posterior = infer(scores.flatten(0, 1), scores.new_zeros(classes))
    assert posterior.log_entropy is not None
    log_p = posterior.log_posterior.view_as(scores)
    best = log_p.amax(0)  # (n, C)
    # log of the mean of the p_k, by log1p and expm1 so that members who nearly agree are not rounded to one another.
    log_mean = best + torch.expm1(log_p - best).mean(0).log1p()
    t = log_mean - log_p  # (K, n, C), at least -log K
    p = log_p.exp()
    small = t.abs() < 0.25  # there e^t - 1 - t loses digits, which its series keeps
    one = t.new_ones(())
    series = one
    for k in range(9, 2, -1):
        series = torch.addcmul(one, t, series, value=1 / k)  # 1 + t / k · series
    far = log_mean.exp() - p - p * t  # never p · e^t: e^t overflows where p is zero
    information = torch.where(small, p * t.square() / 2 * series, far).sum(-1).mean(0)
    return Parts(
        log_mean.argmax(-1),
        information.clamp(0.0, math.log(min(members, classes))),
        posterior.entropy.view(members, n).mean(0),
        posterior.log_entropy.view(members, n).logsumexp(0) - math.log(members),
    )


def decompose_numbers(value: Tensor, variance: Tensor | None = None) -> Parts:
    r"""Mean variance and variance of the means of K predictions, in squared units of the output, summed over outputs.

    .. math::
        \text{aleatoric} = \frac1K \sum_k \sigma_k^2, \qquad
        \text{epistemic} = \frac1K \sum_k (\mu_k - \bar\mu)^2

    Their sum is the variance of the mixture of the K predictions.

    Args:
        value: predictions, (K, n) or (K, n, q).
        variance: the networks' own, of the same shape; without it there is no aleatoric uncertainty.

    Example:
        >>> decompose_numbers(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.5], [1.5]]))[:3]
        (tensor([2.]), tensor([1.]), tensor([1.]))
    """
    mean = (value / len(value)).sum(0)  # the sum of undivided ones may overflow
    spread = (value - mean).square().mean(0)
    return Parts(mean, _total(spread), None if variance is None else _total(variance.mean(0)))


def _total(variance: Tensor) -> Tensor:
    """One number an input, saturated where the dtype ends."""
    total = variance if variance.dim() == 1 else variance.sum(-1)
    return total.clamp(max=torch.finfo(total.dtype).max)
