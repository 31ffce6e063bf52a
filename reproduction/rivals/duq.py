"""Deterministic uncertainty quantification: distances to class centroids, with a gradient penalty (DUQ, 2020)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import Detector
from hidden_uncertainty.demo.training import built
from hidden_uncertainty.scoring.outputs import OutputMethod
from hidden_uncertainty.scoring.terms import Term
from hidden_uncertainty.uncertainty import LayerScores

from .base import Rival, draw, perceptron

PIXELS = {"MNIST": (0.1307, 0.3081), "FashionMNIST": (0.2861, 0.353)}  # mean and deviation in the authors' code


class DUQ(Rival):
    r"""One kernel per class around a centroid that follows the class's embeddings (van Amersfoort et al., 2020).

    .. math::
        K_c(x) = \exp \frac{-\lVert W_c f(x) - e_c \rVert^2 / m}{2 \sigma^2}, \qquad
        L = \frac 1 C \sum_c BCE(K_c, y_c) + \lambda \left( \lVert \nabla_x \textstyle\sum_c K_c \rVert - 1 \right)^2

    Each centroid is a running mean: of sums of embeddings and of counts, both with the momentum γ. The penalty is that
    of the authors' code, of the norm, with respect to pixels that have mean 0 and deviation 1; their paper prints the
    squared norm. Called, it gives log K.

    Args:
        body: f, from inputs to (n, width).
        width: of f.
        classes: C.
        embedding: m, numbers per embedding.
        length_scale: σ.
        momentum: γ.
        penalty: λ.
        count: of each class, at the start.
        spread: deviation of the first W.
        pixels: mean and deviation of the inputs, with which they are standardised.
        seed: of W, of the centroids and of the order of batches.

    Example:
        >>> DUQ(nn.Linear(4, 8), 8, 3, embedding=5)(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    totals: Tensor
    counts: Tensor

    def __init__(
        self,
        body: nn.Module | None = None,
        width: int = 100,
        classes: int = 10,
        *,
        embedding: int = 256,
        length_scale: float = 0.1,
        momentum: float = 0.999,
        penalty: float = 0.05,
        count: float = 12.0,
        spread: float = 0.05,
        pixels: tuple[float, float] = (0.0, 1.0),
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.pixels = pixels
        self.body = perceptron(hidden=width, seed=seed) if body is None else body
        self.length_scale, self.momentum, self.penalty = length_scale, momentum, penalty
        self.weight = nn.Parameter(draw(seed, classes * embedding, width, std=spread))
        self.register_buffer("counts", torch.full((classes,), float(count), device="cpu"))
        self.register_buffer("totals", count * draw(seed + 1, classes, embedding))

    def standardised(self, x: Tensor) -> Tensor:
        """What the penalty is with respect to."""
        return (x - self.pixels[0]) / self.pixels[1]

    def embed(self, x: Tensor) -> Tensor:
        """W_c f(x) of every class, (n, C, m), for standardised inputs."""
        return F.linear(self.body(x), self.weight).unflatten(1, (len(self.counts), -1))

    def log_kernels(self, x: Tensor) -> Tensor:
        """log K, (n, C), for standardised inputs."""
        return -(self.embed(x) - self.centroids).square().mean(2) / (2 * self.length_scale**2)

    @property
    def centroids(self) -> Tensor:
        """e, (C, m)."""
        return self.totals / self.counts[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """log K, (n, C)."""
        return self.log_kernels(self.standardised(x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Binary cross-entropy of all kernels, and the penalty."""
        x = self.standardised(x).detach().requires_grad_(self.penalty > 0)
        kernels = self.log_kernels(x).exp()
        loss = F.binary_cross_entropy(kernels, F.one_hot(y, kernels.shape[1]).to(kernels))
        return loss + self.penalty * gradient_penalty(x, kernels) if self.penalty else loss

    def after_step(self, x: Tensor, y: Tensor) -> None:
        """Move the centroids."""
        self.eval()
        own = F.one_hot(y, len(self.counts)).to(self.counts)  # (n, C)
        sums = torch.einsum("ncm,nc->cm", self.embed(self.standardised(x)), own)
        self.train()
        self.counts.mul_(self.momentum).add_((1 - self.momentum) * own.sum(0))
        self.totals.mul_(self.momentum).add_((1 - self.momentum) * sums)

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The distance to the nearest centroid."""
        yield "DUQ", Detector(self, [Term(Farness())], task="classification", progress=False)


def gradient_penalty(x: Tensor, kernels: Tensor) -> Tensor:
    """The mean over a batch of (‖∇ Σ K‖ - 1)², for inputs x that `kernels` (n, C) were computed from."""
    (gradient,) = torch.autograd.grad(kernels.sum(), x, create_graph=True)
    return (gradient.flatten(1).norm(dim=1) - 1).square().mean()


class Farness(OutputMethod):
    """-log of the largest kernel: ranks as 1 - max K does, and still does where every kernel underflows."""

    def measure(self, scores: Tensor, several: bool) -> LayerScores:
        """Of log K (n, C)."""
        if several:
            raise NotImplementedError("DUQ is for one class per input.")
        return LayerScores(-scores.amax(1))


class SmallCNN(nn.Sequential):
    """The authors' network for FashionMNIST: three convolutions with batch norm and pooling, and one full layer.

    Args:
        channels: of each convolution.
        width: of the full layer.
        seed: of its weights.

    Example:
        >>> SmallCNN((2, 4, 4), 8)(torch.zeros(3, 1, 28, 28)).shape
        torch.Size([3, 8])
    """

    def __init__(self, channels: tuple[int, int, int] = (64, 128, 128), width: int = 256, *, seed: int = 0) -> None:
        modules: list[nn.Module] = []
        with built(seed):
            for before, after, padding in zip((1, *channels), channels, (1, 1, 0), strict=False):
                convolution = nn.Conv2d(before, after, 3, padding=padding)
                modules += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
            modules += [nn.Flatten(), nn.Linear(4 * channels[-1], width), nn.ReLU()]
        super().__init__(*modules)
