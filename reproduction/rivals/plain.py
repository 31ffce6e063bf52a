"""The paper's own networks, trained as the rivals are: with and without a penalty of reconstruction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import Detector, GaussianMixture, LatentDensity
from hidden_uncertainty.baselines import SoftmaxEntropy
from reproduction.nets.reconstruction import DenseDecoder

from ..nets.fcnet import FCNet
from ..nets.regularised import Regularised
from .base import Rival

MIXTURE: dict[str, Any] = {"components": 5, "shrinkage": None}  # the paper's
LAYERS = ("1", "10")  # the paper's first and last


class Plain(Rival):
    """A perceptron trained for its classes alone: densities of its layers, the library's default, and its softmax.

    Args:
        hidden: units per layer.
        seed: of its weights and batches.
    """

    def __init__(self, *, hidden: int = 100, seed: int = 0) -> None:
        super().__init__(seed)
        self.network: nn.Module = FCNet(hidden=hidden, initialisation="glorot", seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.network(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(self.network(x), y)

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The paper's mixture at two layers, the default, and the entropy of the softmax."""
        for layer in LAYERS:
            yield f"latent density, layer {layer}", paper(self.network, layer)
        yield "library's default", LatentDensity(self.network, progress=False)
        yield "softmax entropy", SoftmaxEntropy(self.network, progress=False)


class Reconstructing(Rival):
    r"""A perceptron that must also reconstruct its input from layer 10, by a decoder as deep.

    .. math:: L = L_{class} + w \cdot \lVert x - d(z_{10}) \rVert^2 / \dim x

    Args:
        weight: w.
        hidden: units per layer.
        seed: of its weights and batches.
    """

    def __init__(self, weight: float = 100.0, *, hidden: int = 100, seed: int = 0) -> None:
        super().__init__(seed)
        decoder = DenseDecoder(hidden, hidden, (1, 28, 28), layers=4, seed=seed)
        network = FCNet(hidden=hidden, initialisation="glorot", seed=seed)
        self.regularised = Regularised(network, "10", decoder, weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.regularised.network(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy and the penalty."""
        loss = F.cross_entropy(self.regularised(x), y)
        assert self.regularised.penalty is not None
        return loss + self.regularised.penalty

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The paper's mixture at the layer that reconstructs, and the default."""
        yield "reconstruction, layer 10", paper(self.regularised.network, "10")
        yield "reconstruction, library's default", LatentDensity(self.regularised.network, progress=False)


def paper(network: nn.Module, layer: str) -> LatentDensity:
    """The paper's density of one layer."""
    return LatentDensity(network, layer, GaussianMixture(**MIXTURE), task="classification", progress=False)
