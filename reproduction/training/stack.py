"""Perceptrons of one architecture as one stack of matrices; the first dimension counts networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Loss = Literal["squared", "gaussian"]
Data = tuple[Tensor, Tensor]  # x (networks, n, d) and y (networks, n, q)
_LOWEST = math.log(1e-6)  # of a log-variance: for data without noise, the likelihood has no maximum


@dataclass(frozen=True)
class StackOptions:
    """Options of `train_mlps`."""

    loss: Loss
    epochs: int
    batch_size: int | None
    learning_rate: float
    weight_decay: float
    patience: int
    dropout: float


class Stack:
    """Weights of many perceptrons, trained together with separate early stopping.

    Args:
        parameters: weights (networks, before, after) and biases (networks, 1, after) of each layer, in turn.
        seeds: of the order of batches and of dropout, one per network.
        options: how to train.
    """

    def __init__(self, parameters: Sequence[Tensor], seeds: Sequence[int], options: StackOptions) -> None:
        self.parameters = [p.detach().clone().requires_grad_() for p in parameters]
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.options = options
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=options.learning_rate, weight_decay=options.weight_decay, fused=True
        )

    def train(self, data: Data, held: Data | None, advance: Callable[[float], None]) -> list[Tensor]:
        """The trained parameters; with validation data, those of the best epoch."""
        best = [p.detach().clone() for p in self.parameters]
        members = torch.arange(len(self.generators), device="cpu")  # still in training
        lowest = torch.full((len(members),), math.inf, device="cpu")
        since = torch.zeros(len(members), dtype=torch.long, device="cpu")  # epochs since the lowest
        for epoch in range(self.options.epochs):
            self.optimiser.param_groups[0]["lr"] = self._rate(epoch)
            losses = self._epoch(data)
            if not losses.isfinite().all():
                raise RuntimeError(
                    f"the loss of {int((~losses.isfinite()).sum())} networks is not finite after {epoch + 1} epochs: "
                    "lower learning_rate, and check that x and y are standardised."
                )
            if held is None:
                advance(float(losses.mean()))
                continue
            with torch.no_grad():
                losses = self._losses(*held)
            better = losses < lowest
            for kept, p in zip(best, self.parameters, strict=True):
                kept[members[better]] = p.detach()[better]
            lowest, since = torch.where(better, losses, lowest), torch.where(better, 0, since + 1)
            advance(float(lowest.mean()))
            going = since < self.options.patience
            if not going.all():
                if not going.any():
                    break
                members, lowest, since = members[going], lowest[going], since[going]
                data, held = subset(data, going), subset(held, going)
                self._keep(going)
        return best if held is not None else [p.detach() for p in self.parameters]

    def forward(self, x: Tensor, *, drop: bool = False) -> Tensor:
        """Outputs (networks, n, outputs)."""
        layers = list(zip(self.parameters[::2], self.parameters[1::2], strict=True))
        h = x
        for weight, bias in layers[:-1]:
            h = torch.baddbmm(bias, h, weight).relu_()
            if drop and self.options.dropout:
                h = h * self._mask(h)
        return torch.baddbmm(layers[-1][1], h, layers[-1][0])

    def _epoch(self, data: Data) -> Tensor:
        """One pass over the data; the loss of each network in its last step."""
        x, y = data
        size = self.options.batch_size or y.shape[1]
        if size < y.shape[1]:
            order = torch.stack([torch.randperm(y.shape[1], generator=g, device="cpu") for g in self.generators])
            rows = torch.arange(len(y), device="cpu")[:, None], order
            x, y = x[rows], y[rows]
        for batch in zip(x.split(size, dim=1), y.split(size, dim=1), strict=True):
            losses = self._losses(*batch, drop=True)
            self.optimiser.zero_grad()
            losses.sum().backward()  # one network's weights appear in one term only
            self.optimiser.step()
        return losses.detach()

    def _losses(self, x: Tensor, y: Tensor, *, drop: bool = False) -> Tensor:
        output = self.forward(x, drop=drop)
        if self.options.loss == "squared":
            return (output - y).square().mean((1, 2))
        mean, log_variance = output.chunk(2, dim=2)
        log_variance = log_variance.clamp(min=_LOWEST)
        return (log_variance + (y - mean).square() * (-log_variance).exp()).mean((1, 2)) / 2

    def _mask(self, h: Tensor) -> Tensor:
        """Factors of units (networks, n, units): 0 for those dropped, a little above 1 for the rest."""
        # Sixteen random bits per unit; drawing numbers takes twice as long, and would be most of a step.
        bits = torch.empty(len(h), -(-h[0].numel() // 4), dtype=torch.int64, device="cpu")
        for row, generator in zip(bits, self.generators, strict=True):
            row.random_(-(2**63), None, generator=generator)
        words = bits.view(torch.int16)[:, : h[0].numel()].view_as(h)  # -2^15 … 2^15 - 1
        keep = words >= round(2**16 * self.options.dropout) - 2**15
        return keep.to(h.dtype).div_(1 - self.options.dropout)

    def _rate(self, epoch: int) -> float:
        return self.options.learning_rate * (1 + math.cos(math.pi * epoch / self.options.epochs)) / 2

    def _keep(self, going: Tensor) -> None:
        """Drop the networks that have stopped, and the optimiser's state of them."""
        self.generators = [g for g, goes in zip(self.generators, going.tolist(), strict=True) if goes]
        for p in self.parameters:
            p.data, p.grad = p.data[going], None
            state = self.optimiser.state[p]
            state["exp_avg"], state["exp_avg_sq"] = state["exp_avg"][going], state["exp_avg_sq"][going]


def subset(data: Data, networks: Tensor) -> Data:
    """The data of some networks."""
    return data[0][networks], data[1][networks]
