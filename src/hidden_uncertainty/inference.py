"""Bayes over one support: the evidence p(z), the posterior p(y|z) and its entropy, in log space (paper eq. 5 and 6)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Posterior(NamedTuple):
    """What `infer` gives for n inputs and m support points, in nats.

    `-log_evidence` is the epistemic uncertainty, `entropy` the aleatoric one, and `log_entropy` ranks inputs whose
    entropy underflows; a density's entropy may be negative and has none.
    """

    log_evidence: Tensor  # (n,)
    log_posterior: Tensor  # of each point's mass, (n, m)
    entropy: Tensor  # (n,)
    log_entropy: Tensor | None  # (n,)


def infer(log_likelihood: Tensor, log_weight: Tensor, log_volume: Tensor | None = None) -> Posterior:
    r"""Evidence, posterior and entropy by a sum over the support.

    .. math::
        \log p(z) = \log \sum_j p(z \mid y_j)\, w_j, \qquad
        h(y \mid z) = -\sum_j p(y_j \mid z) \log p(y_j \mid z)

    With t the most probable point, δ_j = log p(y_j|z) - log p(y_t|z) ≤ 0 and s = Σ_{j≠t} exp δ_j, the entropy is

    .. math::
        h = s \left( \frac{\log(1 + s)}{s} + \frac{1}{1 + s} \sum_{j \neq t} \frac{e^{\delta_j}}{s} (-\delta_j) \right)

    a sum of terms that are never negative, so that it keeps its digits however small it is; in the bracket nothing
    underflows, so that its logarithm is there where exp δ_j is not.

    Where y is continuous, each point stands for a volume v_j and has the mass P_j = p(y_j|z) v_j; the entropy of the
    density is that of the masses and Σ_j P_j log v_j.

    Finite likelihoods give finite evidence and entropies, saturated where the dtype ends; infinite ones are taken as
    the largest finite ones. An entropy of exactly zero, as with a single support point, has the lowest finite number as
    its logarithm. A weight of -inf takes its point out: it adds nothing, and its log posterior is -inf.

    Args:
        log_likelihood: log p(z|y_j), one row an input, one column a support point.
        log_weight: Log weight of each support point, (m,), or (n, m) when every input has its own points: the log
            prior, and log v_j where there is one.
        log_volume: log v_j, of the same shape, where y is continuous.

    Example:
        >>> log_likelihood = torch.tensor([[0.0, 0.0], [0.0, -1000.0]])
        >>> posterior = infer(log_likelihood, torch.tensor([0.5, 0.5]).log())
        >>> posterior.entropy                     # log 2, and one that underflows
        tensor([0.6931, 0.0000])
        >>> posterior.log_entropy[1]              # log(1001) - 1000
        tensor(-993.0912)
    """
    _check(log_likelihood, log_weight, log_volume)
    log_weight = log_weight.to(log_likelihood.dtype)
    points = log_weight.shape[-1]
    limits = torch.finfo(log_likelihood.dtype)
    lowest, eps = limits.min, limits.eps

    unused = log_weight == -math.inf  # (m,) or (n, m)
    log_likelihood = log_likelihood.masked_fill(unused, lowest).clamp(lowest, -lowest)
    # Likelihoods are compared before weights are added: beside a likelihood of -1e37 a weight would be rounded away.
    shift = log_likelihood.amax(dim=1, keepdim=True)  # (n, 1)
    joint = (log_likelihood - shift + log_weight).clamp(min=lowest)  # (n, m)
    best, top = joint.max(dim=1, keepdim=True)  # (n, 1)
    delta = joint - best
    # The top is taken out by the lowest number, not by -inf: 0 · inf is not a number, in gradients too.
    others = delta.scatter(1, top, lowest)

    # Softmax, as on a CPU exp takes ten times as long where it underflows, which it does for most points.
    mass = others.softmax(dim=1)
    nearest, largest = others.amax(dim=1), mass.amax(dim=1)  # (n,)
    s = nearest.exp() / largest
    log_norm = torch.log1p(s)  # -log p(y_t|z)
    log_evidence = ((shift + best).squeeze(1) + log_norm).clamp(lowest, -lowest)
    log_posterior = (delta - log_norm[:, None]).masked_fill(unused, -math.inf)
    gap = (mass * others).sum(dim=1).clamp(min=lowest)  # mean δ of the others, by their mass
    some = s.clamp(min=eps)  # log(1 + s) / s is 1 to all digits once s is below the precision
    share = torch.addcdiv(torch.log1p(some) / some, gap, s + 1, value=-1)  # h / s
    entropy = s * share

    if log_volume is not None:
        posterior = delta.softmax(dim=1)
        density_entropy = entropy + (posterior * log_volume.to(posterior.dtype)).sum(dim=1)
        return Posterior(log_evidence, log_posterior, density_entropy, None)

    log_entropy = nearest - largest.log() + share.log()  # log s + log (h / s), finite where s underflows
    bound = math.log(points)
    log_bound = math.log(bound) if points > 1 else lowest
    return Posterior(log_evidence, log_posterior, entropy.clamp(0.0, bound), log_entropy.clamp(lowest, log_bound))


def _check(log_likelihood: Tensor, log_weight: Tensor, log_volume: Tensor | None) -> None:
    if not log_likelihood.is_floating_point():
        raise TypeError(f"log_likelihood must be floating point, not {log_likelihood.dtype}")
    own = log_weight.dim() == 2
    if (
        log_likelihood.dim() != 2
        or log_weight.dim() not in (1, 2)
        or log_likelihood.shape[1] != log_weight.shape[-1]
        or (own and log_likelihood.shape[0] != log_weight.shape[0])
    ):
        raise ValueError(
            "expected log_likelihood (n, m) and log_weight (m,) or (n, m), one column a support point; got "
            f"{tuple(log_likelihood.shape)} and {tuple(log_weight.shape)}"
        )
    if log_volume is not None and log_volume.shape != log_weight.shape:
        raise ValueError(
            f"expected log_volume of the shape of log_weight, {tuple(log_weight.shape)}; got {tuple(log_volume.shape)}"
        )
    if log_weight.shape[-1] == 0:
        raise ValueError("the support has no points: fit the marginal first")
