"""Variational information bottleneck: the rate of an input's code is its uncertainty (Alemi et al., 2017 and 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import Detector, Reduce
from hidden_uncertainty.baselines.base import RowMethod
from hidden_uncertainty.demo.network import built
from hidden_uncertainty.extract import Features
from hidden_uncertainty.scoring.terms import Term

from .base import Rival, perceptron


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


class Bottleneck(Rival):
    r"""A stochastic code z between the perceptron and a linear classifier, of which training limits the rate.

    .. math:: L = \mathbb E_{z \sim p(z|x)} \left[-\log q(y|z)\right] + \beta\, KL\left(p(z|x) \,\|\, N(0, I)\right)

    K, β and the marginal are those of Alemi et al. (2017), whose rate has a closed form; in 2018 the marginal is a
    learnt mixture. Predictions are made from the mean of the code.

    Args:
        inputs: numbers per input.
        hidden: units per layer.
        classes: how many there are.
        code: K, numbers per code.
        beta: β.
        depth: layers before the code.
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
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.beta, self.body = beta, perceptron(inputs, hidden, depth=depth, seed=seed)
        with built(seed):
            self.encoder, self.output = nn.Linear(hidden, 2 * code), nn.Linear(code, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the mean code."""
        return self.output(gaussian(self.encoder(self.body(x)))[0])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The bound, with one code per input."""
        mean, std = gaussian(self.encoder(self.body(x)))
        z = mean + std * torch.randn(std.shape, generator=self.random)
        return F.cross_entropy(self.output(z), y) + self.beta * rate(mean, std).mean()

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The rate."""
        term = Term(Rate(), "encoder", Reduce(max_dim=None))
        yield "VIB", Detector(self, [term], task="classification", progress=False)


class Rate(RowMethod):
    """The rate of a code, of which rows hold mean and deviation as `gaussian` takes them."""

    needs_classes = False

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Nothing to do: the rate was trained."""
        return self

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """Nats per row."""
        return rate(*gaussian(z))
