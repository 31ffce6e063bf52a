"""Digits that come with scikit-learn, changes that move them away from these, and a small network with its training."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..progress import progress_bar

BATCH, HIGHEST = 64, 3e-3  # images per step of the training, and its highest learning rate
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Split:
    """Images (n, C, H, W) in [0, 1] with their labels (n,).

    Example:
        >>> split = Split(torch.zeros(5, 1, 8, 8), torch.arange(5))
        >>> len(split), split[split.labels > 2].labels, [len(labels) for _, labels in split.batches(2)]
        (5, tensor([3, 4]), [2, 2, 1])
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"expected images (n, C, H, W) and labels (n,), got {tuple(self.images.shape)} and "
                f"{tuple(self.labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: slice | Tensor) -> Split:
        """Some of the images: a slice, a mask or a tensor of indices."""
        return Split(self.images[index], self.labels[index])

    def batches(self, size: int = 256) -> list[tuple[Tensor, Tensor]]:
        """The images in order, `size` at a time, as a loader yields them."""
        return list(zip(self.images.split(size), self.labels.split(size), strict=True))


@dataclass(frozen=True, eq=False)
class Digits:
    """Digits, split at random: to train a network on, to calibrate (unseen by the network), and to test.

    `left_out` are all digits of the classes left out, which the other parts do not hold.
    """

    train: Split
    calibration: Split
    test: Split
    left_out: Split


def digits(*, left_out: Collection[int] = (), calibration: float = 0.2, test: float = 0.2, seed: int = 0) -> Digits:
    """The digits of scikit-learn as images (n, 1, 8, 8) in [0, 1], split at random.

    Args:
        left_out: classes to keep out of training, calibration and test.
        calibration: share of the other images.
        test: share of the other images; training gets the rest.
        seed: of the split.

    Example:
        >>> data = digits(left_out=(8, 9))
        >>> len(data.train), len(data.calibration), len(data.test), len(data.left_out)
        (865, 289, 289, 354)
    """
    unknown = sorted(set(left_out) - set(range(10)))
    if unknown or len(set(left_out)) > 8:
        raise ValueError(f"left_out must name digits from 0 to 9 and leave at least two, got {sorted(left_out)}.")
    if not (calibration > 0 and test > 0 and calibration + test < 1):
        raise ValueError(f"calibration and test must be positive and sum to less than 1, got {calibration} and {test}.")
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(seed), device="cpu")
    images = torch.from_numpy(found.images).float().div(16).unsqueeze(1)[order]  # (n, 1, 8, 8)
    labels = torch.from_numpy(found.target).long()[order]
    away = torch.isin(labels, torch.tensor(sorted(left_out), dtype=torch.long, device="cpu"))
    everything = Split(images, labels)
    known = everything[~away]
    unseen, last = round(calibration * len(known)), round(test * len(known))
    first = len(known) - unseen - last
    return Digits(known[:first], known[first : first + unseen], known[first + unseen :], everything[away])


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate images counter-clockwise about their centre; pixels from outside the image are zero.

    Bilinear, at the same size: corners that leave the image are lost.

    Args:
        images: (n, C, H, W), floating point.
        degrees: the angle.

    Example:
        >>> image = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, None]
        >>> rotate(image, 90)[0, 0].round(decimals=4)
        tensor([[2., 4.],
                [1., 3.]])
    """
    _check(images)
    height, width = images.shape[2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # The grid's coordinates run from -1 to 1 along both sides: undo this where the sides differ.
    inverse = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    theta = torch.tensor(inverse, dtype=images.dtype, device=images.device).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)  # (n, H, W, 2)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def add_noise(images: Tensor, deviation: float, *, seed: int = 0) -> Tensor:
    """Add independent Gaussian noise to every pixel; the result is not clipped.

    Args:
        images: (n, C, H, W), floating point.
        deviation: standard deviation, in the images' own unit.
        seed: of the noise. It is the same on every device, and differs between deviations only in its scale.

    Example:
        >>> noisy = add_noise(torch.zeros(2, 1, 64, 64), 0.5)
        >>> bool(abs(noisy.std() - 0.5) < 0.02)
        True
    """
    _check(images)
    if not deviation >= 0:
        raise ValueError(f"deviation must be zero or more, got {deviation}.")
    # One dtype whatever torch.set_default_dtype says: another one draws other numbers.
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(images.shape, generator=generator, dtype=torch.float32, device="cpu")
    return images + deviation * noise.to(images)


def _check(images: Tensor) -> None:
    if images.dim() != 4 or not images.is_floating_point():
        raise ValueError(f"expected floating-point images (n, C, H, W), got {tuple(images.shape)} of {images.dtype}.")


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


def train(network: Network, images: Tensor, labels: Tensor, *, epochs: int = 20, seed: int = 0) -> Network:
    """Train a classifier with Adam on a one-cycle schedule, and leave it in evaluation mode.

    Args:
        network: changed in place, and returned.
        images: (n, ...), on the network's device.
        labels: (n,).
        epochs: passes over the images.
        seed: of the order of the images, and of dropout on the CPU.

    Example:
        >>> images, labels = torch.rand(32, 1, 8, 8), torch.arange(32) % 10
        >>> network = train(DigitsNet(), images, labels, epochs=1)
        >>> network.training
        False
    """
    optimiser = torch.optim.Adam(network.parameters())
    steps = epochs * math.ceil(len(images) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=HIGHEST, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    network.train()
    with torch.random.fork_rng(devices=[]), progress_bar("training", epochs) as bar:
        torch.default_generator.manual_seed(seed)
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=generator, device="cpu").to(images.device)
            for rows in order.split(BATCH):
                loss = F.cross_entropy(network(images[rows]), labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            bar.advance(loss=loss.item())
    return network.eval()


@contextmanager
def built(seed: int) -> Iterator[None]:
    """Create layers inside with weights of this seed, on the CPU whatever torch.set_default_device says."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach for every GPU too
        yield
