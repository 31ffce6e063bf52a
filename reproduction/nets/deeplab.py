"""DeepLabv3+: one class per pixel, with an encoder, a pyramid of dilated convolutions and a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty.demo.training import built

from .efficientnet import EfficientNetLite0

_RATES = (6, 12, 18)  # of dilation, where one position covers 16 pixels (Chen et al. 2018)
_SKIP = 48  # channels of the fine features in the decoder (likewise)


class DeepLab(nn.Module):
    """Logits of one class per pixel, at the size of the image.

    ====================  ==================================================  ======================
    layer                 what                                                output
    ====================  ==================================================  ======================
    `encoder`             features; the coarsest cover 16 pixels              see `EfficientNetLite0`
    `pyramid`             five views of them, from one pixel to all, joined   (n, width, H/16, W/16)
    `decoder.first`       pyramid and fine features: convolution, norm        (n, width, H/4, W/4)
    `decoder.last`        convolution, norm; a rectifier comes after it       (n, width, H/4, W/4)
    `decoder.dropout`     only for MC dropout                                 (n, width, H/4, W/4)
    `decoder.logits`      one number per class                                (n, classes, H/4, W/4)
    ====================  ==================================================  ======================

    Densities are fitted to `DeepLab.latent`, the last layer before the logits, before its activation. Images
    may have any size; sizes of features are rounded up.

    Args:
        classes: how many there are.
        encoder: becomes part of the network; None makes one with random weights. Its last stages should be dilated.
        width: channels of pyramid and decoder.
        dropout: share of numbers dropped before the logits, in training mode.
        seed: of the initial weights, and in `train_dense` of batches, augmentation and dropout.

    Example:
        >>> network = DeepLab(5, encoder=EfficientNetLite0(dilated=True, width=0.25), width=16)
        >>> network(torch.rand(2, 3, 37, 50)).shape, DeepLab.latent
        (torch.Size([2, 5, 37, 50]), 'decoder.last')
    """

    latent: ClassVar[str] = "decoder.last"

    def __init__(
        self,
        classes: int = 19,
        *,
        encoder: EfficientNetLite0 | None = None,
        width: int = 256,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(classes, width) < 1:
            raise ValueError(f"expected classes and width of at least 1, got {classes} and {width}.")
        self.classes, self.width, self.dropout, self.seed = classes, width, dropout, seed
        self.encoder = encoder or EfficientNetLite0(dilated=True, seed=seed)
        with built(seed):
            self.pyramid = _Pyramid(self.encoder.channels[4], width)
            self.decoder = _Decoder(width, self.encoder.channels[1], classes, dropout)

    def config(self) -> dict[str, Any]:
        """What distinguishes this network from others, for files."""
        own = {"classes": self.classes, "width": self.width, "dropout": self.dropout}
        return {**own, "encoder": self.encoder.config()}

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes, H, W) of images (n, 3, H, W) in [0, 1] or of bytes."""
        features = self.encoder(images)
        logits = self.decoder(self.pyramid(features[4]), features[1])
        return F.interpolate(logits, size=images.shape[2:], mode="bilinear", align_corners=False)


class _Pyramid(nn.Module):
    """A pixel itself, its surroundings at three distances, and the whole image."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        near = nn.Sequential(*_convolution(before, width, 1), nn.ReLU())
        far = [nn.Sequential(*_convolution(before, width, 3, dilation=rate), nn.ReLU()) for rate in _RATES]
        self.views = nn.ModuleList([near, *far])
        # No norm here: with one number per image it would fail on a batch of one.
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(before, width, 1), nn.ReLU())
        self.join = nn.Sequential(*_convolution(width * (len(self.views) + 1), width, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """All views joined, (n, width, h, w)."""
        views = [view(x) for view in self.views]
        return self.join(torch.cat([*views, self.whole(x).expand_as(views[0])], 1))


class _Decoder(nn.Module):
    """The output of the pyramid, refined by features that cover 4 pixels."""

    def __init__(self, width: int, fine: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.skip = nn.Sequential(*_convolution(fine, _SKIP, 1), nn.ReLU())
        self.first = nn.Sequential(*_convolution(width + _SKIP, width, 3))
        self.last = nn.Sequential(*_convolution(width, width, 3))
        self.dropout = nn.Dropout(dropout)
        self.logits = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor, fine: Tensor) -> Tensor:
        """Logits at the resolution of the fine features."""
        x = F.interpolate(x, size=fine.shape[2:], mode="bilinear", align_corners=False)
        x = self.last(F.relu(self.first(torch.cat([x, self.skip(fine)], 1))))
        return self.logits(self.dropout(F.relu(x)))


def _convolution(before: int, after: int, kernel: int, *, dilation: int = 1) -> Sequence[nn.Module]:
    around = dilation * (kernel // 2)
    return (
        nn.Conv2d(before, after, kernel, padding=around, dilation=dilation, bias=False),
        nn.BatchNorm2d(after),
    )
