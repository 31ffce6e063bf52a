"""Perceptrons of one shape as one stack of matrices: many are trained in the time of a few."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ._lane import Data, Lane, Recipe, pixels, scores
from ._watch import CRITERIA, Criterion
from .fcnet import FCNet

_HELD_ROWS = 1 << 18  # of held images, times networks, at a time


class StackLane(Lane):
    """Perceptrons as stacked weights (networks, before, after) and biases (networks, 1, after).

    Args:
        networks: of one shape; read, never changed.
        data: what to train on.
        recipe: how.
        criteria: by what networks stop.
    """

    def __init__(
        self, networks: Sequence[FCNet], data: Data, recipe: Recipe, criteria: Sequence[Criterion] = CRITERIA
    ) -> None:
        device = data.images.device
        self.dropout = networks[0].dropout
        self.layers: list[tuple[Tensor, Tensor]] = []
        for same in zip(*(network.linear for network in networks), strict=True):
            weight = torch.stack([layer.weight.detach().mT for layer in same]).to(device).contiguous()
            bias = torch.stack([layer.bias.detach()[None] for layer in same]).to(device)
            self.layers.append((weight.requires_grad_(), bias.requires_grad_()))
        parameters = [tensor for layer in self.layers for tensor in layer]
        self.random = torch.Generator(device).manual_seed(networks[0].seed)
        super().__init__(
            [network.seed for network in networks],
            data,
            recipe,
            parameters=parameters,
            live=[p.detach() for p in parameters],
            criteria=criteria,
        )

    def generator(self) -> torch.Generator | None:
        """Of dropout masks."""
        return self.random if self.dropout else None

    def forward(self, x: Tensor, *, drop: bool = False) -> Tensor:
        """Logits (networks, n, classes) of flat images (networks, n, inputs)."""
        for weight, bias in self.layers[:-1]:
            x = torch.baddbmm(bias, x, weight).relu()
            if drop and self.dropout:
                mask = torch.empty_like(x).bernoulli_(1 - self.dropout, generator=self.random)
                x = x * mask.div_(1 - self.dropout)
        weight, bias = self.layers[-1]
        return torch.baddbmm(bias, x, weight)

    def learn(self, rows: Tensor) -> None:
        """One step of every network, each on its own batch."""
        x = pixels(self.data.images[rows]).flatten(2)  # (networks, batch, inputs)
        logits = self.forward(x, drop=True)
        loss = F.cross_entropy(logits.flatten(0, 1), self.data.labels[rows].flatten(), reduction="sum")
        # A network's weights appear in its own terms only: dividing by the batch gives each the gradient of its mean.
        gradients = torch.autograd.grad(loss / rows.shape[1], self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimiser.step()

    @torch.no_grad()
    def validate(self) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy of each network on the held images."""
        count = len(self.layers[0][0])
        size = max(1, _HELD_ROWS // count)
        held = zip(self.data.held_images.split(size), self.data.held_labels.split(size), strict=True)
        parts = [
            scores(self.forward(pixels(images).flatten(1).expand(count, -1, -1)), labels) for images, labels in held
        ]
        loss, right = (torch.stack(values).sum(0) for values in zip(*parts, strict=True))
        return loss / len(self.data.held_labels), right / len(self.data.held_labels)

    def states(self, kept: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """What was kept of the stack, as one state for each module."""
        names = [f"{1 + 3 * i}.{kind}" for i in range(len(self.layers)) for kind in ("weight", "bias")]
        values = [value.mT if name.endswith("weight") else value[:, 0] for name, value in zip(names, kept, strict=True)]
        return [
            {name: value[i].contiguous().cpu() for name, value in zip(names, values, strict=True)}
            for i in range(len(kept[0]))
        ]
