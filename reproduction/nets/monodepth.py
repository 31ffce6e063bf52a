"""Depth per pixel of one image, with an encoder and a decoder with skips between them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty.demo.training import built

from .efficientnet import EfficientNetLite0

_WIDTHS = (256, 128, 64)  # of the decoder, coarse to fine, before its last 16 channels (Godard et al. 2019)
_THIN = 16  # channels of the penultimate layer


class MonoDepth(nn.Module):
    """Depth in metres, above zero, at half the size of the image.

    ====================  =====================================================  =======================
    layer                 what                                                   output
    ====================  =====================================================  =======================
    `encoder`             features at five resolutions                           see `EfficientNetLite0`
    `decoder.0` to `2`    twice the size, joined with the encoder's features     (n, 64, H/4, W/4)
    `decoder.3`           likewise                                               (n, 16, H/2, W/2)
    `last`                convolution, norm; a rectifier comes after it          (n, 16, H/2, W/2)
    `dropout`             only for MC dropout                                    (n, 16, H/2, W/2)
    `output`              3×3 convolution, softplus                              (n, 1, H/2, W/2)
    ====================  =====================================================  =======================

    Densities are fitted to `MonoDepth.latent`, the penultimate layer before its activation. It is thin: the output sees
    patches of 3×3×16 = 144 numbers of it. Images may have any size; halves are rounded up.

    Args:
        encoder: becomes part of the network, not dilated; None makes one with random weights.
        dropout: share of numbers dropped before the output, in training mode.
        seed: of the initial weights, and in `train_dense` of batches, augmentation and dropout.

    Example:
        >>> network = MonoDepth(encoder=EfficientNetLite0(width=0.25))
        >>> network(torch.rand(2, 3, 37, 50)).shape, MonoDepth.latent
        (torch.Size([2, 1, 19, 25]), 'last')
    """

    latent: ClassVar[str] = "last"

    def __init__(self, *, encoder: EfficientNetLite0 | None = None, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.share, self.seed = dropout, seed
        self.encoder = encoder or EfficientNetLite0(seed=seed)
        coarse = self.encoder.channels[::-1]
        widths = (*_WIDTHS, _THIN)
        with built(seed):
            self.decoder = nn.ModuleList(
                _Finer(before, skip, after)
                for before, skip, after in zip((coarse[0], *_WIDTHS), coarse[1:], widths, strict=True)
            )
            self.last = nn.Sequential(nn.Conv2d(_THIN, _THIN, 3, padding=1, bias=False), nn.BatchNorm2d(_THIN))
            self.dropout = nn.Dropout(dropout)
            self.output = nn.Conv2d(_THIN, 1, 3, padding=1)

    def config(self) -> dict[str, Any]:
        """What distinguishes this network from others, for files."""
        return {"dropout": self.share, "encoder": self.encoder.config()}

    def forward(self, images: Tensor) -> Tensor:
        """Depth (n, 1, H/2, W/2) in metres, of images (n, 3, H, W) in [0, 1] or of bytes."""
        *skips, x = self.encoder(images)
        for finer, skip in zip(self.decoder, reversed(skips), strict=True):
            x = finer(x, skip)
        return F.softplus(self.output(self.dropout(F.relu(self.last(x)))))


class _Finer(nn.Module):
    """One step of the decoder: fewer channels, the size of the skip, and both convolved together."""

    def __init__(self, before: int, skip: int, after: int) -> None:
        super().__init__()
        self.narrow = _convolution(before, after)
        self.join = _convolution(after + skip, after)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Features (n, after, h, w) at the size of the skip."""
        x = F.interpolate(self.narrow(x), size=skip.shape[2:], mode="bilinear", align_corners=False)
        return self.join(torch.cat([x, skip], 1))


def _convolution(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )
