"""One lane of training: a step that runs plainly on a CPU and as one recorded graph on a GPU."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from .watch import CRITERIA, Criterion, Watch

Decay = Literal["gradient", "decoupled"]
_WARM_UP = 3  # steps before a graph is recorded, as torch asks for


@dataclass(frozen=True)
class Recipe:
    """How classifiers are trained: Adam on batches, with early stopping. The defaults are the paper's.

    Args:
        epochs: passes over the data, at most.
        patience: epochs without improvement before a network stops.
        batch_size: images per step; what does not fill a batch is left out, other images in every epoch.
        learning_rate: constant.
        weight_decay: w adds w times the weights to their gradient (`"gradient"`, as in Adam), or subtracts w times
            the learning rate times the weights in each step (`"decoupled"`, as in AdamW).
        decay: which of the two.

    Example:
        >>> Recipe(decay="decoupled").optimiser([nn.Parameter(torch.zeros(2))]).__class__.__name__
        'AdamW'
    """

    epochs: int = 200
    patience: int = 20
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    decay: Decay = "gradient"

    def __post_init__(self) -> None:
        if min(self.epochs, self.patience, self.batch_size) < 1:
            raise ValueError(
                f"epochs, patience and batch_size must be at least 1, got {self.epochs}, {self.patience} and "
                f"{self.batch_size}."
            )
        if self.decay not in ("gradient", "decoupled"):
            raise ValueError(f"decay must be 'gradient' or 'decoupled', not {self.decay!r}.")

    def optimiser(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        """Adam or AdamW, in one kernel for all parameters, and recordable on a GPU."""
        kind = torch.optim.AdamW if self.decay == "decoupled" else torch.optim.Adam
        return kind(
            parameters,
            lr=self.learning_rate,
            betas=(0.9, 0.999),
            weight_decay=self.weight_decay,
            fused=True,
            capturable=parameters[0].is_cuda,
        )


@dataclass(frozen=True, eq=False)
class Data:
    """Images with labels for training and for early stopping, on the networks' device.

    Args:
        images: (n, ...), floating point, or bytes for [0, 1].
        labels: (n,).
        held_images: likewise, for validation.
        held_labels: likewise.
    """

    images: Tensor
    labels: Tensor
    held_images: Tensor
    held_labels: Tensor

    def to(self, device: torch.device | str) -> Data:
        """The same on another device."""
        return Data(*(t.to(device) for t in (self.images, self.labels, self.held_images, self.held_labels)))


class Lane(ABC):
    """Networks trained by one sequence of steps, on a stream of their own where there is a GPU.

    A subclass sets up weights and defines a step and a validation. The rows of all batches are on the device, and a
    step finds its own with a counter that it advances, so that steps need nothing from the host.

    Args:
        seeds: of the order of batches, one per network.
        data: what to train on.
        recipe: how.
        parameters: to be optimised; the optimiser's state is made from them.
        live: everything that training changes, (networks, ...) each: parameters and buffers.
        criteria: of early stopping.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        data: Data,
        recipe: Recipe,
        *,
        parameters: Sequence[Tensor],
        live: Sequence[Tensor],
        criteria: Sequence[Criterion] = CRITERIA,
    ) -> None:
        self.data, self.recipe, self.parameters = data, recipe, list(parameters)
        self.device = data.images.device
        self.batch_size = min(recipe.batch_size, len(data.images))
        self.steps = len(data.images) // self.batch_size
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.optimiser = recipe.optimiser(self.parameters)
        self.watch = Watch(live, recipe.patience, criteria)
        self.order = torch.zeros(self.steps, len(seeds), self.batch_size, dtype=torch.long, device=self.device)
        self.counter = torch.zeros(1, dtype=torch.long, device=self.device)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self._copied = torch.cuda.Event() if self.stream is not None else None
        self.done, self.epoch, self.loss = False, 0, math.inf
        self._next = self._shuffle()

    @abstractmethod
    def learn(self, rows: Tensor) -> None:
        """One step on images rows (networks, batch): forward, backward and the optimiser, without asking the host."""

    @abstractmethod
    def validate(self) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy of each network on the held images, (networks,) each."""

    @abstractmethod
    def states(self, kept: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """What was kept of `live`, as one state per module."""

    def generator(self) -> torch.Generator | None:
        """The generator of a step, if it draws random numbers."""
        return None

    def on_stream(self) -> AbstractContextManager[None]:
        """Send work to the lane's own stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def begin(self) -> None:
        """Begin an epoch: copy the order of its batches to the device."""
        if self.stream is not None and self.graph is None:
            self._record()
        self.order.copy_(self._next, non_blocking=True)
        self.counter.zero_()
        if self._copied is not None:
            self._copied.record(self.stream)

    def prepare(self) -> None:
        """Draw the batches of the next epoch, while the device still works on this one."""
        if self._copied is not None:
            self._copied.synchronize()  # before the host's copy is replaced
        self._next = self._shuffle()

    def step(self) -> None:
        """Train on the next batch."""
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def check(self) -> None:
        """Validate; results are read in `end`, so that the device validates other networks meanwhile."""
        self._checked = self.validate()

    def end(self) -> None:
        """End an epoch: update early stopping."""
        loss, accuracy = self._checked
        self.watch.update({"loss": loss, "accuracy": -accuracy})
        self.epoch, self.loss = self.epoch + 1, float(loss.mean())
        self.done = self.watch.done or self.epoch == self.recipe.epochs

    def _step(self) -> None:
        rows = self.order.index_select(0, self.counter)[0]
        self.counter.add_(1)
        self.learn(rows)

    def _shuffle(self) -> Tensor:
        """Rows of every batch of an epoch, (steps, networks, batch)."""
        n, used = len(self.data.images), self.steps * self.batch_size
        rows = torch.stack([torch.randperm(n, generator=g, device="cpu")[:used] for g in self.generators])
        rows = rows.view(len(self.generators), self.steps, self.batch_size).transpose(0, 1).contiguous()
        return rows.pin_memory() if self.device.type == "cuda" else rows

    def _record(self) -> None:
        """Record a step as a graph; weights and optimiser are put back afterwards."""
        before = [t.clone() for t in self.watch.live]
        for _ in range(_WARM_UP):
            self.learn(self.order[0])
        assert self.stream is not None
        self.stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        generator = self.generator()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph, stream=self.stream):
            self._step()
        for live, value in zip(self.watch.live, before, strict=True):
            live.data.copy_(value)
        for parameter in self.parameters:
            for value in self.optimiser.state[parameter].values():
                value.zero_()


def pixels(images: Tensor) -> Tensor:
    """Floating-point images; bytes become [0, 1]."""
    return images if images.is_floating_point() else images.float() / 255


def scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of losses, and number of right predictions, of logits (networks, n, classes) for labels (n,)."""
    loss = nn.functional.cross_entropy(logits.mT, labels.expand(len(logits), -1), reduction="none").sum(1)
    return loss, (logits.argmax(-1) == labels).sum(1).float()
