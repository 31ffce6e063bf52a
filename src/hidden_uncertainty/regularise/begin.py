"""Initial weights, without touching the global generator."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..precision import gradients

_PRODUCTS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def empty(kind: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """A layer with uninitialised weights: torch would draw them from the global generator."""
    return nn.utils.skip_init(kind, *args, **kwargs)


@gradients(False)
def begin(network: nn.Module, seed: int) -> None:
    """Initialise as Keras does: weights uniform within ±√(6 / (inputs + outputs)) (Glorot and Bengio), biases zero.

    Args:
        network: changed in place.
        seed: of a separate generator.

    Example:
        >>> layer = empty(nn.Linear, 3, 3)
        >>> begin(layer, 0)
        >>> bool(layer.weight.abs().max() <= 1), layer.bias.tolist()
        (True, [0.0, 0.0, 0.0])
    """
    generator = torch.Generator().manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, _PRODUCTS):
            inputs, outputs = nn.init._calculate_fan_in_and_fan_out(layer.weight)
            drawn = torch.rand(layer.weight.shape, generator=generator, device="cpu")
            layer.weight.copy_((2 * drawn - 1) * math.sqrt(6 / (inputs + outputs)))
            if layer.bias is not None:
                layer.bias.zero_()
