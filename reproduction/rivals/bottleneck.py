"""Variational information bottleneck: the rate of an input's code is its uncertainty (Alemi et al., 2017 and 2018)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import Detector, Reduce
from hidden_uncertainty.baselines.base import RowMethod
from hidden_uncertainty.demo.training import built
from hidden_uncertainty.extract import Features
from hidden_uncertainty.scoring.terms import Term

from .base import Rival, draw, perceptron

DRAWS = 8  # of a code, where its rate is estimated


def rate(mean: Tensor, std: Tensor) -> Tensor:
    r"""KL of a diagonal Gaussian from the standard one, in nats, (n,).

    .. math:: R = \tfrac 1 2 \sum_k \left( \mu_k^2 + \sigma_k^2 - 1 - \log \sigma_k^2 \right)

    Example:
        >>> rate(torch.tensor([[0.0, 2.0]]), torch.ones(1, 2))
        tensor([2.])
    """
    return 0.5 * (mean**2 + std**2 - 1 - 2 * std.log()).sum(1)


def gaussian(encoded: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of a code, from what the encoder returns (n, 2K); σ = softplus(· - 5), as published."""
    mean, raw = encoded.chunk(2, dim=1)
    return mean, F.softplus(raw - 5.0) + 1e-6


class Mixture(nn.Module):
    r"""A learnt marginal of codes, :math:`m(z) = \sum_j w_j\, N(z \mid \mu_j, \mathrm{diag}\, \sigma_j^2)`.

    Args:
        components: how many there are.
        code: numbers per code.
        seed: of the first means.
    """

    def __init__(self, components: int, code: int, *, seed: int = 0) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(components, device="cpu"))
        self.means = nn.Parameter(draw(seed, components, code))
        self.log_std = nn.Parameter(torch.zeros(components, code, device="cpu"))

    def log_prob(self, z: Tensor) -> Tensor:
        """log m(z), (n,), of codes (n, K)."""
        log_std, means = self.log_std.to(z), self.means.to(z)
        precision = (-2 * log_std).exp()
        square = z**2 @ precision.T - 2 * z @ (means * precision).T + (means**2 * precision).sum(1)
        each = -0.5 * square - log_std.sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)
        return (self.logits.to(z).log_softmax(0) + each).logsumexp(1)

    def rate(self, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """E[log p(z|x) - log m(z)], (n,), estimated with normal numbers (s, n, K) or (s, 1, K)."""
        z = mean + std * noise  # (s, n, K)
        own = (-0.5 * noise**2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(2)
        return (own - self.log_prob(z.flatten(0, 1)).view(own.shape)).mean(0)


class Bottleneck(Rival):
    r"""A stochastic code z between the perceptron and a linear classifier, of which training limits the rate.

    .. math:: L = \mathbb E_{z \sim p(z|x)} \left[-\log q(y|z)\right] + \beta\, KL\left(p(z|x) \,\|\, N(0, I)\right)

    K, β and the standard marginal are those of Alemi et al. (2017), where the rate has a closed form. A marginal may be
    learnt instead, as in 2018; its rate is estimated. Predictions are made from the mean of the code.

    Args:
        inputs: numbers per input.
        hidden: units per layer.
        classes: how many there are.
        code: K, numbers per code.
        beta: β.
        depth: layers before the code.
        components: of a learnt marginal; 0 keeps the standard one.
        seed: of its weights, codes and batches.

    Example:
        >>> Bottleneck(4, 8, 3, code=2)(torch.zeros(5, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        inputs: int = 784,
        hidden: int = 100,
        classes: int = 10,
        *,
        code: int = 256,
        beta: float = 1e-3,
        depth: int = 4,
        components: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.beta, self.body = beta, perceptron(inputs, hidden, depth=depth, seed=seed)
        with built(seed):
            self.marginal = Mixture(components, code, seed=seed) if components else None
            self.encoder, self.output = nn.Linear(hidden, 2 * code), nn.Linear(code, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the mean code."""
        return self.output(gaussian(self.encoder(self.body(x)))[0])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The bound, with one code per input."""
        mean, std = gaussian(self.encoder(self.body(x)))
        noise = torch.randn(std.shape, generator=self.random, device="cpu")
        rates = rate(mean, std) if self.marginal is None else self.marginal.rate(mean, std, noise[None])
        return F.cross_entropy(self.output(mean + std * noise), y) + self.beta * rates.mean()

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The rate."""
        term = Term(Rate(self.marginal), "encoder", Reduce(max_dim=None))
        yield (
            "VIB" + ", learnt marginal" * (self.marginal is not None),
            Detector(self, [term], task="classification", progress=False),
        )


class Rate(RowMethod):
    """The rate of a code, of which rows hold mean and deviation as `gaussian` takes them.

    Args:
        marginal: learnt, or None for the standard one.
    """

    conditional = needs_classes = False

    def __init__(self, marginal: Mixture | None = None) -> None:
        super().__init__()
        self.marginal = marginal

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Nothing to do: the rate was trained."""
        return self

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """Nats per row."""
        mean, std = gaussian(z)
        if self.marginal is None:
            return rate(mean, std)
        return self.marginal.rate(mean, std, draw(0, DRAWS, 1, mean.shape[1]).to(mean)).detach()
