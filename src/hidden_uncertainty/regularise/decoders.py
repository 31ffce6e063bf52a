"""Decoders: from a vector or a feature map back to the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..precision import gradients

_empty = nn.utils.skip_init  # torch would draw the weights from the global generator
_norm = partial(nn.BatchNorm2d, device="cpu")


class DenseDecoder(nn.Sequential):
    """Linear layers with ReLUs between them; the output has the shape of the input.

    For the k-th linear layer of a perceptron, k layers make a symmetrical autoencoder.

    Args:
        latent: how many numbers an activation has; activations of more dimensions are flattened.
        hidden: units of every layer but the last: one number for all, or one per layer.
        output_shape: shape of one input.
        layers: how many; not needed when `hidden` lists them.
        seed: of the initial weights, which are those of Glorot and Bengio; biases are zero.

    Example:
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
                raise ValueError(f"with hidden={hidden} for all layers, layers must be at least 1, got {layers}.")
            hidden = [hidden] * (layers - 1)
        elif layers not in (None, len(hidden) + 1):
            made = f"hidden={list(hidden)} makes {len(hidden) + 1} layers"
            raise ValueError(f"{made}, got layers={layers}: leave layers out.")
        widths, shape = [latent, *hidden], tuple(output_shape)
        if not shape or min(*widths, *shape) < 1:
            given = f"{latent}, {list(hidden)} and {shape}"
            raise ValueError(f"latent, hidden and output_shape must be at least 1, got {given}.")
        modules: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            modules += [_empty(nn.Linear, before, after), nn.ReLU()]
        super().__init__(*modules, _empty(nn.Linear, widths[-1], math.prod(shape)), nn.Unflatten(1, shape))
        self.latent, self.output_shape = latent, shape
        begin(self, seed)

    @property
    def linear(self) -> list[nn.Linear]:
        """The linear layers."""
        return [module for module in self if isinstance(module, nn.Linear)]

    def forward(self, latent: Tensor) -> Tensor:
        """Inputs (n, *output_shape), for activations (n, latent)."""
        if latent.dim() < 2 or math.prod(latent.shape[1:]) != self.latent:
            raise ValueError(
                f"this decoder was built for activations of {self.latent} numbers, got {tuple(latent.shape)}: build it "
                "for the layer that it reads."
            )
        return super().forward(latent)


class ResidualDecoder(nn.Module):
    """Stacks of residual units, each stack of twice the size and half the channels, and a convolution to the image.

    The first unit of a stack has transposed convolutions where a residual network has strided ones. There are as many
    stacks as it takes from the size of the activation to that of the image; with the same size, one that keeps it.

    Args:
        latent_shape: of one activation, (C, h, w).
        output_shape: of one image, (C, H, W); H / h and W / w must be the same power of two.
        units: residual units per stack, two as in ResNet18.
        seed: of the initial weights, which are those of Glorot and Bengio; biases are zero.

    Example:
        >>> decoder = ResidualDecoder((16, 8, 8), (3, 32, 32))
        >>> decoder(torch.zeros(2, 16, 8, 8)).shape, decoder.stacks
        (torch.Size([2, 3, 32, 32]), 2)
    """

    def __init__(
        self, latent_shape: Sequence[int], output_shape: Sequence[int], *, units: int = 2, seed: int = 0
    ) -> None:
        super().__init__()
        self.latent_shape, self.output_shape = tuple(latent_shape), tuple(output_shape)
        self.stacks = _stacks(self.latent_shape, self.output_shape)
        if units < 1:
            raise ValueError(f"units must be at least 1, got {units}.")
        width, channels = self.latent_shape[0], self.output_shape[0]
        body: list[nn.Module] = []
        for _ in range(max(1, self.stacks)):
            after = max(width // 2, channels) if self.stacks else width
            body.append(_Unit(width, after, upsample=self.stacks > 0))
            body += [_Unit(after, after) for _ in range(units - 1)]
            width = after
        self.body = nn.Sequential(*body)
        self.image = _empty(nn.Conv2d, width, channels, 3, padding=1)
        begin(self, seed)

    def forward(self, latent: Tensor) -> Tensor:
        """Images (n, *output_shape), for activations (n, *latent_shape)."""
        if latent.shape[1:] != self.latent_shape:
            raise ValueError(
                f"this decoder was built for activations (n, {', '.join(map(str, self.latent_shape))}), got "
                f"{tuple(latent.shape)}: build it for this layer and this size of images."
            )
        return self.image(self.body(latent))


class _Unit(nn.Module):
    """Two convolutions with norms beside a shortcut; one that upsamples begins with a transposed one on both sides."""

    def __init__(self, before: int, after: int, *, upsample: bool = False) -> None:
        super().__init__()
        self.shortcut: nn.Module = nn.Identity()
        if upsample:
            first = _empty(nn.ConvTranspose2d, before, after, 3, stride=2, padding=1, output_padding=1, bias=False)
            # 2 × 2, where the strided shortcut of an encoder is 1 × 1: that would leave three of four pixels empty.
            wider = _empty(nn.ConvTranspose2d, before, after, 2, stride=2, bias=False)
            self.shortcut = nn.Sequential(wider, _norm(after))
        else:
            first = _empty(nn.Conv2d, before, after, 3, padding=1, bias=False)
        second = _empty(nn.Conv2d, after, after, 3, padding=1, bias=False)
        self.main = nn.Sequential(first, _norm(after), nn.ReLU(), second, _norm(after))

    def forward(self, x: Tensor) -> Tensor:
        return (self.main(x) + self.shortcut(x)).relu()


def _stacks(latent: tuple[int, ...], output: tuple[int, ...]) -> int:
    """How often the size doubles from one shape to the other."""
    if len(latent) != 3 or len(output) != 3 or min(latent + output) < 1:
        raise ValueError(
            f"expected the shapes of one activation (C, h, w) and of one image (C, H, W), got {latent} and {output}; "
            "use DenseDecoder for vectors."
        )
    factor = output[1] // latent[1]
    if factor < 1 or factor & (factor - 1) or (latent[1] * factor, latent[2] * factor) != output[1:]:
        raise ValueError(
            f"from {latent[1]} × {latent[2]} to {output[1]} × {output[2]} is not a number of doublings: choose a "
            "layer whose height and width are those of the image divided by one power of two, or pass your own decoder."
        )
    return factor.bit_length() - 1


@gradients(False)
def begin(network: nn.Module, seed: int) -> None:
    """Initialise as Keras does: weights uniform within ±√(6 / (inputs + outputs)) (Glorot and Bengio), biases zero.

    Example:
        >>> layer = nn.Linear(3, 3)
        >>> begin(layer, 0)
        >>> bool(layer.weight.abs().max() <= 1), layer.bias.tolist()
        (True, [0.0, 0.0, 0.0])
    """
    generator = torch.Generator().manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            inputs, outputs = nn.init._calculate_fan_in_and_fan_out(layer.weight)
            drawn = torch.rand(layer.weight.shape, generator=generator, device="cpu")
            layer.weight.copy_((2 * drawn - 1) * math.sqrt(6 / (inputs + outputs)))
            if layer.bias is not None:
                layer.bias.zero_()
