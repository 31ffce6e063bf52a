"""A small convolutional network for 8×8 images, and how it is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..progress import bars, progress_bar

Network = TypeVar("Network", bound=nn.Module)


class DigitsNet(nn.Module):
    """Three convolutions and two fully connected layers, in blocks with names.

    Args:
        classes: how many there are.
        seed: of the initial weights.

    Example:
        >>> DigitsNet()(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 10])
    """

    def __init__(self, classes: int = 10, *, seed: int = 0) -> None:
        super().__init__()
        # As the digits, whatever torch.set_default_dtype says.
        linear = partial(nn.Linear, dtype=torch.float32)
        conv = partial(nn.Conv2d, kernel_size=3, padding=1, dtype=torch.float32)
        with built(seed):
            self.conv1 = nn.Sequential(conv(1, 16), nn.ReLU())  # (n, 16, 8, 8)
            self.conv2 = nn.Sequential(conv(16, 32), nn.ReLU(), nn.MaxPool2d(2))  # (n, 32, 4, 4)
            self.conv3 = nn.Sequential(conv(32, 64), nn.ReLU(), nn.MaxPool2d(2))  # (n, 64, 2, 2)
            self.hidden = nn.Sequential(nn.Flatten(), linear(256, 256), nn.ReLU())  # (n, 256)
            self.output = linear(256, classes)  # (n, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class (n, classes), for images (n, 1, 8, 8)."""
        return self.output(self.hidden(self.conv3(self.conv2(self.conv1(images)))))


def train(
    network: Network,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int = 20,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    seed: int = 0,
    progress: bool | None = None,
) -> Network:
    """Train a classifier with Adam on a one-cycle schedule, and leave it in evaluation mode.

    Args:
        network: changed in place, and returned.
        images: (n, ...), on the network's device.
        labels: (n,).
        epochs: passes over the images.
        batch_size: images per step.
        learning_rate: the highest of the cycle.
        seed: of the order of the images, and of dropout on the CPU.
        progress: show a bar; None shows it on a terminal.

    Example:
        >>> images, labels = torch.rand(32, 1, 8, 8), torch.arange(32) % 10
        >>> network = train(DigitsNet(), images, labels, epochs=1)
        >>> network.training
        False
    """
    steps = epochs * -(-len(images) // batch_size)
    optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=learning_rate, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    network.train()
    with _seeded(seed), bars(progress), progress_bar("training", epochs) as bar:
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=generator, device="cpu").to(images.device)
            for rows in order.split(batch_size):
                loss = F.cross_entropy(network(images[rows]), labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            bar.advance(loss=loss.item())
    return network.eval()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the CPU's generator for a block, and put it back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach for every GPU too
        yield


@contextmanager
def built(seed: int) -> Iterator[None]:
    """Create layers inside with weights of this seed, on the CPU whatever torch.set_default_device says."""
    with _seeded(seed), torch.device("cpu"):
        yield
