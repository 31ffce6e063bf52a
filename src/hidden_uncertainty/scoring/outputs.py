"""Methods that score a classifier's outputs: entropy, largest probability, energy, generalised entropy."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from ..extract import Features, Lattice
from ..notes import warn
from .bayes import infer
from .terms import Method, Scores


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

    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> Scores:
        """Score logits or log-probabilities, (n, C)."""
        assert isinstance(z, Tensor)
        if not self._looked and not torch.compiler.is_compiling() and len(z):
            self._looked = True
            self.look(z)
        return self.measure(z)

    @abstractmethod
    def measure(self, scores: Tensor) -> Scores:
        """The uncertainty of logits or log-probabilities (n, C)."""

    def look(self, scores: Tensor) -> None:
        """Warn, at the first batch, if outputs are not what they are taken for."""
        warn_of_probabilities(scores)

    def config(self) -> dict[str, Any]:
        """Nothing, but for methods with options."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The method that `config` describes."""
        return cls(**config)


class EntropyMethod(OutputMethod):
    """Entropy of the softmax, as both scores."""

    def measure(self, scores: Tensor) -> Scores:
        """Entropy, and its logarithm where it underflows."""
        posterior = infer(scores, scores.new_zeros(scores.shape[1]))
        return Scores(posterior.entropy, posterior.entropy, posterior.log_entropy)


class ProbabilityMethod(OutputMethod):
    """One minus the largest probability."""

    unit = "probability"

    def measure(self, scores: Tensor) -> Scores:
        """1 - max p, with all its digits where p is almost 1."""
        log_p = infer(scores, scores.new_zeros(scores.shape[1])).log_posterior
        return Scores(torch.expm1(log_p.amax(1)).abs())


class EnergyMethod(OutputMethod):
    """Free energy of the logits."""

    unit = "logits"

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be a positive number, not {temperature}.")
        self.temperature = temperature

    def measure(self, scores: Tensor) -> Scores:
        """The energy, saturated where the dtype ends."""
        top = scores.amax(1)
        above = ((scores - top[:, None]) / self.temperature).logsumexp(1)  # between 0 and log C
        limit = torch.finfo(scores.dtype).max
        return Scores((-top - self.temperature * above).clamp(-limit, limit))

    def look(self, scores: Tensor) -> None:
        """Warn if outputs are probabilities or their logarithms."""
        single = _single_logit(scores) is not None
        normal = not single and bool((scores.logsumexp(1).abs() < 1e-2).all())
        if normal or like_probabilities(scores):
            warn(
                "the network's outputs look like probabilities or their logarithms, whose energy says little: their "
                "sum is always the same. Pass a model without its last softmax or sigmoid."
            )

    def config(self) -> dict[str, Any]:
        """The temperature."""
        return {"temperature": self.temperature}


class GENMethod(OutputMethod):
    """Generalised entropy of the largest probabilities; the aleatoric score is the entropy at a temperature."""

    unit = "GEN"

    def __init__(self, gamma: float = 0.1, largest: int = 100, temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must lie between 0 and 1, not {gamma}.")
        if not isinstance(largest, int) or largest < 1:
            raise ValueError(f"largest must be a whole number of at least 1, not {largest!r}.")
        self.gamma, self.largest, self.temperature = gamma, largest, temperature

    def measure(self, scores: Tensor) -> Scores:
        """Σ p^γ (1 - p)^γ, with the digits of 1 - p where p is almost 1; and the entropy."""
        posterior = infer(scores, scores.new_zeros(scores.shape[1]))
        log_p = posterior.log_posterior.sort(dim=1, descending=True).values
        first, others = log_p[:, :1], log_p[:, 1:]
        left = others.logsumexp(1, keepdim=True)  # log(1 - p) of the first, which would be rounded
        others = others[:, : self.largest - 1]
        pairs = torch.cat([first + left, others + torch.log1p(-others.exp())], dim=1)
        if self.temperature != 1:
            posterior = infer(scores / self.temperature, scores.new_zeros(scores.shape[1]))
        return Scores((self.gamma * pairs).exp().sum(1), posterior.entropy, posterior.log_entropy)

    def probabilities(self, z: Tensor) -> Tensor:
        """The softmax at the temperature, (n, C)."""
        return (z / self.temperature).softmax(1)

    def taught(self, z: Tensor, label: Tensor) -> GENMethod:
        """The method at the temperature at which labels are likeliest."""
        return GENMethod(self.gamma, self.largest, best_temperature(z, label))

    def config(self) -> dict[str, Any]:
        """The options, and the temperature."""
        return {"gamma": self.gamma, "largest": self.largest, "temperature": self.temperature}


def best_temperature(scores: Tensor, label: Tensor) -> float:
    r"""The temperature at which labels (n,) are likeliest under the softmax of scores (n, C), between 0.01 and 100.

    Their likelihood is concave in 1/T, so that its maximum is where its derivative changes sign:

    .. math:: \sum_i \Bigl( z_{i y_i} - \sum_c p_{ic} z_{ic} \Bigr) = 0, \qquad p = \operatorname{softmax}(z / T)

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
        >>> round(best_temperature(scores, torch.tensor([0, 0, 0, 1])), 3)    # p = 3/4 is 2 / log 3
        1.82
    """
    z = scores.double()
    z = z - z.amax(1, keepdim=True)
    right = z.gather(1, label[:, None])[:, 0]
    z, right = z[right.isfinite()].clamp(min=torch.finfo(z.dtype).min), right[right.isfinite()]
    low, high = math.log(1e-2), math.log(1e2)
    for _ in range(50):
        middle = (low + high) / 2
        mean = ((z / math.exp(middle)).softmax(1) * z).sum(1)
        cold = float((right - mean).sum()) < 0  # labels are less likely than the softmax says
        low, high = (middle, high) if cold else (low, middle)
    return math.exp((low + high) / 2)


def warn_of_probabilities(scores: Tensor) -> None:
    """Warn where outputs (n, C) that are taken as logits are likely probabilities."""
    if like_probabilities(scores):
        warn(
            "the network's outputs look like probabilities, but are taken as logits. Pass logits=False, which for "
            "LatentDensity is task=Classification(logits=False), or a model without its last softmax or sigmoid."
        )


def like_probabilities(scores: Tensor) -> bool:
    """Whether logits (n, C) are likely probabilities: none negative, each row's sum 1."""
    single = _single_logit(scores)
    if single is not None:  # logits of a few inputs may all lie there, of eight hardly
        return len(single) >= 8 and bool(((single >= 0) & (single <= 1)).all())
    return bool((scores >= 0).all() and ((scores.sum(1) - 1).abs() < 1e-2).all())


def _single_logit(scores: Tensor) -> Tensor | None:
    """The single logit z that (-z/2, z/2) stand for; None where there are more."""
    single = scores.shape[1] == 2 and bool((scores[:, 0] == -scores[:, 1]).all())
    return 2 * scores[:, 1] if single else None
