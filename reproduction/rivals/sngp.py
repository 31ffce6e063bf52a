"""A Gaussian process as the last layer of a network that keeps distances (SNGP, Liu et al., 2020)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import Detector
from hidden_uncertainty.baselines import Energy
from hidden_uncertainty.demo.training import built

from .base import Rival, draw
from .spectral import ResidualPerceptron


class SNGP(Rival):
    r"""A residual network with bounded spectral norms, random Fourier features, and a Laplace posterior over them.

    .. math::
        \phi(x) = \sqrt{2/D}\, \cos\left(\Omega\, h(x) / \ell + b\right), \quad
        g(x) = \phi(x)^\top \beta, \quad
        \Sigma^{-1} = I + \sum_i p_i (1 - p_i)\, \phi_i \phi_i^\top, \quad
        v(x) = \phi(x)^\top \Sigma\, \phi(x)

    p is the largest probability, for one covariance of all classes, which is an upper bound. Logits are
    :math:`g / \sqrt{1 + \lambda v}`. Their energy ranks as the published score does, Dempster and Shafer's
    :math:`C / (C + \sum_c \exp g_c)`.

    Args:
        body: h, from inputs to (n, width).
        width: of h.
        classes: C.
        features: D.
        length_scale: ℓ.
        factor: λ; the paper's is π/8, that of the authors' code for small images 25.
        normalise: bring h to mean 0 and deviation 1 first, as the authors do for images.
        seed: of its weights, features and batches.

    Example:
        >>> SNGP(nn.Linear(4, 8), 8, 3, features=16)(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    frequencies: Tensor
    phases: Tensor
    covariance: Tensor

    def __init__(
        self,
        body: nn.Module | None = None,
        width: int = 100,
        classes: int = 10,
        *,
        features: int = 1024,
        length_scale: float = math.sqrt(2.0),
        factor: float = 25.0,
        normalise: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.body = ResidualPerceptron(hidden=width, seed=seed) if body is None else body
        self.width, self.normalise, self.factor = width, normalise, factor
        self.register_buffer("frequencies", draw(seed, features, width) / length_scale)
        uniform = torch.rand(features, generator=torch.Generator("cpu").manual_seed(seed + 1), device="cpu")
        self.register_buffer("phases", 2 * math.pi * uniform)
        self.register_buffer("covariance", torch.eye(features, device="cpu"))
        with built(seed):
            self.output = nn.Linear(features, classes, bias=False)

    def features(self, x: Tensor) -> Tensor:
        """φ, (n, D)."""
        h = self.body(x)
        if self.normalise:
            h = F.layer_norm(h, (self.width,))
        return math.sqrt(2 / len(self.phases)) * F.linear(h, self.frequencies, self.phases).cos()

    def variance(self, phi: Tensor) -> Tensor:
        """v of features φ, (n,)."""
        return ((phi @ self.covariance) * phi).sum(1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, with the variance taken into account once the covariance is known."""
        phi = self.features(x)
        return self.output(phi) / (1 + self.factor * self.variance(phi)).sqrt()[:, None]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of g; the prior of β is the weight decay."""
        return F.cross_entropy(self.output(self.features(x)), y)

    def finish(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """The covariance, in one more pass over the training data."""
        precision = torch.eye(len(self.phases), dtype=torch.float64, device="cpu")
        for x, _ in batches:
            phi = self.features(x)
            p = self.output(phi).softmax(1).amax(1)
            precision += ((p * (1 - p))[:, None] * phi).T @ phi
        self.covariance.copy_(torch.cholesky_inverse(torch.linalg.cholesky(precision)))

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The energy of the logits."""
        yield "SNGP", Energy(self, progress=False)
