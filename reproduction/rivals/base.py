"""What rivals share: a network with a loss of its own, how it is trained, and the detector that scores by it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hidden_uncertainty import Detector
from hidden_uncertainty.progress import progress_bar

from ..nets.fcnet import FCNet

BATCH = 2000  # inputs per batch, where nothing is trained


@dataclass(frozen=True)
class Schedule:
    """How long and in which steps a rival is trained, by Adam unless it has a momentum, which is that of SGD.

    Args:
        epochs: passes over the data; there is no early stopping, so that all rivals have as many.
        batch_size: inputs per step; what does not fill a batch is left out, other inputs in every epoch.
        learning_rate: of the first epoch.
        weight_decay: added to the gradient, times the weights.
        momentum: of SGD; None takes Adam.
        milestones: epochs after which the learning rate falls.
        decay: what it is multiplied by then.
        beta: of Adam, for the mean of gradients.
    """

    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    momentum: float | None = None
    milestones: tuple[int, ...] = ()
    decay: float = 0.2
    beta: float = 0.9

    def optimiser(self, rival: nn.Module) -> torch.optim.Optimizer:
        """Of all parameters."""
        common: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay, "fused": True}
        if self.momentum is None:
            return torch.optim.Adam(rival.parameters(), betas=(self.beta, 0.999), **common)
        return torch.optim.SGD(rival.parameters(), momentum=self.momentum, **common)


class Known(NamedTuple):
    """What detectors are fitted to: inputs and labels that the network was trained on, and unseen ones."""

    x: Tensor
    y: Tensor
    unseen_x: Tensor
    unseen_y: Tensor

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The training data."""
        return list(zip(self.x.split(BATCH), self.y.split(BATCH), strict=True))

    def unseen(self) -> list[tuple[Tensor, Tensor]]:
        """The unseen data."""
        return list(zip(self.unseen_x.split(BATCH), self.unseen_y.split(BATCH), strict=True))


class Rival(nn.Module, ABC):
    """A classifier that is trained to know what it does not know; called, it gives the logits of classes.

    Args:
        seed: of its weights, of what it draws, and of the order of batches.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.random = torch.Generator("cpu").manual_seed(seed)

    def noise(self, like: Tensor) -> Tensor:
        """Normal numbers for training, of a tensor's shape, drawn where it is."""
        if self.random.device != like.device:
            self.random = torch.Generator(like.device).manual_seed(self.seed)
        return torch.randn(like.shape, generator=self.random, device=like.device)

    @abstractmethod
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What training minimises, for one batch."""

    def after_step(self, x: Tensor, y: Tensor) -> None:
        """What follows a step of the optimiser."""

    def finish(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """What follows the training, such as a covariance; in evaluation mode."""

    @abstractmethod
    def detectors(self) -> Iterator[tuple[str, Detector]]:
        """Detectors that score by this network, not fitted, by what the study calls them."""


def perceptron(inputs: int = 784, hidden: int = 100, *, depth: int = 4, seed: int = 0) -> nn.Sequential:
    """The first layers of the paper's perceptron, by default all but the last, with the weights of this seed.

    Example:
        >>> perceptron(2, 8)(torch.zeros(3, 2)).shape
        torch.Size([3, 8])
    """
    return nn.Sequential(*list(FCNet(inputs, hidden, initialisation="glorot", seed=seed))[: 1 + 3 * depth])


def draw(seed: int, *shape: int, std: float = 1.0) -> Tensor:
    """Normal numbers of a seed, on the CPU."""
    return std * torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")


def seconds(x: Tensor) -> float:
    """Now: of the processor, which other work on the machine does not lengthen much; for a GPU, of the clock."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
        return time.perf_counter()
    return time.process_time()


def train(rival: Rival, x: Tensor, y: Tensor, schedule: Schedule) -> float:
    """Train a rival, finish it, and leave it in evaluation mode.

    Args:
        rival: untrained; changed.
        x: inputs, on the device of the rival.
        y: labels.
        schedule: how.

    Returns:
        Seconds, as `seconds` counts them.
    """
    start = seconds(x)
    order = torch.Generator("cpu").manual_seed(rival.seed)
    optimiser = schedule.optimiser(rival)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimiser, list(schedule.milestones), schedule.decay)
    size = min(schedule.batch_size, len(x))
    with progress_bar(f"training {type(rival).__name__}", schedule.epochs) as bar:
        for _ in range(schedule.epochs):
            rival.train()
            total = torch.zeros((), device=x.device)
            # The rows of an epoch go to the device at once: no step waits for it.
            for rows in torch.randperm(len(x), generator=order, device="cpu").to(x.device).split(size):
                if len(rows) == size:
                    images, labels = x[rows], y[rows]
                    optimiser.zero_grad()
                    loss = rival.loss(images, labels)
                    loss.backward()
                    optimiser.step()
                    with torch.no_grad():
                        rival.after_step(images, labels)
                    total += loss.detach()
            scheduler.step()
            if not total.isfinite():
                raise RuntimeError(f"{type(rival).__name__} with seed {rival.seed} diverged: lower learning_rate.")
            bar.advance(1, loss=float(total) * size / len(x))
    rival.eval()
    with torch.no_grad():
        rival.finish(list(zip(x.split(BATCH), y.split(BATCH), strict=True)))
    return seconds(x) - start
