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
        \phi(x) = s \cos\left(\Omega\, h(x) / \ell + b\right), \quad
        g(x) = \phi(x)^\top \beta, \quad
        \Sigma^{-1} = I + \sum_i \phi_i \phi_i^\top, \quad
        v(x) = \phi(x)^\top \Sigma\, \phi(x)

    Logits are :math:`g / \sqrt{1 + \lambda v}`. Their energy ranks as Dempster and Shafer's score does,
    :math:`C / (C + \sum_c \exp g_c)`, which the authors' code offers. Settings are those of that code for CIFAR10, in
    its latest version: h as it is, :math:`s = 1`, the covariance of a Gaussian likelihood, which all classes share.
    The paper has :math:`s = \sqrt{2/D}`, and p (1 - p) before each product. Frequencies are independent here; theirs
    are orthogonal by default.

    Args:
        body: h, from inputs to (n, width).
        width: of h.
        classes: C.
        features: D.
        length_scale: ℓ, 1 / 0.05 in the authors' code.
        factor: λ; that of their tutorial is π/8.
        scaled: whether s is :math:`\sqrt{2/D}`, with which products of features are the kernel.
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
        length_scale: float = 20.0,
        factor: float = 20.0,
        scaled: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.body = ResidualPerceptron(hidden=width, seed=seed) if body is None else body
        self.length_scale, self.factor = length_scale, factor
        self.scale = math.sqrt(2 / features) if scaled else 1.0
        self.register_buffer("frequencies", draw(seed, features, width) / length_scale)
        uniform = torch.rand(features, generator=torch.Generator("cpu").manual_seed(seed + 1), device="cpu")
        self.register_buffer("phases", 2 * math.pi * uniform)
        self.register_buffer("covariance", torch.eye(features, device="cpu"))
        with built(seed):
            self.output = nn.Linear(features, classes, bias=False)

    def features(self, x: Tensor) -> Tensor:
        """φ, (n, D)."""
        return self.scale * F.linear(self.body(x), self.frequencies, self.phases).cos()

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
        precision = torch.eye(len(self.phases), dtype=torch.float64, device=self.phases.device)
        for x, _ in batches:
            phi = self.features(x).double()  # the sum is far larger than the identity
            precision += phi.T @ phi
        self.covariance.copy_(torch.cholesky_inverse(torch.linalg.cholesky(precision)))

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The energy of the logits."""
        yield "SNGP", Energy(self, progress=False)
