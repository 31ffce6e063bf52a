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


def correlated(encoded: Tensor, code: int) -> tuple[Tensor, Tensor]:
    """Mean (n, K) of a code, and the triangular root of its covariance (n, K, K), from (n, K + K²)."""
    mean, raw = encoded[:, :code], encoded[:, code:].unflatten(1, (code, code))
    return mean, raw.tril(-1) + (F.softplus(raw.diagonal(dim1=1, dim2=2)) + 1e-6).diag_embed()


class Mixture(nn.Module):
    r"""A learnt marginal of codes, :math:`m(z) = \sum_j w_j\, N(z \mid \mu_j, (L_j L_j^\top)^{-1})`.

    Args:
        components: how many there are.
        code: numbers per code.
        seed: of the first means.
    """

    def __init__(self, components: int, code: int, *, seed: int = 0) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(components, device="cpu"))
        self.means = nn.Parameter(draw(seed, components, code))
        self.raw = nn.Parameter(torch.zeros(components, code, code, device="cpu"))

    def roots(self) -> Tensor:
        """L, triangular roots of the precisions, (J, K, K)."""
        return self.raw.tril(-1) + self.raw.diagonal(dim1=1, dim2=2).exp().diag_embed()

    def log_prob(self, z: Tensor) -> Tensor:
        """log m(z), (n,), of codes (n, K)."""
        roots = self.roots().to(z)
        scaled = torch.einsum("njk,jkl->njl", z[:, None] - self.means.to(z), roots)
        volume = roots.diagonal(dim1=1, dim2=2).log().sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)
        return (self.logits.to(z).log_softmax(0) + volume - 0.5 * scaled.square().sum(2)).logsumexp(1)

    def rate(self, mean: Tensor, root: Tensor, noise: Tensor) -> Tensor:
        """E[log p(z|x) - log m(z)], (n,), of means and roots of covariances, by normal numbers (s, n, K)."""
        z = place(mean, root, noise)
        volume = root.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * mean.shape[1] * math.log(2 * math.pi)
        own = -0.5 * noise.square().sum(2) - volume
        return (own - self.log_prob(z.flatten(0, 1)).view(len(noise), len(mean))).mean(0)


def place(mean: Tensor, spread: Tensor, noise: Tensor) -> Tensor:
    """Codes (..., n, K) of normal numbers, with deviations (n, K) or a root of the covariance (n, K, K)."""
    return mean + (spread * noise if spread.dim() == 2 else (spread @ noise[..., None])[..., 0])


class Bottleneck(Rival):
    r"""A stochastic code z between the perceptron and a classifier, of which training limits the rate.

    .. math:: L = \mathbb E_{z \sim p(z|x)} \left[-\log q(y|z)\right] + \beta\, KL\left(p(z|x) \,\|\, N(0, I)\right)

    K, β, σ, the standard marginal and the linear classifier are those of Alemi et al. (2017), where the rate has a
    closed form. A marginal may be learnt instead, as in 2018, which is for short codes: z has a full covariance then,
    as have the marginal's components, the classifier has a hidden layer, and the rate is estimated. Predictions are
    made from the mean of the code.

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
        self.code, self.beta, self.components = code, beta, components
        self.body = perceptron(inputs, hidden, depth=depth, seed=seed)
        with built(seed):
            self.marginal = Mixture(components, code, seed=seed) if components else None
            self.encoder = nn.Linear(hidden, code + code**2 if components else 2 * code)
            layers = [nn.Linear(code, hidden), nn.ELU(), nn.Linear(hidden, classes)]
            self.output = nn.Sequential(*layers) if components else nn.Linear(code, classes)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and spread of the code."""
        encoded = self.encoder(self.body(x))
        return gaussian(encoded) if self.marginal is None else correlated(encoded, self.code)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the mean code."""
        return self.output(self.encode(x)[0])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The bound, with one code per input."""
        mean, spread = self.encode(x)
        noise = self.noise(mean)
        rates = rate(mean, spread) if self.marginal is None else self.marginal.rate(mean, spread, noise[None])
        return F.cross_entropy(self.output(place(mean, spread, noise)), y) + self.beta * rates.mean()

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The rate."""
        term = Term(Rate(self.marginal, self.code), "encoder", Reduce(max_dim=None))
        yield (
            "VIB" + ", learnt marginal" * (self.marginal is not None),
            Detector(self, [term], task="classification", progress=False),
        )


class Rate(RowMethod):
    """The rate of a code, of which rows are what the encoder returns.

    Args:
        marginal: learnt, or None for the standard one.
        code: numbers per code.
    """

    conditional = needs_classes = False

    def __init__(self, marginal: Mixture | None, code: int) -> None:
        super().__init__()
        self.marginal, self.code = marginal, code

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Nothing to do: the rate was trained."""
        return self

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """Nats per row."""
        if self.marginal is None:
            return rate(*gaussian(z))
        noise = draw(0, DRAWS, 1, self.code).to(z).expand(-1, len(z), -1)  # the same for every row
        return self.marginal.rate(*correlated(z, self.code), noise).detach()
