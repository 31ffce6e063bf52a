"""The temperature of a softmax against scipy's search."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.nn.functional import cross_entropy

from hidden_uncertainty.scoring.outputs import best_temperature


@pytest.mark.parametrize("scale", [0.2, 1.0, 8.0])
def test_the_best_temperature(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(800, 6, generator=generator, dtype=torch.float64)
    label = scores.softmax(1).multinomial(1, generator=generator)[:, 0]
    loss = minimize_scalar(lambda t: float(cross_entropy(scale * scores / math.exp(t), label)), bounds=(-4, 4))
    assert best_temperature(scale * scores, label) == pytest.approx(math.exp(loss.x), rel=1e-3)


def test_outputs_that_leave_no_doubt() -> None:
    scores = 3 * torch.eye(4)
    assert best_temperature(scores, torch.arange(4)) == pytest.approx(0.01, rel=1e-6)  # always right: as sure as can be
    assert best_temperature(scores, torch.arange(4).flip(0)) == pytest.approx(100, rel=1e-6)  # always wrong
    ruled_out = torch.tensor([[0.0, -math.inf, 2.0], [0.0, 1.0, -math.inf], [1.0, 0.0, -math.inf]])
    assert 0.01 < best_temperature(ruled_out, torch.tensor([2, 0, 0])) < 100
