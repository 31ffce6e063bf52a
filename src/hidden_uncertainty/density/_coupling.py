"""Conditional affine couplings: an invertible map whose log-determinant costs nothing (paper, appendix on flows).

Samples are columns here, (d, n): halves, their permutations and scales are then whole rows of memory. `log_prob` is for
every sample and every condition, without gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..io import expect
from ..precision import gradients

Form = Literal["glow", "realnvp"]
BOUND = 2.0  # of a coupling's log scale, either way; FrEIA has the same default
CHUNK = 1024  # pairs per thread at a time: what a coupling needs for them stays in a core's cache


class Coupling(nn.Module):
    r"""One affine coupling: a half of the coordinates scales and shifts the other.

    .. math:: u_2' = (u_2 + g_t(u_1; c)) \odot g_s(u_1; c), \qquad \log g_s = 2 \tanh(s / 2)

    s and :math:`g_t` are the sum of a perceptron of u₁ and of one of the condition, whose hidden layers (`features`)
    all couplings share. The soft clamp keeps a coupling from scaling by more than e² either way. The hidden layers of
    u₁'s perceptron are tanh, so that far out the flow is affine and its density falls as a Gaussian does. There is one
    perceptron each for s and t in a `stack` of 2, and one that gives both in a stack of 1.
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
        raw = self.added(features) + (self.perceptron(kept) if self.weights else 0)
        s, t = raw.view(2, *changed.shape)
        return changed * (-2 * BOUND * s.sigmoid() + BOUND).exp() - t

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
        count = (len(layers) + 1) // 2
        weights, biases = layers[:count], layers[count:]
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

    Options are those of `ConditionalFlow`. With `dim` of one, no half is left to pass through, and the flow is a
    Gaussian whose mean and scale depend on the condition.
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


class Folded(NamedTuple):
    """A coupling's perceptron in σ instead of tanh(x) = 2 σ(2x) - 1, the constants folded into its weights."""

    layers: list[tuple[Tensor, Tensor]]  # weight and bias of each hidden layer, (stack, out, in) and (stack, out, 1)
    last: Tensor | None  # None where nothing passes through
    bias: Tensor  # of the last layer, left to the condition


@gradients(False)
def log_prob(flow: Couplings, u: Tensor, condition: Tensor, folded: Sequence[Folded] | None = None) -> Tensor:
    """log p(u_i | c_j): (n, m). The condition's perceptron sees m columns, the first coupling's n, the others n m.

    Args:
        flow: the couplings.
        u: samples as columns, (d, n).
        condition: (q, 1, m), or (q, n, m) where every sample has its own conditions.
        folded: what `fold` gave, where several calls share it.
    """
    n, m = u.shape[1], condition.shape[2]
    steps = flow.steps()
    folded = fold(flow) if folded is None else folded
    halves = [half[:, :, None] for half in u.split(flow.sizes)]
    first = _perceptron(folded[0], halves[1 - steps[0].half])
    shared = _added(flow, folded, condition) if condition.shape[1] == 1 else None
    out = u.new_empty(n, m)
    chunk = CHUNK * (torch.get_num_threads() if u.device.type == "cpu" else 128)
    for rows in _spans(n, max(1, chunk // max(1, m))):
        for columns in _spans(m, chunk):
            if shared is None:
                added = _added(flow, folded, condition[:, rows, columns])
            else:
                added = [part[..., columns] for part in shared]
            few = [half[:, rows] for half in halves]
            out[rows, columns] = _chunk(flow, folded, few, None if first is None else first[:, :, rows], added)
    return out


def _chunk(
    flow: Couplings, folded: Sequence[Folded], halves: list[Tensor], first: Tensor | None, added: Sequence[Tensor]
) -> Tensor:
    """log p for r samples and k conditions: (r, k)."""
    far = torch.finfo(halves[1].dtype).max ** 0.4  # the sum of its squares is still a number
    size = (halves[1].shape[1], added[0].shape[-1])  # (r, k)
    total = halves[1].new_zeros(size)
    for index, (order, half, _) in enumerate(flow.steps()):
        halves = flow.permute(halves, order)
        own = first if index == 0 else _perceptron(folded[index], halves[1 - half])
        if own is None or index == 0:
            own = (0 if own is None else own) + added[index].expand(-1, -1, *size)
        else:
            own.add_(added[index])
        s, t = own.unbind()
        log_scale = s.sigmoid_().mul_(2 * BOUND).sub_(BOUND)
        total += log_scale.sum(0)
        halves[half] = t.add_(halves[half]).mul_(log_scale.exp_()).clamp_(-far, far)
    squares = halves[0].square().sum(0) + halves[1].square().sum(0)
    return total - 0.5 * squares - 0.5 * sum(flow.sizes) * math.log(2 * math.pi)


@gradients(False)
def fold(flow: Couplings) -> list[Folded]:
    """All couplings as `log_prob` reads them."""
    return [_fold(coupling) for _, _, coupling in flow.steps()]


def _fold(coupling: Coupling) -> Folded:
    weights, biases = list(coupling.weights), list(coupling.biases)
    if not weights:
        return Folded([], None, coupling.bias)
    layers = []
    slope, shift = 1.0, 0.0  # what went into a layer is slope · what goes in here - shift
    for weight, bias in zip(weights[:-1], biases, strict=True):
        layers.append((2 * slope * weight, 2 * (bias - shift * weight.sum(-1, keepdim=True))))
        slope, shift = 2.0, 1.0
    return Folded(layers, slope * weights[-1], coupling.bias - shift * weights[-1].sum(-1, keepdim=True))


def _perceptron(folded: Folded, kept: Tensor) -> Tensor | None:
    """s and t of the half that passes through, (d₁, r, k), without the last bias: (2, d₂, r, k)."""
    if folded.last is None:
        return None
    x = kept.reshape(len(kept), -1).expand(len(folded.last), -1, -1)
    for weight, bias in folded.layers:
        x = torch.baddbmm(bias, weight, x).sigmoid_()
    return torch.bmm(folded.last, x).view(2, folded.bias.numel() // 2, *kept.shape[1:])


def _added(flow: Couplings, folded: Sequence[Folded], condition: Tensor) -> list[Tensor]:
    """What conditions (q, r, k) add to s and t of each coupling, (2, d₂, r, k)."""
    features = flow.features(condition.reshape(len(condition), -1))
    return [
        (step.coupling.condition @ features + part.bias).view(2, part.bias.numel() // 2, *condition.shape[1:])
        for step, part in zip(flow.steps(), folded, strict=True)
    ]


def _spans(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def _uniform(weight: Tensor, limit: float, generator: torch.Generator) -> None:
    """Fill with numbers between -limit and limit that are the same on every device."""
    weight.data = ((2 * torch.rand(weight.shape, generator=generator, device="cpu") - 1) * limit).to(weight)
