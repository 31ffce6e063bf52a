"""ResNet-18 for images of 32 × 32 pixels, as in OpenOOD."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty.demo.training import built


class Standardise(nn.Module):
    """From [0, 1] to mean 0 and deviation 1 per channel, as a part of the network."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values, device="cpu").view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W)."""
        return (images - self.mean) / self.std


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            convolution = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, C, H, W)."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two blocks each; the first convolution has stride one and there is no pooling after it.

    Args:
        classes: how many there are.
        width: channels of the first stage; each later one has twice as many.
        mean: of the training pixels, per channel.
        std: of the training pixels, per channel.
        seed: of the initial weights.

    Example:
        >>> ResNet18(width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> sum(p.numel() for p in ResNet18(100).parameters())
        11220132
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        width: int = 64,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.25, 0.25, 0.25),
        seed: int = 0,
    ) -> None:
        super().__init__()
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        with built(seed):
            self.standardise = Standardise(mean, std)
            self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
            self.layer1, self.layer2, self.layer3, self.layer4 = (
                nn.Sequential(Block(before, after, 1 if before == after else 2), Block(after, after, 1))
                for before, after in pairwise(widths)
            )
            self.fc = nn.Linear(widths[-1], classes)
        self.seed = seed

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class (n, classes), for images (n, 3, H, W) in [0, 1]."""
        x = self.stem(self.standardise(images))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))
