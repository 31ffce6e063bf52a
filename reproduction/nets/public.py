"""Residual networks for CIFAR10 that others have trained: the weights of github.com/akamaster/pytorch_resnet_cifar10.

Nothing of them is kept here: put the files of its folder `pretrained_models` into `pytorch_resnet_cifar10` in the
folder of data sets.
"""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..datasets.root import find
from .resnet18 import Standardise

FOLDER = "pytorch_resnet_cifar10"
FILES = {20: "resnet20-12fca82f.th", 32: "resnet32-d509ac18.th", 44: "resnet44-014dd654.th", 56: "resnet56-4bfd9763.th"}
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # their inputs were standardised as ImageNet's


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
        blocks = (depth - 2) // 6
        self.standardise = Standardise(_MEAN, _STD)
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(Unit(before, after), *(Unit(after, after) for _ in range(blocks - 1)))
            for before, after in ((16, 16), (16, 32), (32, 64))
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class (n, 10), for images (n, 3, H, W) in [0, 1]."""
        x = F.relu(self.bn1(self.conv1(self.standardise(images))))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def load(depth: int) -> ThinResNet:
    """A network with the published weights, in evaluation mode; their names end with the start of their digest."""
    path = find(None, FOLDER, FILES[depth])
    start = path.stem.rpartition("-")[2]
    found = sha256(path.read_bytes()).hexdigest()
    if not found.startswith(start):
        raise ValueError(
            f"{str(path)!r} is not the published file: its sha256 starts with {found[:8]}, expected {start}. "
            "Download it again."
        )
    stored = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    network = ThinResNet(depth)
    own = {f"standardise.{name}": value for name, value in network.standardise.state_dict().items()}
    network.load_state_dict({name.removeprefix("module."): value for name, value in stored.items()} | own)
    return network.eval()
