"""A loss of distances between embeddings, and the density of their classes nearby (Mandelbaum & Weinshall, 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import Detector
from hidden_uncertainty.baselines import SoftmaxEntropy
from hidden_uncertainty.baselines.base import LayerDetector
from hidden_uncertainty.baselines.neighbours import NeighbourDistance
from hidden_uncertainty.demo.training import built
from hidden_uncertainty.extract import Features

from .base import Rival, perceptron


def distance_loss(z: Tensor, y: Tensor, *, margin: float = 25.0, same: float = 0.2) -> Tensor:
    r"""The mean over pairs of how far those of one class are apart, and of how far others are within the margin.

    .. math::
        L_{ij} = \lVert z_i - z_j \rVert \text{ if } y_i = y_j, \qquad
        L_{ij} = \max(0, m - \lVert z_i - z_j \rVert) \text{ otherwise}

    The authors draw pairs of which at least a fifth are of one class; this is what a fifth gives on average.

    Args:
        z: embeddings, (n, d).
        y: labels.
        margin: m.
        same: share of pairs that are of one class.

    Example:
        >>> distance_loss(torch.tensor([[0.0], [3.0], [20.0]]), torch.tensor([0, 0, 1])).item()
        5.800000190734863
    """
    away = F.pdist(z)
    rows, columns = _pairs(len(z), z.device)
    alike = (y[rows] == y[columns]).to(away)
    near, far = (alike * away).sum(), ((1 - alike) * (margin - away).clamp(min=0)).sum()
    # Nothing here waits for a GPU; without pairs of a kind, its sum is 0.
    return same * near / alike.sum().clamp(min=1) + (1 - same) * far / (1 - alike).sum().clamp(min=1)


@cache
def _pairs(count: int, device: torch.device) -> Tensor:
    """The rows of all pairs, in the order of `pdist`."""
    return torch.triu_indices(count, count, offset=1, device=device)


class Distance(Rival):
    """A perceptron whose last hidden layer is also trained by `distance_loss`.

    Args:
        inputs: numbers per input.
        hidden: units per layer.
        classes: how many there are.
        weight: of the loss of distances.
        margin: of it.
        seed: of its weights and batches.

    Example:
        >>> Distance(4, 8, 3)(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        inputs: int = 784,
        hidden: int = 100,
        classes: int = 10,
        *,
        weight: float = 0.2,
        margin: float = 25.0,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.weight, self.margin = weight, margin
        self.body = perceptron(inputs, hidden, seed=seed)
        with built(seed):
            self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.output(self.body(x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy and the loss of distances."""
        z = self.body(x)
        return F.cross_entropy(self.output(z), y) + self.weight * distance_loss(z, y, margin=self.margin)

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The published score, and what it is to improve on: the entropy of the same network's softmax."""
        options = {"task": "classification", "progress": False}
        method = DistanceScore(50)
        yield "distance", LayerDetector(self, "body", method, condition="label", **options)  # type: ignore[arg-type]
        yield "distance, softmax entropy", SoftmaxEntropy(self, progress=False)


class DistanceScore(NeighbourDistance):
    r"""The share of other classes among the k nearest, by exp(-distance); distances are not scaled, as published.

    .. math::
        s(z) = 1 - \frac{\sum_{j \in \mathrm{kNN}(z),\, y_j = \hat y} e^{-\lVert z - z_j \rVert}}
                        {\sum_{j \in \mathrm{kNN}(z)} e^{-\lVert z - z_j \rVert}}
    """

    unit = "share"
    conditional = needs_classes = True
    classes: Tensor

    def __init__(self, k: int) -> None:
        super().__init__(k, normalise=False)
        self.register_buffer("classes", None)

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Keep the rows and their labels."""
        assert y is not None
        self.classes = y.clone()
        return super().fit(z, y, features)

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The share at each row."""
        away, near = self.index.search(z, min(self.k + seen, len(self.classes)))
        away, near = away[:, int(seen) :], near[:, int(seen) :]
        return ((-away).softmax(1) * (self.classes[near] != prediction[:, None])).sum(1)
