"""Layers of bounded spectral norm, and the residual perceptron that SNGP and DDU train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty.demo.training import built

from .base import draw


class SpectralLinear(nn.Linear):
    r"""A full layer whose matrix has at most the spectral norm c: W / max(1, σ / c).

    σ is found by power iteration, one step per call in training mode, as published.

    Args:
        inputs: numbers per row.
        outputs: likewise.
        bound: c.
        seed: of the iteration's first vector.

    Example:
        >>> layer = SpectralLinear(4, 3, bound=0.5)
        >>> for _ in range(50):
        ...     _ = layer(torch.zeros(1, 4))
        >>> bool(torch.linalg.matrix_norm(layer.bounded(), 2) < 0.501)
        True
    """

    left: Tensor
    right: Tensor

    def __init__(self, inputs: int, outputs: int, *, bound: float = 0.95, seed: int = 0) -> None:
        super().__init__(inputs, outputs)
        self.bound = bound
        self.register_buffer("left", F.normalize(draw(seed, outputs), dim=0))
        self.register_buffer("right", F.normalize(self.weight.detach().T @ self.left, dim=0))

    def bounded(self) -> Tensor:
        """The matrix that is used."""
        norm = self.left @ self.weight @ self.right
        return self.weight / torch.clamp(norm / self.bound, min=1.0)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, inputs) times the bounded matrix."""
        if self.training:
            with torch.no_grad():
                # New tensors: those of the step before may be part of a graph.
                self.left = F.normalize(self.weight @ self.right, dim=0)
                self.right = F.normalize(self.weight.T @ self.left, dim=0)
        return F.linear(x, self.bounded(), self.bias)


class Block(nn.Module):
    """x + relu(Wx + b), which keeps distances between (1 - c) and (1 + c) times what they were."""

    def __init__(self, width: int, *, bound: float, seed: int) -> None:
        super().__init__()
        self.layer = SpectralLinear(width, width, bound=bound, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        """One step."""
        return x + F.relu(self.layer(x))


class ResidualPerceptron(nn.Sequential):
    """As wide and deep as the paper's perceptron, with bounded layers and, but for the first one, residual ones.

    Args:
        inputs: numbers per input.
        hidden: units per layer.
        depth: layers.
        bound: of each layer's spectral norm.
        seed: of its weights.

    Example:
        >>> ResidualPerceptron(2, 8)(torch.zeros(3, 2)).shape
        torch.Size([3, 8])
    """

    def __init__(
        self, inputs: int = 784, hidden: int = 100, *, depth: int = 4, bound: float = 0.95, seed: int = 0
    ) -> None:
        with built(seed):
            first = SpectralLinear(inputs, hidden, bound=bound, seed=seed)
            blocks = [Block(hidden, bound=bound, seed=seed + place) for place in range(1, depth)]
        super().__init__(nn.Flatten(), first, *blocks)
