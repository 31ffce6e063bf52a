"""Residual networks for CIFAR10 and CIFAR100 that others have trained.

Nothing of them is kept here. Put the files of each repository's folder of weights into a folder of the repository's
name, in the folder of data sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..datasets.root import find
from .resnet18 import Standardise

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation that inputs were standardised by
CIFAR100 = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)
CHANNELS = (16, 32, 64)


class Published(NamedTuple):
    """A file of weights, and the network that they are for."""

    folder: str
    file: str
    digest: str  # the start of its sha256
    build: Callable[[], nn.Module]


class Unit(nn.Module):
    """Two convolutions beside a shortcut without weights, which takes every second place and adds empty channels."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.more = (1, 0) if before == after else (2, (after - before) // 2)
        self.conv1 = nn.Conv2d(before, after, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, C, H, W)."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more, self.more))
        return F.relu(y + shortcut)


class ThinResNet(nn.Module):
    """A residual network of 6 n + 2 layers for images of 32 × 32 pixels (He et al. 2016, section 4.2).

    Args:
        depth: 20, 32, 44, 56, …

    Example:
        >>> ThinResNet(20)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> sum(p.numel() for p in ThinResNet(56).parameters())
        853018
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.standardise = Standardise(*IMAGENET)
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = _stages(Unit, 16, depth)
        self.linear = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class (n, 10), for images (n, 3, H, W) in [0, 1]."""
        x = F.relu(self.bn1(self.conv1(self.standardise(images))))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class LinearUnit(nn.Module):
    """Two convolutions beside a shortcut that has weights where the channels change; nothing is cut off after it."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 2 if after > before else 1
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if before != after:
            convolution = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, C, H, W)."""
        return self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x)


class WideStemResNet(nn.Module):
    """A thin residual network with 64 channels before the first stage, whose head reads four places of the last maps.

    Args:
        depth: 8, 14, 20, 26, 32, …

    Example:
        >>> WideStemResNet(20)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 100])
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.standardise = Standardise(*CIFAR100)
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1, self.layer2, self.layer3 = _stages(LinearUnit, 64, depth)
        self.linear = nn.Linear(256, 100)

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class (n, 100), for images (n, 3, H, W) in [0, 1]."""
        x = F.relu(self.bn1(self.conv1(self.standardise(images))))
        for layer in (self.layer1, self.layer2, self.layer3):
            x = F.relu(layer(x))
        return self.linear(F.avg_pool2d(x, 4).flatten(1))


class EarlyUnit(nn.Module):
    """Two convolutions, each after its norm, beside a shortcut; the first of a stage shortcuts what is normed."""

    def __init__(self, before: int, after: int, *, first: bool) -> None:
        super().__init__()
        self.first, stride = first, 2 if after > before else 1
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.downsample = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, C, H, W)."""
        normed = F.relu(self.bn1(x))
        return self.conv2(F.relu(self.bn2(self.conv1(normed)))) + self.downsample(normed if self.first else x)


class EarlyNormResNet(nn.Module):
    """A thin residual network whose norms come before the convolutions (He et al. 2016, Identity Mappings).

    Args:
        depth: 20, 32, …

    Example:
        >>> EarlyNormResNet(20)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 100])
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.standardise = Standardise(*CIFAR100)
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        first, later = partial(EarlyUnit, first=True), partial(EarlyUnit, first=False)
        self.layer1, self.layer2, self.layer3 = _stages(first, 16, depth, later)
        self.bn = nn.BatchNorm2d(64)
        self.fc = nn.Linear(64, 100)

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class (n, 100), for images (n, 3, H, W) in [0, 1]."""
        x = self.layer3(self.layer2(self.layer1(self.conv(self.standardise(images)))))
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


def _stages(
    first: Callable[[int, int], nn.Module],
    before: int,
    depth: int,
    later: Callable[[int, int], nn.Module] | None = None,
) -> list[nn.Sequential]:
    """Three stages of as many blocks as a network of this depth has."""
    count, widths = (depth - 2) // 6, (before, *CHANNELS)
    return [
        nn.Sequential(first(widths[i], widths[i + 1]), *((later or first)(c, c) for _ in range(count - 1)))
        for i, c in enumerate(CHANNELS)
    ]


def _published(folder: str, build: Callable[[int], nn.Module], files: Mapping[int, tuple[str, str]]) -> list[Published]:
    return [Published(folder, *file, partial(build, depth)) for depth, file in files.items()]


FILES: Mapping[str, Sequence[Published]] = {  # from the shallowest
    "akamaster/pytorch_resnet_cifar10": _published(
        "pytorch_resnet_cifar10",
        ThinResNet,
        {
            depth: (f"resnet{depth}-{digest}.th", digest)
            for depth, digest in {20: "12fca82f", 32: "d509ac18", 44: "014dd654", 56: "4bfd9763"}.items()
        },
    ),
    "karanchahal/distiller": _published(
        "distiller",
        WideStemResNet,
        {
            depth: (f"resnet{depth}_cifar100.pth", digest)
            for depth, digest in {20: "9dd75a40", 26: "73a2dea2", 32: "f79eb922"}.items()
        },
    ),
    "joshua5301/SAQ-personal": _published("SAQ-personal", EarlyNormResNet, {20: ("cifar100_resnet.pth", "81cd16f2")}),
}


def load(published: Published) -> nn.Module:
    """A network with published weights, in evaluation mode."""
    path = find(None, published.folder, published.file)
    found = sha256(path.read_bytes()).hexdigest()
    if not found.startswith(published.digest):
        raise ValueError(
            f"{str(path)!r} is not the published file: its sha256 starts with {found[:8]}, expected "
            f"{published.digest}. Download it again."
        )
    stored = torch.load(path, map_location="cpu", weights_only=True)
    stored = stored.get("state_dict", stored.get("model_state_dict", stored))
    network = published.build()
    own = {name: value for name, value in network.state_dict().items() if name.startswith("standardise.")}
    network.load_state_dict({name.removeprefix("module."): value for name, value in stored.items()} | own)
    return network.eval()
