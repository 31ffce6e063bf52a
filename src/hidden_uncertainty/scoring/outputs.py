"""Methods that score a classifier's outputs: entropy, largest probability, energy, generalised entropy.

Where an input may have several labels, outputs are one logit per label, and the labels are taken as independent."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor

from ..extract import Features, Lattice
from ..notes import warn
from ..uncertainty import LayerScores
from .bayes import Posterior, infer
from .terms import Method

PRIOR = 0.5  # σ: of log T, before any label is seen


class OutputMethod(Method):
    """A score of the logits or log-probabilities of one pass; there is nothing to fit."""

    fits = False
    conditional = False

    def __init__(self) -> None:
        super().__init__()
        self._looked = False

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Nothing to do."""
        return self

    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> LayerScores:
        """Score logits or log-probabilities of classes, or logits of labels, (n, C)."""
        assert isinstance(z, Tensor)
        several = prediction.dim() == 2
        if not self._looked and not torch.compiler.is_compiling() and len(z):
            self._looked = True
            self.look(z, several)
        return self.measure(z, several)

    def probabilities(self, z: Tensor, prediction: Tensor) -> Tensor | None:
        """The softmax, (n, C); of labels, the sigmoids."""
        return z.softmax(1) if prediction.dim() == 1 else z.sigmoid()

    @abstractmethod
    def measure(self, scores: Tensor, several: bool) -> LayerScores:
        """The uncertainty of logits or log-probabilities of classes; of logits of labels, if `several` may hold."""

    def look(self, scores: Tensor, several: bool) -> None:
        """Warn, at the first batch, if outputs are not what they are taken for."""
        warn_of_probabilities(scores, several=several)


class EntropyMethod(OutputMethod):
    """Entropy of the softmax, as both scores."""

    def measure(self, scores: Tensor, several: bool) -> LayerScores:
        """Entropy, the sum of those of all labels, and its logarithm where it underflows."""
        told = _label_entropy(scores) if several else _posterior(scores)[2:]
        return LayerScores(told[0], *told)


class ProbabilityMethod(OutputMethod):
    """One minus the largest probability."""

    unit = "probability"

    def measure(self, scores: Tensor, several: bool) -> LayerScores:
        """1 - max p, of the likeliest class or set of labels, with all its digits where p is almost 1."""
        log_p = -_softplus(-scores.abs()).sum(1) if several else _posterior(scores).log_posterior.amax(1)
        return LayerScores(torch.expm1(log_p).abs())


class EnergyMethod(OutputMethod):
    """Free energy of the logits."""

    unit = "logits"

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be a positive number, not {temperature}.")
        self.temperature = temperature

    def measure(self, scores: Tensor, several: bool) -> LayerScores:
        """The energy, saturated where the dtype ends; of labels, the sum of each one's beside a logit of zero."""
        if several:
            energy = -self.temperature * _softplus(scores / self.temperature).sum(1)
        else:
            top = scores.amax(1)
            above = ((scores - top[:, None]) / self.temperature).logsumexp(1)  # between 0 and log C
            energy = -top - self.temperature * above
        limit = torch.finfo(scores.dtype).max
        return LayerScores(energy.clamp(-limit, limit))

    def look(self, scores: Tensor, several: bool) -> None:
        """Warn if outputs are probabilities or their logarithms."""
        if several:
            super().look(scores, several)
            return
        normal = _single_logit(scores) is None and bool((scores.logsumexp(1).abs() < 1e-2).all())
        if normal or like_probabilities(scores):
            warn(
                "the network's outputs look like probabilities or their logarithms, whose energy says little: their "
                "sum is always the same. Pass a model without its last softmax or sigmoid."
            )


class GENMethod(OutputMethod):
    """Generalised entropy of the largest probabilities; the aleatoric score is the entropy.

    Labels teach it a temperature, which probabilities are told at, and entropies of labels. That of classes is the
    network's own, which finds more mistakes (see one-score in results/).
    """

    unit = "GEN"

    def __init__(self, gamma: float = 0.1, largest: int = 100, temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must lie between 0 and 1, not {gamma}.")
        if not isinstance(largest, int) or largest < 1:
            raise ValueError(f"largest must be a whole number of at least 1, not {largest!r}.")
        self.gamma, self.largest, self.temperature = gamma, largest, temperature

    def measure(self, scores: Tensor, several: bool) -> LayerScores:
        """Σ p^γ (1 - p)^γ over the classes or labels that have most of it; and the entropy, for labels their sum."""
        if several:
            pairs = -_softplus(scores) - _softplus(-scores)  # log p (1 - p)
            pairs = pairs.topk(min(self.largest, pairs.shape[1])).values
            told: tuple[Tensor, Tensor | None] = _label_entropy(scores / self.temperature)
        else:
            posterior = _posterior(scores)
            told = posterior.entropy, posterior.log_entropy
            log_p = posterior.log_posterior.sort(dim=1, descending=True).values
            first, others = log_p[:, :1], log_p[:, 1:]
            left = others.logsumexp(1, keepdim=True)  # log(1 - p) of the first, which would be rounded
            others = others[:, : self.largest - 1]
            pairs = torch.cat([first + left, others + torch.log1p(-others.exp())], dim=1)
        return LayerScores((self.gamma * pairs).exp().sum(1), *told)

    def probabilities(self, z: Tensor, prediction: Tensor) -> Tensor | None:
        """The softmax at the temperature, (n, C); of labels, the sigmoids."""
        return super().probabilities(z / self.temperature, prediction)

    def taught(self, z: Tensor, label: Tensor) -> GENMethod:
        """The method at the temperature at which labels are likeliest."""
        if label.dim() == 2:
            z, label = _pairs(z), label.flatten()
        return GENMethod(self.gamma, self.largest, best_temperature(z, label))


def best_temperature(scores: Tensor, label: Tensor) -> float:
    r"""The temperature that labels (n,) make most probable under the softmax of scores (n, C), between 0.01 and 100.

    .. math:: \max_T \; \sum_i \log p_{i y_i} - \frac{(\log T)^2}{2 \sigma^2}, \qquad p = \operatorname{softmax}(z / T)

    Before any label is seen, log T is about 0 ± σ. Where all of a few labels are those that the network tells, their
    likelihood alone would have it as sure as can be. Hundreds of labels with some mistakes leave little of that.
    """
    z = scores.double()
    z = z - z.amax(1, keepdim=True)
    right = z.gather(1, label[:, None])[:, 0]
    z, right = z[right.isfinite()].clamp(min=torch.finfo(z.dtype).min), right[right.isfinite()]
    low, high = math.log(1e-2), math.log(1e2)
    for _ in range(50):
        middle = (low + high) / 2
        mean = ((z / math.exp(middle)).softmax(1) * z).sum(1)
        cold = float((mean - right).sum()) / math.exp(middle) > middle / PRIOR**2  # the derivative by log T is positive
        low, high = (middle, high) if cold else (low, middle)
    return math.exp((low + high) / 2)


def _posterior(scores: Tensor) -> Posterior:
    """The softmax of scores (n, C)."""
    return infer(scores, scores.new_zeros(scores.shape[1]))


def _label_entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the entropies of labels with these logits (n, L), (n,), and its logarithm where it underflows."""
    entropy, log_entropy = _posterior(_pairs(logits))[2:]
    assert log_entropy is not None
    return entropy.view_as(logits).sum(1), log_entropy.view_as(logits).logsumexp(1)


def _pairs(logits: Tensor) -> Tensor:
    """Logits of labels (n, L) as logits of two classes, (n L, 2)."""
    half = logits.reshape(-1, 1) / 2
    return torch.cat([-half, half], 1)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) to all digits."""
    return torch.logaddexp(x, x.new_zeros(()))


def warn_of_probabilities(scores: Tensor, *, several: bool = False) -> None:
    """Warn where logits of classes (n, C), or of `several` labels per input (n, L), are likely probabilities."""
    if like_probabilities(scores, several=several):
        task = "MultiLabel" if several else "Classification"
        warn(
            "the network's outputs look like probabilities, but are taken as logits. Pass logits=False, which for "
            f"LatentDensity is task={task}(logits=False), or a model without its last softmax or sigmoid."
        )


def like_probabilities(scores: Tensor, *, several: bool = False) -> bool:
    """Whether logits are likely probabilities: none negative, and none above 1 or each row's sum 1."""
    single = scores if several else _single_logit(scores)
    if single is not None:  # logits of a few inputs may all lie there, of eight hardly
        return len(single) >= 8 and bool(((single >= 0) & (single <= 1)).all())
    return bool((scores >= 0).all() and ((scores.sum(1) - 1).abs() < 1e-2).all())


def _single_logit(scores: Tensor) -> Tensor | None:
    """The single logit z that (-z/2, z/2) stand for; None where there are more."""
    single = scores.shape[1] == 2 and bool((scores[:, 0] == -scores[:, 1]).all())
    return 2 * scores[:, 1] if single else None
