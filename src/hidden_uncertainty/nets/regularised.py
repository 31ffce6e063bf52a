"""A network that is trained to keep more of its input at one layer, together with the decoder that checks it."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from ..capture import find
from ..regularise import Reconstruction


class Regularised(nn.Module):
    """A classifier whose loss has a weighted reconstruction error beside it, in training by `train_many`.

    It computes what the network does. In training mode it leaves `penalty`, the weight times the mean squared error of
    the input reconstructed from a layer, for the trainer to add to the loss. Networks still stop by their
    classification loss alone: what is learned for the reconstruction is a means.

    Args:
        network: with an attribute `seed`, which is this one's too; trained in place of itself, read as `network`.
        layer: its layer to reconstruct from.
        decoder: from activations to inputs; dropped after training.
        weight: of the penalty; with 0 training is the network's own.

    Example:
        >>> import torch
        >>> from hidden_uncertainty.nets import FCNet
        >>> from hidden_uncertainty.regularise import DenseDecoder
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
        # Hooks only while it runs: copies of this module then have hooks of their own.
        with Reconstruction(self.network, self.layer, self.decoder) as reconstruction:
            logits = self.network(x)
            self.penalty = self.weight * reconstruction(x)
        return logits

    def __getstate__(self) -> dict[str, Any]:
        """Copies begin without a penalty: tensors with a history cannot be copied."""
        return {**self.__dict__, "penalty": None}
