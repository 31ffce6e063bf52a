"""Conditional affine couplings: an invertible map whose log-determinant costs nothing (paper, appendix on flows).

Samples are columns here, (d, n): halves, their permutations and scales are then whole rows of memory. `log_prob` is for
every sample and every condition, without gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

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
        raw = self.added(features) + (self.perceptron(kept) if self.weights else 0)
        s, t = raw.view(2, *changed.shape)
        log_scale = 2 * BOUND * s.sigmoid() - BOUND
        return (changed + t) * log_scale.exp(), log_scale.sum(0)

    def perceptron(self, kept: Tensor) -> Tensor:
        """What g's own perceptrons give for the half that passes through, (stack, out, n)."""
        x = kept.expand(len(self.bias), -1, -1)
        for weight, bias in zip(list(self.weights)[:-1], self.biases, strict=True):
            # tanh(x) = 2 σ(2x) - 1, which takes a seventh of the time
            x = 2 * torch.baddbmm(bias, weight, x, beta=2, alpha=2).sigmoid() - 1
        return self.weights[-1] @ x

    def added(self, features: Tensor) -> Tensor:
        """What the condition's perceptron adds to that, (stack, out, n)."""
        return torch.baddbmm(self.bias, self.condition, features.expand(len(self.bias), -1, -1))


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
        pairs = form == "glow" and dim > 1  # a block is one coupling otherwise
        self.halves: list[int] = []  # that each coupling changes
        self.couplings = nn.ModuleList()
        for i in range(2 * blocks if pairs else blocks):
            half = 1 if dim == 1 else (i + 1) % 2
            kept, changed = self.sizes[1 - half], self.sizes[half]
            self.halves.append(half)
            self.couplings.append(Coupling(kept, changed, widths[-1], hidden, stack=1 if form == "glow" else 2))
        permutations = blocks - 1 if pairs else 0
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
        found = []
        for i, (half, coupling) in enumerate(zip(self.halves, self.couplings, strict=True)):
            assert isinstance(coupling, Coupling)
            order = self.order[i // 2 - 1] if len(self.order) and i in range(2, len(self.halves), 2) else None
            found.append(Step(order, half, coupling))
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
        far = torch.finfo(u.dtype).max ** 0.4  # the sum of its squares is still a number
        for order, half, coupling in self.steps():
            if order is not None:
                halves = list(torch.cat(halves).index_select(0, order).split(self.sizes))
            changed, log_scale = coupling(halves[1 - half], halves[half], features)
            halves[half], total = changed.clamp(-far, far), total + log_scale
        return torch.cat(halves), total


@gradients(False)
def log_prob(flow: Couplings, u: Tensor, condition: Tensor) -> Tensor:
    """log p(u_i | c_j) for columns u (d, n) and conditions (q, 1, m), or (q, n, m) for each column its own: (n, m)."""
    chunk = CHUNK * (torch.get_num_threads() if u.device.type == "cpu" else 128)
    size, found = max(1, chunk // max(1, condition.shape[2])), []
    own = condition.expand(-1, u.shape[1], -1)
    for rows, given in zip(u.split(size, dim=1), own.split(size, dim=1), strict=True):
        columns = []
        for some in given.split(chunk, dim=2):
            pairs = rows[:, :, None].expand(-1, -1, some.shape[2]).flatten(1)
            columns.append(log_likelihood(flow, pairs, some.flatten(1)).view(some.shape[1:]))
        found.append(torch.cat(columns, dim=1))
    return torch.cat(found)


def log_likelihood(flow: Couplings, u: Tensor, condition: Tensor) -> Tensor:
    """log p(u | c) of each column, (n,)."""
    base, log_scale = flow(u, condition)
    return log_scale - 0.5 * base.square().sum(0) - 0.5 * len(base) * math.log(2 * math.pi)


def _uniform(weight: Tensor, limit: float, generator: torch.Generator) -> None:
    """Fill with numbers between -limit and limit that are the same on every device."""
    weight.data = ((2 * torch.rand(weight.shape, generator=generator, device="cpu") - 1) * limit).to(weight)
