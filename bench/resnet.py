"""ResNet18 for images of 32 × 32, with random weights: only its time matters here."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Sequential()
        if stride != 1 or width_in != width:
            self.skip = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(hidden)) + self.skip(x))


def resnet18(width: int = 64, classes: int = 10) -> nn.Sequential:
    """The network, in evaluation mode; its layer `pool` gives 8 × `width` numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: dict[str, nn.Module] = {
            "conv": nn.Conv2d(3, width, 3, 1, 1, bias=False),
            "norm": nn.BatchNorm2d(width),
            "relu": nn.ReLU(inplace=True),
        }
        before = width
        for index, factor in enumerate((1, 2, 4, 8)):
            after = width * factor
            layers[f"layer{index + 1}"] = nn.Sequential(
                Block(before, after, 1 if index == 0 else 2), Block(after, after, 1)
            )
            before = after
        layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "fc": nn.Linear(before, classes)}
        model = nn.Sequential()
        for name, layer in layers.items():
            model.add_module(name, layer)
    return model.eval()
