"""Training one classifier on data that lie on its device: photographs with crops and flips, or texts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import io
from hidden_uncertainty.progress import progress_bar

BORDER = 4  # pixels around an image before it is cropped


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


def train_classifier(
    network: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    recipe: ClassifierRecipe,
    *,
    seed: int = 0,
    path: str | os.PathLike[str] | None = None,
    about: Mapping[str, str] | None = None,
) -> nn.Module:
    """Train a network where its data are, and leave it in evaluation mode; on a GPU, products are in bfloat16.

    Args:
        network: changed in place, and returned.
        inputs: all of them; bytes are images (n, C, H, W), which the network sees in [0, 1].
        labels: of these.
        recipe: how.
        seed: of the order of inputs, of crops and flips, and of dropout.
        path: a file for the weights: if it is there, they are loaded and nothing is trained.
        about: what else must be equal for them to be loaded, such as a digest of the data.

    Example:
        >>> images = torch.randint(256, (8, 3, 8, 8), dtype=torch.uint8)
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
        >>> recipe = ClassifierRecipe(epochs=1, batch_size=4)
        >>> train_classifier(network, images, torch.arange(8) % 2, recipe).training
        False
    """
    if len(inputs) < recipe.batch_size or len(inputs) != len(labels):
        raise ValueError(
            f"expected at least {recipe.batch_size} inputs, with as many labels, got {len(inputs)} and {len(labels)}."
        )
    network.to(inputs.device)
    header = {"network": type(network).__name__, "recipe": asdict(recipe), "seed": seed, "about": dict(about or {})}
    if path is not None and Path(path).exists():
        found, tensors = io.read(path)
        if found != header:
            raise ValueError(
                f"{str(path)!r} holds a network trained differently ({found}): choose another folder, or remove it."
            )
        network.load_state_dict(tensors)
        return network.eval()
    _train(network, inputs, labels, recipe, seed)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        io.write(path, header, {name: value.cpu() for name, value in network.state_dict().items()})
    return network


def _train(network: nn.Module, inputs: Tensor, labels: Tensor, recipe: ClassifierRecipe, seed: int) -> None:
    device = inputs.device
    gpu = device.type == "cuda"
    options: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    optimiser: torch.optim.Optimizer
    if recipe.optimiser == "sgd":
        optimiser = torch.optim.SGD(network.parameters(), **options, momentum=0.9, nesterov=True)
    else:
        optimiser = torch.optim.AdamW(network.parameters(), **options)
    per_epoch = len(inputs) // recipe.batch_size
    total = recipe.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: recipe.rate(min(step, total - 1), total))
    random = torch.Generator(device).manual_seed(seed)
    network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as crops come
    with (
        torch.random.fork_rng(devices=[device] if gpu else []),
        progress_bar(f"training {type(network).__name__}", recipe.epochs) as bar,
    ):
        (torch.cuda if gpu else torch.default_generator).manual_seed(seed)  # of dropout
        for _ in range(recipe.epochs):
            order = torch.randperm(len(inputs), generator=random, device=device)
            for rows in order[: per_epoch * recipe.batch_size].split(recipe.batch_size):
                x = inputs[rows]
                if x.dtype == torch.uint8:
                    x = (augmented(x, random) if recipe.augment else x).float() / 255
                with torch.autocast(device.type, torch.bfloat16, enabled=gpu or recipe.bfloat16):
                    loss = F.cross_entropy(network(x).float(), labels[rows])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
            bar.advance(loss=loss.item())
    network.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    if not all(bool(value.isfinite().all()) for value in network.state_dict().values()):
        raise RuntimeError(f"{type(network).__name__} of seed {seed} diverged: lower the learning rate.")


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
