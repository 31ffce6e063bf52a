"""Any classifier, one per lane: on a GPU many side by side, each a recorded graph on a stream of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from .fused_resnet import fuse
from .lane import Data, Lane, Recipe, scores
from .watch import CRITERIA, Criterion

_HELD_ROWS = 4096  # validated at a time
_ALIGNED = 64  # elements: weights that start elsewhere are multiplied without tensor cores
_PRODUCTS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)  # multiplied in bfloat16; norms stay in float32


class ModuleLane(Lane):
    """One network: on a GPU in bfloat16 with float32 weights behind it, elsewhere in float32.

    A step of a small network consists of small kernels, so that their number matters: all weights of convolutions and
    fully connected layers are in one flat tensor, converted and optimised at once, and images are channels last.

    A network that regularises itself sets its attribute `penalty` in each forward pass in training; it is added to the
    loss.

    Args:
        network: with an attribute `seed`; copied, not changed.
        data: what to train on, from `channels_last`.
        recipe: how.
        criteria: of early stopping.
    """

    def __init__(
        self, network: nn.Module, data: Data, recipe: Recipe, criteria: Sequence[Criterion] = CRITERIA
    ) -> None:
        device = data.images.device
        self.network = copy.deepcopy(network).to(device).train()
        self.random = torch.Generator(device).manual_seed(int(getattr(network, "seed", 0)))
        self.drops = draw_from(self.random, self.network)
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.scale = torch.tensor(1 / 255, dtype=self.dtype, device=device)
        products = {
            f"{name}.{kind}".removeprefix("."): parameter
            for name, module in self.network.named_modules()
            if isinstance(module, _PRODUCTS)
            for kind, parameter in module.named_parameters(recurse=False)
        }
        self.shapes = {name: parameter.shape for name, parameter in products.items()}
        self.flat = torch.cat([_flatten(parameter.detach()) for parameter in products.values()]).requires_grad_()
        for parameter, (_, view) in zip(products.values(), self._views(self.flat.detach()), strict=True):
            parameter.data = view
        # With a fixed momentum, norms need no count of their batches, which takes one kernel each.
        self.counters = [name for name in self.network.state_dict() if name.endswith("num_batches_tracked")]
        for name in self.counters:
            module = self.network.get_submodule(name.rpartition(".")[0])
            if module.momentum is not None:
                module.num_batches_tracked = None  # type: ignore[assignment]
        self.others = [p for name, p in self.network.named_parameters() if name not in products]
        self.names = list(self.network.state_dict())
        super().__init__(
            [int(getattr(network, "seed", 0))],
            data,
            recipe,
            parameters=[self.flat, *self.others],
            live=[value.detach()[None] for value in self.network.state_dict().values()],
            criteria=criteria,
        )
        if device.type == "cuda":
            fuse(self.network)
        self.rows = data.images.permute(0, 2, 3, 1).flatten(1)  # a view: (n, pixels)

    @staticmethod
    def channels_last(data: Data) -> Data:
        """The data with channels last in memory, as convolutions on a GPU need them."""
        if data.images.dim() != 4:
            raise ValueError(f"expected images (n, C, H, W), got {tuple(data.images.shape)}.")
        images, held = (x.contiguous(memory_format=torch.channels_last) for x in (data.images, data.held_images))
        return Data(images, data.labels, held, data.held_labels)

    def generator(self) -> torch.Generator | None:
        """Of dropout masks."""
        return self.random if self.drops else None

    def forward(self, images: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Logits (n, classes), in float32."""
        x = images.to(self.dtype) if images.is_floating_point() else images * self.scale
        return functional_call(self.network, weights, (x,)).float()

    def learn(self, rows: Tensor) -> None:
        """One step on one batch."""
        _, channels, height, width = self.data.images.shape
        images = self.rows.index_select(0, rows[0]).view(-1, height, width, channels).permute(0, 3, 1, 2)
        low = self.flat.detach().to(self.dtype)
        weights = {name: view.detach().requires_grad_() for name, view in self._views(low)}
        loss = F.cross_entropy(self.forward(images, weights), self.data.labels[rows[0]])
        penalty = self.network.__dict__.pop("penalty", None)
        gradients = torch.autograd.grad(loss if penalty is None else loss + penalty, [*weights.values(), *self.others])
        own, rest = gradients[: len(weights)], gradients[len(weights) :]
        self.flat.grad = torch.cat([_flatten(gradient) for gradient in own]).float()
        for parameter, gradient in zip(self.others, rest, strict=True):
            parameter.grad = gradient
        self.optimiser.step()

    @torch.no_grad()
    def validate(self) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy on the held images."""
        self.network.eval()
        weights = dict(self._views(self.flat.to(self.dtype)))
        held = zip(self.data.held_images.split(_HELD_ROWS), self.data.held_labels.split(_HELD_ROWS), strict=True)
        parts = [scores(self.forward(images, weights)[None], labels) for images, labels in held]
        self.network.train()
        loss, right = (torch.stack(values).sum(0) for values in zip(*parts, strict=True))
        return loss / len(self.data.held_labels), right / len(self.data.held_labels)

    def states(self, kept: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """What was kept, as the module's state."""
        counted = {name: torch.tensor(self.epoch * self.steps, device="cpu") for name in self.counters}
        return [counted | {name: value[0].contiguous().cpu() for name, value in zip(self.names, kept, strict=True)}]

    def _views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Weights by name, as views of the flat tensor."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        places = [size + -size % _ALIGNED for size in sizes]
        for (name, shape), size, place in zip(self.shapes.items(), sizes, flat.split(places), strict=True):
            part = place[:size]
            if len(shape) == 4:
                out, before, height, width = shape
                yield name, part.view(out, height, width, before).permute(0, 3, 1, 2)
            else:
                yield name, part.view(shape)


def _flatten(weight: Tensor) -> Tensor:
    """Flat, channels last, padded with zeros to where the next may start."""
    flat = (weight.permute(0, 2, 3, 1) if weight.dim() == 4 else weight).reshape(-1)
    return F.pad(flat, (0, -len(flat) % _ALIGNED)) if len(flat) % _ALIGNED else flat


class _Dropout(nn.Module):
    """Dropout with a generator of its own, so that a network's seed alone decides its training."""

    def __init__(self, share: float, generator: torch.Generator) -> None:
        super().__init__()
        self.keep, self.random = 1 - share, generator

    def forward(self, x: Tensor) -> Tensor:
        """Drop some numbers, in training."""
        if not self.training:
            return x
        mask = torch.empty_like(x).bernoulli_(self.keep, generator=self.random)
        return x * mask.div_(self.keep)


def draw_from(generator: torch.Generator, network: nn.Module) -> bool:
    """Let all dropout of a network draw from a generator; returns whether there is any."""
    found = [(name, m.p) for name, m in network.named_modules() if isinstance(m, nn.Dropout) and m.p > 0]
    for name, share in found:
        parent, _, last = name.rpartition(".")
        setattr(network.get_submodule(parent), last, _Dropout(share, generator))
    return bool(found)
