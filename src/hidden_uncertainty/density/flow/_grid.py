"""log p(u_i | c_j) of a flow for every sample and every condition, without gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...precision import gradients
from ._coupling import BOUND, Coupling, Couplings

CHUNK = 1024  # pairs per thread at a time: what a coupling needs for them stays in a core's cache


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
