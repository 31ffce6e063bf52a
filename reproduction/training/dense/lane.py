"""The training of one dense network: steps that run plainly on a CPU, and as one recorded graph on a GPU."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..lane import pixels
from ..module_lane import draw_from
from .augment import augment

Loss = Callable[[Tensor, Tensor], Tensor]
_WARM_UP = 3  # steps before a graph is recorded, as torch asks for


@dataclass(frozen=True)
class DenseRecipe:
    """How dense networks are trained.

    Args:
        epochs: passes over the images.
        batch_size: images per step; what does not fill a batch is left out, other images in every epoch.
        learning_rate: the highest.
        weight_decay: of kernels; norms and biases have none.
        optimiser: `"adamw"`, or `"sgd"` with momentum 0.9.
        schedule: how the rate falls to zero: `"cosine"`, or `"poly"`, (1 - progress)^0.9.
        warm_up: share of all steps in which the rate first rises from zero.
        crop: (height, width) of the windows to train on; None takes whole images.
        scale: lowest and highest of a random zoom.
        flip: mirror half of the images.
        colour: contrast, brightness and each colour change at random by up to this share.
        distances: targets are distances: what appears twice as large is half as far.

    Example:
        >>> DenseRecipe(epochs=2, warm_up=0.25, schedule="poly").rates(4).round(decimals=4)
        tensor([0.0005, 0.0010, 0.0010, 0.0008, 0.0007, 0.0005, 0.0004, 0.0002])
    """

    epochs: int = 40
    batch_size: int = 16
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    optimiser: Literal["adamw", "sgd"] = "adamw"
    schedule: Literal["cosine", "poly"] = "cosine"
    warm_up: float = 0.05
    crop: tuple[int, int] | None = None
    scale: tuple[float, float] = (1.0, 1.0)
    flip: bool = True
    colour: float = 0.0
    distances: bool = False

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size) < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}.")
        if self.optimiser not in ("adamw", "sgd") or self.schedule not in ("cosine", "poly"):
            raise ValueError(
                f"optimiser must be 'adamw' or 'sgd' and schedule 'cosine' or 'poly', got {self.optimiser!r} and "
                f"{self.schedule!r}."
            )
        if not (0 <= self.warm_up < 1 and 0 <= self.colour < 1):
            raise ValueError(f"warm_up and colour must be in [0, 1), got {self.warm_up} and {self.colour}.")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale must be a lowest and a highest factor above 0, got {self.scale}.")
        if self.crop is not None and min(self.crop) < 1:
            raise ValueError(f"crop must be (height, width) in pixels, got {self.crop}.")

    @property
    def augments(self) -> bool:
        """Whether images change at random."""
        return self.flip or self.crop is not None or self.scale != (1.0, 1.0) or self.colour > 0

    def rates(self, steps: int) -> Tensor:
        """The learning rate of every step, for this many steps per epoch."""
        total = self.epochs * steps
        first = round(self.warm_up * total)
        step = torch.arange(total, dtype=torch.float64, device="cpu")
        progress = (step - first).clamp(min=0) / (total - first)
        falling = (1 + (math.pi * progress).cos()) / 2 if self.schedule == "cosine" else (1 - progress) ** 0.9
        rising = ((step + 1) / max(first, 1)).clamp(max=1) if first else 1.0
        return (self.learning_rate * falling * rising).float()

    def build(self, parameters: list[nn.Parameter], rate: Tensor) -> torch.optim.Optimizer:
        """The optimiser; it reads its rate from a tensor in every step."""
        kernels = [p for p in parameters if p.dim() > 1]
        others = [p for p in parameters if p.dim() <= 1]
        groups = [{"params": kernels, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        groups = [group for group in groups if group["params"]]
        if self.optimiser == "sgd":
            return torch.optim.SGD(groups, lr=rate, momentum=0.9, fused=True)
        return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=rate.is_cuda)


class DenseLane:
    """One network in training: on a GPU in bfloat16 with float32 weights behind it, elsewhere in float32.

    The order of all batches, all rates and all images are on the device. A step finds its own with a counter that it
    advances, and needs nothing from the host.

    Args:
        network: with an attribute `seed`; copied, not changed.
        images: (n, 3, H, W), bytes or floating point, on the device.
        targets: (n, h, w), likewise.
        loss: of outputs and targets of a batch: a scalar.
        recipe: how.
        record: on a GPU, record a step as a graph and replay it.
    """

    def __init__(
        self, network: nn.Module, images: Tensor, targets: Tensor, loss: Loss, recipe: DenseRecipe, *, record: bool
    ) -> None:
        self.images, self.targets, self.loss, self.recipe = images, targets, loss, recipe
        device, seed = images.device, int(getattr(network, "seed", 0))
        self.network = copy.deepcopy(network).to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.random = torch.Generator(device).manual_seed(seed)
        draw_from(self.random, self.network)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        batch = min(recipe.batch_size, len(images))
        self.steps = len(images) // batch
        generator, used = torch.Generator().manual_seed(seed), self.steps * batch
        orders = [torch.randperm(len(images), generator=generator, device="cpu")[:used] for _ in range(recipe.epochs)]
        self.order = torch.cat(orders).view(-1, batch).to(device)  # (all steps, batch)
        self.rates = recipe.rates(self.steps).to(device)
        self.rate = self.rates[0].clone()
        self.optimiser = recipe.build(self.parameters, self.rate)
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        self.total = torch.zeros((), device=device)
        self.autocast = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
            if record:
                self._record()

    def epoch(self) -> float:
        """Train for an epoch, and return its mean loss."""
        with self._on_stream():
            self.total.zero_()
            for _ in range(self.steps):
                if self.graph is None:
                    self._step()
                else:
                    self.graph.replay()
            return float(self.total) / self.steps

    def state(self) -> dict[str, Tensor]:
        """The network's state, in main memory."""
        return {name: value.detach().cpu().contiguous() for name, value in self.network.state_dict().items()}

    def _step(self) -> None:
        rows = self.order.index_select(0, self.counter)[0]
        self.rate.copy_(self.rates.index_select(0, self.counter)[0])
        self.counter.add_(1)
        images, targets = pixels(self.images.index_select(0, rows)), self.targets.index_select(0, rows)
        recipe = self.recipe
        if recipe.augments:
            images, targets = augment(
                images,
                targets,
                crop=recipe.crop,
                scale=recipe.scale,
                flip=recipe.flip,
                colour=recipe.colour,
                distances=recipe.distances,
                generator=self.random,
            )
        images = images.contiguous(memory_format=torch.channels_last)
        # A recorded graph must convert the weights in every step, so that autocast may cache nothing.
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            output = self.network(images)
        loss = self.loss(_fit(output.float(), targets), targets)
        for parameter, gradient in zip(
            self.parameters, torch.autograd.grad(loss, self.parameters, allow_unused=True), strict=True
        ):
            parameter.grad = gradient
        self.optimiser.step()
        self.total.add_(loss.detach())

    def _on_stream(self) -> AbstractContextManager[None]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _record(self) -> None:
        """Record a step as a graph; weights and optimiser are put back afterwards."""
        assert self.stream is not None
        with self._on_stream():
            before = {name: value.clone() for name, value in self.network.state_dict().items()}
            for _ in range(_WARM_UP):
                self.counter.zero_()
                self._step()
            self.stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.random)
            with torch.cuda.graph(self.graph, stream=self.stream):
                self._step()
            self.network.load_state_dict(before)
            self.counter.zero_()
            for state in self.optimiser.state.values():
                for value in state.values():
                    value.zero_()
            self.stream.synchronize()


def _fit(output: Tensor, targets: Tensor) -> Tensor:
    """Outputs at the size of their targets."""
    if output.dim() != 4 or output.shape[2:] == targets.shape[1:]:
        return output
    return F.interpolate(output, size=targets.shape[1:], mode="bilinear", align_corners=False)
