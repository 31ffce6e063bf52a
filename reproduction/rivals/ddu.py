"""Deep deterministic uncertainty: bounded layers, and one Gaussian per class of their features (DDU, 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import Detector
from hidden_uncertainty.baselines import one_gaussian_per_class
from hidden_uncertainty.demo.training import built

from .base import Rival
from .spectral import ResidualPerceptron


class DDU(Rival):
    """A residual network with bounded spectral norms, trained for its classes alone (Mukhoti et al., 2021).

    Its score is the density of its features, under one Gaussian per class that is fitted to labelled training data
    after the training, without shrinkage.

    Args:
        inputs: numbers per input.
        hidden: units per layer.
        classes: how many there are.
        bound: of the spectral norms; the authors' is 3.
        seed: of its weights and batches.

    Example:
        >>> import torch
        >>> DDU(4, 8, 3)(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self, inputs: int = 784, hidden: int = 100, classes: int = 10, *, bound: float = 3.0, seed: int = 0
    ) -> None:
        super().__init__(seed)
        self.body = ResidualPerceptron(inputs, hidden, bound=bound, seed=seed)
        with built(seed):
            self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.output(self.body(x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(self(x), y)

    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """The density."""
        options: dict[str, Any] = {"condition": "label", "task": "classification", "progress": False}
        yield "DDU", one_gaussian_per_class(self, "body", shrinkage=None, **options)
