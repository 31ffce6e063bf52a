"""Training classifiers on data that lie on their device: photographs with crops and flips, or texts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import io
from hidden_uncertainty.progress import progress_bar

BORDER = 4  # pixels around an image before it is cropped
_WARM_UP = 3  # steps before one is recorded as a graph, as torch asks for


@dataclass(frozen=True)
class ClassifierRecipe:
    """How a classifier is trained. The defaults are those of OpenOOD for CIFAR.

    Args:
        epochs: passes over the data.
        batch_size: inputs per step; what does not fill a batch is left out, other inputs in every epoch.
        optimiser: `"sgd"`, with Nesterov's momentum of 0.9, or `"adamw"`.
        learning_rate: the highest; it falls to zero along a cosine.
        weight_decay: of all weights.
        warm_up: share of the steps in which the learning rate rises from zero.
        augment: crop and flip images at random.
        bfloat16: take products in bfloat16 on the CPU as well.
    """

    epochs: int = 100
    batch_size: int = 128
    optimiser: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    warm_up: float = 0.0
    augment: bool = True
    bfloat16: bool = False

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size) < 1 or not 0 <= self.warm_up < 1:
            raise ValueError(f"epochs and batch_size are at least 1, warm_up is in [0, 1): got {self}.")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, as a share of the highest.

        Example:
            >>> [round(ClassifierRecipe(warm_up=0.2).rate(step, 10), 2) for step in (0, 1, 2, 6, 9)]
            [0.5, 1.0, 1.0, 0.5, 0.04]
        """
        rising = math.ceil(self.warm_up * steps)
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))


def train_classifiers(
    networks: Sequence[nn.Module],
    inputs: Tensor,
    labels: Tensor,
    recipe: ClassifierRecipe,
    *,
    seeds: Sequence[int] = (0,),
    paths: Sequence[str | os.PathLike[str]] | None = None,
    about: Mapping[str, str] | None = None,
) -> Sequence[nn.Module]:
    """Train networks where their data are, and leave them in evaluation mode; on a GPU, products are in bfloat16.

    On a GPU they learn side by side, on streams of their own.

    Args:
        networks: changed in place, and returned.
        inputs: all of them; bytes are images (n, C, H, W), which the networks see in [0, 1].
        labels: of these.
        recipe: how.
        seeds: of the order of inputs, of crops and flips, and of dropout, for each network; on a GPU, dropout is of the
            first.
        paths: a file for the weights of each: those that are there are loaded, and not trained.
        about: what else must be equal for them to be loaded, such as a digest of the data.

    Example:
        >>> images = torch.randint(256, (8, 3, 8, 8), dtype=torch.uint8)
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
        >>> recipe = ClassifierRecipe(epochs=1, batch_size=4)
        >>> train_classifiers([network], images, torch.arange(8) % 2, recipe)[0].training
        False
    """
    if len(inputs) < recipe.batch_size or len(inputs) != len(labels):
        raise ValueError(
            f"expected at least {recipe.batch_size} inputs, with as many labels, got {len(inputs)} and {len(labels)}."
        )
    files = [None] * len(networks) if paths is None else [Path(path) for path in paths]
    left: list[tuple[nn.Module, int, Path | None, dict[str, Any]]] = []
    for network, seed, path in zip(networks, seeds, files, strict=True):
        network.to(inputs.device)
        header = {"network": type(network).__name__, "recipe": asdict(recipe), "seed": seed, "about": dict(about or {})}
        if path is None or not path.exists():
            left.append((network, seed, path, header))
            continue
        found, tensors = io.read(path)
        if found != header:
            raise ValueError(
                f"{str(path)!r} holds a network trained differently ({found}): choose another folder, or remove it."
            )
        network.load_state_dict(tensors)
        network.eval()
    together = len(left) if inputs.is_cuda else 1
    for i in range(0, len(left), together or 1):
        some = left[i : i + together]
        _train([network for network, *_ in some], inputs, labels, recipe, [seed for _, seed, *_ in some])
        for network, _, path, header in some:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                io.write(path, header, {name: value.cpu() for name, value in network.state_dict().items()})
    return networks


def _train(
    networks: Sequence[nn.Module], inputs: Tensor, labels: Tensor, recipe: ClassifierRecipe, seeds: Sequence[int]
) -> None:
    device = inputs.device
    gpu = device.type == "cuda"
    per_epoch = len(inputs) // recipe.batch_size
    total = recipe.epochs * per_epoch
    name = type(networks[0]).__name__
    with (
        torch.random.fork_rng(devices=[device] if gpu else []),
        _fastest_products(),
        progress_bar(f"training {name}", recipe.epochs) as bar,
    ):
        (torch.cuda if gpu else torch.default_generator).manual_seed(seeds[0])  # of dropout
        learners = [_Learner(network, recipe, seed, device) for network, seed in zip(networks, seeds, strict=True)]
        for epoch in range(recipe.epochs):
            for learner in learners:
                learner.shuffle(len(inputs))
            for i in range(per_epoch):
                rate = recipe.learning_rate * recipe.rate(epoch * per_epoch + i, total)
                batch = slice(i * recipe.batch_size, (i + 1) * recipe.batch_size)
                for learner in learners:
                    learner.step(inputs, labels, batch, rate)
            bar.advance(loss=learners[0].last())
        if gpu:
            torch.cuda.synchronize(device)
    for network, seed in zip(networks, seeds, strict=True):
        network.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if not all(bool(value.isfinite().all()) for value in network.state_dict().values()):
            raise RuntimeError(f"{name} of seed {seed} diverged: lower the learning rate.")


@contextmanager
def _fastest_products() -> Iterator[None]:
    """Let convolutions on a GPU be tried in several ways, of which the fastest is used."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class _Learner:
    """One network that learns, on a stream of its own where there is a GPU.

    There, a step is one recorded graph, as its kernels take less time than it takes to ask for them.
    """

    def __init__(self, network: nn.Module, recipe: ClassifierRecipe, seed: int, device: torch.device) -> None:
        network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as crops come
        self.network, self.recipe, self.device = network, recipe, device
        self.random = torch.Generator(device).manual_seed(seed)
        self.gpu = device.type == "cuda"
        self.rate = torch.zeros((), device=device)
        options: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
        if self.gpu:
            options |= {"lr": self.rate, "fused": True}
        self.optimiser: torch.optim.Optimizer
        if recipe.optimiser == "sgd":
            self.optimiser = torch.optim.SGD(network.parameters(), **options, momentum=0.9, nesterov=True)
        else:
            self.optimiser = torch.optim.AdamW(network.parameters(), **options, capturable=self.gpu)
        self.stream = torch.cuda.Stream(device) if self.gpu else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
        self.steps = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def shuffle(self, count: int) -> None:
        """Draw the order of an epoch, on the stream that reads it."""
        with torch.cuda.stream(self.stream):
            self.order = torch.randperm(count, generator=self.random, device=self.device)

    def last(self) -> float:
        """The loss of the last step."""
        with torch.cuda.stream(self.stream):
            return self.loss.item()

    def step(self, inputs: Tensor, labels: Tensor, batch: slice, rate: float) -> None:
        """Learn of a part of the order at a rate."""
        if self.stream is None:
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self._learn(*self._batch(inputs, labels, batch))
            return
        with torch.cuda.stream(self.stream):
            self.rate.fill_(rate)
            x, y = self._batch(inputs, labels, batch)
            if self.steps < _WARM_UP:
                self._learn(x, y)
            else:
                if self.graph is None:
                    self._record(x, y)
                self.x.copy_(x)
                self.y.copy_(y)
                assert self.graph is not None
                self.graph.replay()
            self.steps += 1

    def _batch(self, inputs: Tensor, labels: Tensor, batch: slice) -> tuple[Tensor, Tensor]:
        rows = self.order[batch]
        x = inputs[rows]
        return augmented(x, self.random) if x.dtype == torch.uint8 and self.recipe.augment else x, labels[rows]

    def _record(self, x: Tensor, y: Tensor) -> None:
        """Record a step, which changes nothing yet."""
        self.x, self.y = x.clone(), y.clone()
        self.optimiser.zero_grad(set_to_none=True)
        torch.cuda.synchronize(self.device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self._learn(self.x, self.y)

    def _learn(self, x: Tensor, y: Tensor) -> None:
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        low = self.gpu or self.recipe.bfloat16
        # Weights that a cache keeps in bfloat16 would not outlive the recording.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=not self.gpu):
            loss = F.cross_entropy(self.network(x).float(), y)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.loss = loss.detach()


def augmented(images: Tensor, random: torch.Generator) -> Tensor:
    """Each image moved by up to four pixels, with black where it was not, and mirrored in half of the cases.

    Args:
        images: (n, C, H, W).
        random: on their device.

    Example:
        >>> augmented(torch.ones(3, 1, 8, 8), torch.Generator().manual_seed(0)).shape
        torch.Size([3, 1, 8, 8])
    """
    n, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, (BORDER,) * 4)
    down, right = torch.randint(2 * BORDER + 1, (2, n, 1), generator=random, device=device)
    rows = down + torch.arange(height, device=device)  # (n, H)
    columns = right + torch.arange(width, device=device)  # (n, W)
    mirrored = torch.rand(n, 1, generator=random, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    each = torch.arange(n, device=device)[:, None, None]
    return padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
