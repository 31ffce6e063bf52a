"""A network that is trained to keep more of its input at one layer, with the decoder that reconstructs it."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from hidden_uncertainty.model.capture import find

from .reconstruction import Reconstruction


class Regularised(nn.Module):
    """A classifier with a weighted reconstruction error in its loss, to be trained by `train_many`.

    It computes the network's outputs. In training mode it sets `penalty`, the weight times the mean squared error of
    the input reconstructed from a layer, which the trainer adds to the loss. Early stopping still goes by the
    classification loss alone.

    Args:
        network: with an attribute `seed`, which is copied; available as `network` after training.
        layer: its layer to reconstruct from.
        decoder: from activations to inputs; dropped after training.
        weight: of the penalty; 0 trains the network alone.

    Example:
        >>> import torch
        >>> from reproduction.nets import FCNet
        >>> from reproduction.nets.reconstruction import DenseDecoder
        >>> network = Regularised(FCNet(16, 8, 3), "10", DenseDecoder(8, 8, (1, 4, 4), layers=4), 0.1)
        >>> network(torch.rand(5, 1, 4, 4)).shape, network.penalty.shape
        (torch.Size([5, 3]), torch.Size([]))
    """

    penalty: Tensor | None

    def __init__(self, network: nn.Module, layer: str, decoder: nn.Module, weight: float) -> None:
        super().__init__()
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"weight must be finite and at least 0, got {weight}.")
        find(network, [layer])
        self.network, self.decoder = network, decoder
        self.layer, self.weight, self.seed = layer, float(weight), int(getattr(network, "seed", 0))
        self.penalty = None

    def forward(self, x: Tensor) -> Tensor:
        """The network's logits, for x (n, ...)."""
        if not self.training:
            self.penalty = None
            return self.network(x)
        # Hooks exist only while it runs, so that copies of this module have hooks of their own.
        with Reconstruction(self.network, self.layer, self.decoder) as reconstruction:
            logits = self.network(x)
            self.penalty = self.weight * reconstruction(x)
        return logits

    def __getstate__(self) -> dict[str, Any]:
        """Copies start without a penalty: tensors with a gradient history cannot be copied."""
        return {**self.__dict__, "penalty": None}
