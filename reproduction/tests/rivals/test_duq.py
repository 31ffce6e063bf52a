"""DUQ: its kernels, centroids and gradient penalty, one input and class at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reproduction.rivals import DUQ
from reproduction.rivals.duq import SmallCNN, gradient_penalty

random = torch.Generator().manual_seed(0)
x = torch.randn(12, 4, generator=random)
y = torch.arange(12) % 3


@pytest.fixture
def rival() -> DUQ:
    """Small, with kernels that are neither 0 nor 1."""
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    return DUQ(body, 6, 3, embedding=5, length_scale=0.8, momentum=0.9, penalty=0.3, spread=0.3)


def kernel(rival: DUQ, row: torch.Tensor, c: int) -> torch.Tensor:
    """K_c of one input."""
    own = rival.weight.view(3, 5, 6)[c] @ rival.body(row)
    away = own - rival.totals[c] / rival.counts[c]
    return torch.exp(-(away @ away) / 5 / (2 * 0.8**2))


def test_kernels_are_those_of_the_definition(rival: DUQ) -> None:
    expected = torch.stack([torch.stack([kernel(rival, row, c) for c in range(3)]) for row in x])
    torch.testing.assert_close(rival(x).exp(), expected)


def test_the_penalty_is_of_the_gradient_of_each_input(rival: DUQ) -> None:
    norms = []
    for row in x:
        jacobian = torch.autograd.functional.jacobian(
            lambda r: torch.stack([kernel(rival, r, c) for c in range(3)]), row
        )
        norms.append(float(jacobian.sum(0).norm()))
    expected = sum((norm - 1) ** 2 for norm in norms) / len(norms)
    inputs = x.clone().requires_grad_()
    assert gradient_penalty(inputs, rival(inputs).exp()).item() == pytest.approx(expected, rel=1e-5)
    whole = F.binary_cross_entropy(rival(x).exp(), F.one_hot(y, 3).float()) + 0.3 * expected
    torch.testing.assert_close(rival.loss(x, y), whole)
    rival.loss(x, y).backward()  # twice differentiable
    assert rival.weight.grad is not None and rival.weight.grad.norm().item() > 0


def test_inputs_are_standardised_before_the_penalty() -> None:
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    options: dict[str, Any] = {"embedding": 5, "length_scale": 0.8, "penalty": 0.3, "spread": 0.3}
    raw, plain = DUQ(body, 6, 3, pixels=(0.4, 0.2), **options), DUQ(body, 6, 3, **options)
    standard = (x - 0.4) / 0.2
    torch.testing.assert_close(raw(x), plain(standard))
    # With respect to x itself, the gradient would be five times as long.
    torch.testing.assert_close(raw.loss(x, y), plain.loss(standard, y))
    for rival, inputs in ((raw, x), (plain, standard)):
        with torch.no_grad():
            rival.after_step(inputs, y)
    torch.testing.assert_close(raw.centroids, plain.centroids)


def test_centroids_follow_their_class(rival: DUQ) -> None:
    totals, counts = rival.totals.clone(), rival.counts.clone()
    with torch.no_grad():
        rival.after_step(x, y)
        for c in range(3):
            own = rival.body(x[y == c]) @ rival.weight.view(3, 5, 6)[c].T
            count = 0.9 * counts[c] + 0.1 * len(own)
            torch.testing.assert_close(rival.centroids[c], (0.9 * totals[c] + 0.1 * own.sum(0)) / count)


def test_scores_rank_where_kernels_are_zero(rival: DUQ) -> None:
    rival.length_scale = 1e-3
    ((_, detector),) = rival.eval().detectors()
    u = detector(x)
    assert rival(x).exp().amax().item() == 0 and len(u.epistemic.unique()) == len(x)
    torch.testing.assert_close(u.epistemic, -rival(x).amax(1).detach())


def test_the_small_network_is_the_published_one() -> None:
    network = SmallCNN()
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 256)
    convolutions = (1 * 64 + 64 * 128 + 128 * 128) * 9 + 64 + 128 + 128
    assert sum(p.numel() for p in network.parameters()) == convolutions + 2 * (64 + 128 + 128) + 513 * 256
    assert math.prod(network[10](torch.zeros(1, 128, 5, 5)).shape) == 128 * 25
