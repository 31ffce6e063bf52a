"""From a vector back to an image, by full layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from .._begin import begin, empty


class DenseDecoder(nn.Sequential):
    """Full layers with rectifiers between them, the last one linear and brought to the shape of the input.

    For a layer that is the k-th full one of a perceptron, k of them make the whole a symmetrical autoencoder. Weights
    begin after Glorot and Bengio, biases at zero.

    Args:
        latent: numbers of an activation; activations of more dimensions are flattened.
        hidden: units of every layer but the last, or of each of them in turn.
        output_shape: of one input.
        layers: how many; not needed when `hidden` lists them.
        seed: of the first weights.

    Example:
        >>> import torch
        >>> decoder = DenseDecoder(100, 100, (1, 28, 28), layers=4)
        >>> decoder(torch.zeros(3, 100)).shape, len(decoder.linear)
        (torch.Size([3, 1, 28, 28]), 4)
    """

    def __init__(
        self,
        latent: int,
        hidden: int | Sequence[int],
        output_shape: Sequence[int],
        *,
        layers: int | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(hidden, int):
            if layers is None or layers < 1:
                raise ValueError(f"with hidden={hidden} for all, layers must be at least 1, got {layers}.")
            hidden = [hidden] * (layers - 1)
        elif layers not in (None, len(hidden) + 1):
            raise ValueError(
                f"hidden={list(hidden)} makes {len(hidden) + 1} layers, got layers={layers}: give one of them."
            )
        widths, shape = [latent, *hidden], tuple(output_shape)
        if not shape or min(*widths, *shape) < 1:
            raise ValueError(
                f"latent, hidden and output_shape must be at least 1, got {latent}, {list(hidden)} and {shape}."
            )
        modules: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            modules += [empty(nn.Linear, before, after), nn.ReLU()]
        super().__init__(*modules, empty(nn.Linear, widths[-1], math.prod(shape)), nn.Unflatten(1, shape))
        self.latent, self.output_shape = latent, shape
        begin(self, seed)

    @property
    def linear(self) -> list[nn.Linear]:
        """The full layers."""
        return [module for module in self if isinstance(module, nn.Linear)]

    def forward(self, latent: Tensor) -> Tensor:
        """Inputs (n, *output_shape), for activations (n, latent)."""
        if latent.dim() < 2 or math.prod(latent.shape[1:]) != self.latent:
            raise ValueError(
                f"this decoder was built for activations of {self.latent} numbers, got {tuple(latent.shape)}: build it "
                "for the layer that it reads."
            )
        return super().forward(latent)
