"""Conditional affine couplings: an invertible map whose log-determinant costs nothing (paper, appendix on flows).

Samples are columns here, (d, n): halves, their permutations and scales are then whole rows of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...io import expect

Form = Literal["glow", "realnvp"]
BOUND = 2.0  # of a coupling's log scale, either way; FrEIA has the same default


class Coupling(nn.Module):
    r"""One affine coupling: a half of the coordinates scales and shifts the other.

    .. math:: u_2' = (u_2 + g_t(u_1; c)) \odot g_s(u_1; c), \qquad \log g_s = 2 \tanh(s / 2)

    s and :math:`g_t` are the sum of a perceptron of u₁ and of one of the condition. All couplings share the hidden
    layers of the latter (`features`, see `Couplings`). The soft clamp keeps a coupling from scaling by more than e²
    either way; it is written with the logistic function, which costs a seventh of tanh or arctan in torch. The hidden
    layers of u₁'s perceptron are tanh: its output is bounded, so far out the flow is affine and its density falls as a
    Gaussian does.

    Args:
        kept: how many coordinates pass through.
        changed: how many are scaled and shifted.
        features: width of the condition's last hidden layer.
        hidden: widths of the hidden layers.
        stack: 2 for one perceptron each for s and t, 1 for one that gives both.
    """

    def __init__(self, kept: int, changed: int, features: int, hidden: Sequence[int], stack: int) -> None:
        super().__init__()
        out = 2 * changed // stack
        self.bias = nn.Parameter(torch.zeros(stack, out, 1, device="cpu"))
        self.condition = nn.Parameter(torch.zeros(stack, out, features, device="cpu"))
        sizes = [kept, *hidden, out] if kept else []  # with nothing to pass through, the condition decides alone
        self.weights = nn.ParameterList(torch.zeros(stack, b, a, device="cpu") for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(stack, width, 1, device="cpu") for width in sizes[1:-1])

    def reset(self, generator: torch.Generator) -> None:
        """Draw the hidden layers; the last layer gives zero, so that the coupling is the identity."""
        for weight in list(self.weights)[:-1]:
            _uniform(weight, math.sqrt(3 / weight.shape[-1]), generator)

    def forward(self, kept: Tensor, changed: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The changed half, (d₂, n), and the log-determinant, (n,)."""
        layers = (*self.weights, *self.biases)
        out, log_scale = _Couple.apply(kept, changed, features, self.condition, self.bias, *layers)
        return out, log_scale

    def inverse(self, kept: Tensor, changed: Tensor, features: Tensor) -> Tensor:
        """What the changed half was before."""
        raw = self.added(features)
        if self.weights:
            raw = raw + self.perceptron(kept)
        raw = raw.view(2, *changed.shape)
        return changed * (-2 * BOUND * raw[0].sigmoid() + BOUND).exp() - raw[1]

    def perceptron(self, kept: Tensor) -> Tensor:
        """What g's own perceptrons give for the half that passes through, (stack, out, n)."""
        stacked = kept.expand(len(self.bias), -1, -1)
        return self.weights[-1] @ _hidden(stacked, list(self.weights)[:-1], list(self.biases))[-1]

    def added(self, features: Tensor) -> Tensor:
        """What the condition's perceptron adds to that, (stack, out, n)."""
        return torch.baddbmm(self.bias, self.condition, features.expand(len(self.bias), -1, -1))


class _Couple(torch.autograd.Function):
    """`Coupling.forward` with its gradient by hand, which takes a seventh off the time of a training step."""

    @staticmethod
    def forward(
        ctx: Any, kept: Tensor, changed: Tensor, features: Tensor, condition: Tensor, bias: Tensor, *layers: Tensor
    ) -> tuple[Tensor, Tensor]:
        weights, biases = _split(layers)
        raw = torch.baddbmm(bias, condition, features.expand(len(bias), -1, -1))
        hidden = []
        if weights:
            hidden = _hidden(kept.expand(len(bias), -1, -1), weights[:-1], biases)
            raw.baddbmm_(weights[-1], hidden[-1])
        s, t = raw.view(2, *changed.shape)
        gate = s.sigmoid_()
        log_scale = gate * (2 * BOUND)
        total = log_scale.sum(0) - BOUND * len(changed)
        scale = log_scale.sub_(BOUND).exp_()
        out = t.add_(changed).mul_(scale)
        ctx.save_for_backward(gate, scale, out, features, condition, *weights, *hidden)
        ctx.depth = len(weights)
        return out, total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, grad_total = grads
        gate, scale, out, features, condition, *rest = ctx.saved_tensors
        weights, hidden = rest[: ctx.depth], rest[ctx.depth :]
        raw = torch.empty(2, *out.shape, dtype=out.dtype, device=out.device)
        torch.mul(grad, out, out=raw[0]).add_(grad_total).mul_(torch.addcmul(gate, gate, gate, value=-1))
        raw[0].mul_(2 * BOUND)
        torch.mul(grad, scale, out=raw[1])
        grad_changed, x = raw[1], raw.view(len(condition), -1, out.shape[1])
        for_features = (condition.mT @ x).sum(0)
        for_condition, for_bias = x @ features.mT, x.sum(-1, keepdim=True)
        for_weights: list[Tensor] = []
        for_biases: list[Tensor] = []
        for depth in reversed(range(ctx.depth)):
            for_weights.insert(0, x @ hidden[depth].mT)
            if depth == 0 and not ctx.needs_input_grad[0]:
                break
            x = weights[depth].mT @ x
            if depth:
                torch.ops.aten.tanh_backward.grad_input(x, hidden[depth], grad_input=x)
                for_biases.insert(0, x.sum(-1, keepdim=True))
        for_kept = x.sum(0) if ctx.needs_input_grad[0] and weights else None
        return for_kept, grad_changed, for_features, for_condition, for_bias, *for_weights, *for_biases


def _hidden(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Tensor]:
    """What goes into each layer of a stack of perceptrons, the input (stack, in, n) first."""
    layers = [x]
    for weight, bias in zip(weights, biases, strict=True):
        # tanh(x) = 2 σ(2x) - 1
        layers.append(torch.baddbmm(bias, weight, layers[-1], beta=2, alpha=2).sigmoid_().mul_(2).sub_(1))
    return layers


class Step(NamedTuple):
    """One coupling of a flow."""

    order: Tensor | None  # of the coordinates, before it
    half: int  # the one that it changes
    coupling: Coupling


class Couplings(nn.Module):
    """A stack of conditional couplings, from whitened activations to a standard normal.

    The condition goes through hidden layers of its own, once for all couplings; each coupling reads its addition from
    them. They are ReLUs and thus unbounded: a condition far from all others moves the density far away.

    Args:
        dim: dimensions of the samples; with one, no half is left to pass through, and the flow is a Gaussian whose mean
            and scale depend on the condition.
        condition: how many numbers a condition has.
        form: `"glow"`, where a block couples both halves in turn, s and t from one perceptron, and a random
            permutation follows; or `"realnvp"`, where a block is one coupling with a perceptron each for s and t, and
            the halves take turns.
        blocks: how many.
        hidden: widths of the hidden layers of s and t.
        condition_hidden: widths of the condition's hidden layers.
    """

    order: Tensor  # of the coordinates after each block but the last, where it would change nothing: (blocks - 1, dim)

    def __init__(
        self,
        dim: int,
        condition: int,
        *,
        form: Form = "glow",
        blocks: int = 4,
        hidden: Sequence[int] = (100, 100),
        condition_hidden: Sequence[int] = (32,),
    ) -> None:
        super().__init__()
        self.sizes = (dim // 2, dim - dim // 2)
        widths = [condition, *condition_hidden]
        self.weights = nn.ParameterList(torch.zeros(b, a, device="cpu") for a, b in pairwise(widths))
        self.biases = nn.ParameterList(torch.zeros(width, 1, device="cpu") for width in widths[1:])
        self.turns: list[tuple[int, ...]] = []  # which halves a block changes, in turn
        self.couplings = nn.ModuleList()
        for block in range(blocks):
            turn: tuple[int, ...] = (1,) if dim == 1 else (1, 0) if form == "glow" else ((block + 1) % 2,)
            self.turns.append(turn)
            for half in turn:
                kept, changed = self.sizes[1 - half], self.sizes[half]
                self.couplings.append(Coupling(kept, changed, widths[-1], hidden, stack=1 if form == "glow" else 2))
        permutations = blocks - 1 if form == "glow" and dim > 1 else 0
        self.register_buffer("order", torch.arange(dim, device="cpu").repeat(permutations, 1))

    def check(self) -> None:
        """Raise a ValueError where the tensors cannot be those of a fit."""
        places = torch.arange(self.order.shape[1], device=self.order.device)
        expect(self.order.sort(1).values == places, "an order of the coordinates is no permutation")

    def reset(self, generator: torch.Generator) -> None:
        """Draw the permutations and the hidden layers: the flow is then the identity, up to permutations."""
        for row in self.order:
            row.copy_(torch.randperm(len(row), generator=generator, device="cpu"))
        for weight, bias in zip(self.weights, self.biases, strict=True):
            _uniform(weight, math.sqrt(6 / weight.shape[1]), generator)
            # A unit switches on at a condition drawn from a standard normal, not all of them at zero.
            start = torch.randn(weight.shape, generator=generator, device="cpu").to(weight)
            bias.data = -(weight.data * start).sum(1, keepdim=True)
        for _, _, coupling in self.steps():
            coupling.reset(generator)

    def steps(self) -> list[Step]:
        """The couplings in turn."""
        couplings = iter(self.couplings)
        found = []
        for block, turn in enumerate(self.turns):
            order = self.order[block - 1] if 0 < block <= len(self.order) else None
            for half in turn:
                coupling = next(couplings)
                assert isinstance(coupling, Coupling)
                found.append(Step(order, half, coupling))
                order = None
        return found

    def features(self, condition: Tensor) -> Tensor:
        """The condition (q, n) through its hidden layers, (f, n)."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            condition = torch.addmm(bias, weight, condition).relu()
        return condition

    def forward(self, u: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Samples (d, n) given conditions (q, n) in the coordinates of the base, and the log-determinant, (n,)."""
        features = self.features(condition)
        halves = list(u.split(self.sizes))
        total = u.new_zeros(u.shape[1])
        for order, half, coupling in self.steps():
            halves = self.permute(halves, order)
            halves[half], log_scale = coupling(halves[1 - half], halves[half], features)
            total = total + log_scale
        return torch.cat(halves), total

    def inverse(self, base: Tensor, condition: Tensor) -> Tensor:
        """The samples (d, n) that have coordinates `base` given conditions (q, n)."""
        features = self.features(condition)
        halves = list(base.split(self.sizes))
        for order, half, coupling in reversed(self.steps()):
            halves[half] = coupling.inverse(halves[1 - half], halves[half], features)
            halves = self.permute(halves, None if order is None else order.argsort())
        return torch.cat(halves)

    def permute(self, halves: list[Tensor], order: Tensor | None) -> list[Tensor]:
        """New halves with the coordinates in another order."""
        if order is None:
            return halves
        return list(torch.cat(halves).index_select(0, order).split(self.sizes))


def _split(layers: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Weights of L layers and biases of L - 1, which follow each other."""
    count = (len(layers) + 1) // 2
    return layers[:count], layers[count:]


def _uniform(weight: Tensor, limit: float, generator: torch.Generator) -> None:
    """Fill with numbers between -limit and limit that are the same on every device."""
    weight.data = ((2 * torch.rand(weight.shape, generator=generator, device="cpu") - 1) * limit).to(weight)
