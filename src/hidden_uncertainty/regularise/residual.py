"""From a smaller picture of many channels back to an image, by residual units."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .._begin import begin, empty


class ResidualDecoder(nn.Module):
    """Stacks of residual units, each stack of twice the size and half the channels, and a convolution to the image.

    The first unit of a stack does with transposed convolutions what a residual network's does with strided ones. There
    are as many stacks as it takes from the activation's size to the image's; with the same size, one stack that keeps
    it. Weights begin after Glorot and Bengio.

    Args:
        latent_shape: of one activation, (C, h, w).
        output_shape: of one image, (C, H, W); H / h and W / w must be the same power of two.
        units: residual units a stack, two as in ResNet18.
        seed: of the first weights.

    Example:
        >>> import torch
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
        self.image = empty(nn.Conv2d, width, channels, 3, padding=1)
        begin(self, seed)

    def forward(self, latent: Tensor) -> Tensor:
        """Images (n, *output_shape), for activations (n, *latent_shape)."""
        if latent.shape[1:] != self.latent_shape:
            raise ValueError(
                f"this decoder was built for activations (n, {', '.join(map(str, self.latent_shape))}), got "
                f"{tuple(latent.shape)}: build it for the layer that it reads and the size of images that come."
            )
        return self.image(self.body(latent))


class _Unit(nn.Module):
    """Two convolutions with norms beside a shortcut; one that upsamples begins with a transposed one on both sides."""

    def __init__(self, before: int, after: int, *, upsample: bool = False) -> None:
        super().__init__()
        self.shortcut: nn.Module = nn.Identity()
        if upsample:
            first = empty(nn.ConvTranspose2d, before, after, 3, stride=2, padding=1, output_padding=1, bias=False)
            # 2 × 2, where the strided shortcut of an encoder is 1 × 1: that would leave three of four pixels empty.
            self.shortcut = nn.Sequential(
                empty(nn.ConvTranspose2d, before, after, 2, stride=2, bias=False), nn.BatchNorm2d(after, device="cpu")
            )
        else:
            first = empty(nn.Conv2d, before, after, 3, padding=1, bias=False)
        second = empty(nn.Conv2d, after, after, 3, padding=1, bias=False)
        self.main = nn.Sequential(
            first, nn.BatchNorm2d(after, device="cpu"), nn.ReLU(), second, nn.BatchNorm2d(after, device="cpu")
        )

    def forward(self, x: Tensor) -> Tensor:
        return (self.main(x) + self.shortcut(x)).relu()


def _stacks(latent: tuple[int, ...], output: tuple[int, ...]) -> int:
    """How often the size doubles from one shape to the other."""
    if len(latent) != 3 or len(output) != 3 or min(latent + output) < 1:
        raise ValueError(
            f"expected the shapes of one activation (C, h, w) and of one image (C, H, W), got {latent} and {output}; "
            "vectors are for DenseDecoder."
        )
    factor = output[1] // latent[1]
    if factor < 1 or factor & (factor - 1) or (latent[1] * factor, latent[2] * factor) != output[1:]:
        raise ValueError(
            f"from {latent[1]} × {latent[2]} to {output[1]} × {output[2]} is no doubling, however often: choose a "
            "layer whose height and width are those of the image by the same power of two, or write a decoder for it."
        )
    return factor.bit_length() - 1
