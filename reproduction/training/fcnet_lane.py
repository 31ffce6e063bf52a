"""Perceptrons of one shape as one stack of matrices: many train in the time of a few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reproduction.nets.reconstruction import DenseDecoder

from ..nets.fcnet import FCNet
from ..nets.regularised import Regularised
from .lane import Data, Lane, Recipe, pixels, scores
from .watch import CRITERIA, Criterion

_HELD_ROWS = 1 << 18  # of held images, times networks, at a time
Stacked = FCNet | Regularised
Layers = list[tuple[Tensor, Tensor]]  # weights (networks, before, after) and biases (networks, 1, after)


class StackLane(Lane):
    """Perceptrons as stacked weights; with their decoders, and weights of the penalty, where they are regularised.

    Args:
        networks: of one shape, as `stackable` checks; not changed.
        data: what to train on.
        recipe: how.
        criteria: of early stopping.
    """

    def __init__(
        self, networks: Sequence[Stacked], data: Data, recipe: Recipe, criteria: Sequence[Criterion] = CRITERIA
    ) -> None:
        device = data.images.device
        first = networks[0]
        plain = first.network if isinstance(first, Regularised) else first
        assert isinstance(plain, FCNet)
        self.dropout = plain.dropout
        self.names = [name for name, module in first.named_modules() if isinstance(module, nn.Linear)]
        layers: Layers = []
        for name in self.names:
            same = [cast(nn.Linear, network.get_submodule(name)) for network in networks]
            weight = torch.stack([layer.weight.detach().mT for layer in same]).to(device).contiguous()
            bias = torch.stack([layer.bias.detach()[None] for layer in same]).to(device)
            layers.append((weight.requires_grad_(), bias.requires_grad_()))
        parameters = [tensor for layer in layers for tensor in layer]
        self.layers, self.decoder = layers[: len(plain.linear)], layers[len(plain.linear) :]
        self.read = -1  # which of the layers is decoded
        if isinstance(first, Regularised):
            self.read = self.names.index(f"network.{first.layer}")
            weights = [network.weight for network in networks if isinstance(network, Regularised)]
            self.weights = torch.tensor(weights, device=device)  # (networks,)
        self.random = torch.Generator(device).manual_seed(first.seed)
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

    def forward(self, x: Tensor, *, drop: bool = False) -> tuple[Tensor, Tensor]:
        """Logits (networks, n, classes) of flat images (networks, n, inputs), and the layer to decode."""
        latent = x
        for i, (weight, bias) in enumerate(self.layers):
            if i > 0:
                x = x.relu()
                if drop and self.dropout:
                    mask = torch.empty_like(x).bernoulli_(1 - self.dropout, generator=self.random)
                    x = x * mask.div_(1 - self.dropout)
            x = torch.baddbmm(bias, x, weight)
            if i == self.read:
                latent = x
        return x, latent

    def learn(self, rows: Tensor) -> None:
        """One step of every network, each on its own batch."""
        x = pixels(self.data.images[rows]).flatten(2)  # (networks, batch, inputs)
        logits, latent = self.forward(x, drop=True)
        loss = F.cross_entropy(logits.flatten(0, 1), self.data.labels[rows].flatten(), reduction="sum")
        # A network's weights appear only in its own terms: divided by the batch, each has the gradient of its mean.
        loss = loss / rows.shape[1]
        if self.decoder:
            loss = loss + self._penalty(latent, x)
        gradients = torch.autograd.grad(loss, self.parameters)
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
            scores(self.forward(pixels(images).flatten(1).expand(count, -1, -1))[0], labels) for images, labels in held
        ]
        loss, right = (torch.stack(values).sum(0) for values in zip(*parts, strict=True))
        return loss / len(self.data.held_labels), right / len(self.data.held_labels)

    def states(self, kept: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """What was kept of the stack, as one state per module."""
        names = [f"{name}.{kind}" for name in self.names for kind in ("weight", "bias")]
        values = [value.mT if name.endswith("weight") else value[:, 0] for name, value in zip(names, kept, strict=True)]
        return [
            {name: value[i].contiguous().cpu() for name, value in zip(names, values, strict=True)}
            for i in range(len(kept[0]))
        ]

    def _penalty(self, latent: Tensor, x: Tensor) -> Tensor:
        """Weighted reconstruction errors, summed over networks."""
        found = latent
        for weight, bias in self.decoder[:-1]:
            found = torch.baddbmm(bias, found, weight).relu()
        weight, bias = self.decoder[-1]
        found = torch.baddbmm(bias, found, weight)
        return (self.weights * (found - x).square().mean((1, 2))).sum()


def stackable(networks: Sequence[nn.Module]) -> bool:
    """Whether networks can be trained as one stack: perceptrons with one dropout, plain or regularised at the same
    fully connected layer.

    Example:
        >>> stackable([FCNet(seed=0), FCNet(seed=1)]), stackable([nn.Linear(3, 2)])
        (True, False)
    """
    plain = [network.network if isinstance(network, Regularised) else network for network in networks]
    # A subclass may compute something else.
    if any(type(network) is not FCNet for network in plain) or len({network.dropout for network in plain}) > 1:
        return False
    regularised = [network for network in networks if isinstance(network, Regularised)]
    if not regularised:
        return True
    return (
        len(regularised) == len(networks)
        and all(type(n.decoder) is DenseDecoder for n in regularised)
        and len({n.layer for n in regularised}) == 1
        and isinstance(regularised[0].network.get_submodule(regularised[0].layer), nn.Linear)
    )
