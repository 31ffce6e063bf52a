"""The temperature of a softmax against scipy's search."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import bernoulli
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from hidden_uncertainty.scoring.outputs import (
    EnergyMethod,
    EntropyMethod,
    GENMethod,
    ProbabilityMethod,
    best_temperature,
)


@pytest.mark.parametrize("scale", [0.2, 1.0, 8.0])
def test_the_best_temperature(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(800, 6, generator=generator, dtype=torch.float64)
    label = scores.softmax(1).multinomial(1, generator=generator)[:, 0]
    loss = minimize_scalar(
        lambda t: float(cross_entropy(scale * scores / math.exp(t), label)) + t**2 / 2 / 0.5**2 / len(label),
        bounds=(-4, 4),
    )
    assert best_temperature(scale * scores, label) == pytest.approx(math.exp(loss.x), rel=1e-3)


def test_outputs_that_leave_no_doubt() -> None:
    scores = 3 * torch.eye(4).repeat(50, 1)
    right = torch.arange(4).repeat(50)
    assert 0.2 < best_temperature(scores, right) < 0.6  # always right: surer, not as sure as can be
    assert best_temperature(scores, right.flip(0)) > 3  # always wrong
    ruled_out = torch.tensor([[0.0, -math.inf, 2.0], [0.0, 1.0, -math.inf], [1.0, 0.0, -math.inf]])
    assert 0.01 < best_temperature(ruled_out, torch.tensor([2, 0, 0])) < 100


def test_scores_of_labels_against_sums_over_all_sets() -> None:
    """Labels are independent given the outputs, so that the joint of four has 16 outcomes."""
    logits = 2 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    predicted, p = (logits > 0).long(), logits.sigmoid()
    sets = torch.tensor(list(product([0, 1], repeat=4)), dtype=torch.float64)
    joint = (p[:, None] ** sets * (1 - p[:, None]) ** (1 - sets)).prod(2)  # (n, 16)
    entropy = EntropyMethod().score(logits, predicted)
    torch.testing.assert_close(entropy.aleatoric, torch.special.entr(joint).sum(1))
    torch.testing.assert_close(entropy.log_aleatoric, entropy.aleatoric.log())
    torch.testing.assert_close(ProbabilityMethod().score(logits, predicted).epistemic, 1 - joint.amax(1))
    energy = EnergyMethod(2.0).score(logits, predicted).epistemic
    torch.testing.assert_close(energy, -2 * (logits / 2 @ sets.T).logsumexp(1))  # of all sets as classes
    terms = (p * (1 - p)) ** 0.1
    torch.testing.assert_close(GENMethod().score(logits, predicted).epistemic, terms.sum(1))
    largest = GENMethod(largest=3, temperature=2.0)
    torch.testing.assert_close(largest.score(logits, predicted).epistemic, terms.sum(1) - terms.amin(1))
    cooler = (logits / 2).sigmoid()
    torch.testing.assert_close(largest.probabilities(logits, predicted), cooler)
    expected = torch.as_tensor(bernoulli(cooler.numpy()).entropy()).sum(1)
    torch.testing.assert_close(largest.score(logits, predicted).aleatoric, expected)


@pytest.mark.parametrize("method", [EntropyMethod(), ProbabilityMethod(), EnergyMethod(), GENMethod()])
def test_scores_of_labels_are_finite_however_large(method) -> None:
    logits = torch.tensor([[3e38, -3e38, 0.0], [1e10, 1e10, 1e10], [-1e5, 0.0, 1.0]])
    scores = method.score(logits, (logits > 0).long())
    assert all(bool(part.isfinite().all()) for part in scores._tensors().values())


@pytest.mark.parametrize("scale", [0.3, 5.0])
def test_the_best_temperature_of_labels(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(500, 3, generator=generator, dtype=torch.float64)
    label = torch.bernoulli(logits.sigmoid(), generator=generator)
    loss = minimize_scalar(
        lambda t: (
            float(binary_cross_entropy_with_logits(scale * logits / math.exp(t), label)) + t**2 / 2 / 0.5**2 / 1500
        ),
        bounds=(-4, 4),
    )
    found = GENMethod().taught(scale * logits, label.long()).temperature
    assert found == pytest.approx(math.exp(loss.x), rel=1e-3) and found == pytest.approx(scale, rel=0.2)


def test_probabilities_of_labels_taken_as_logits_warn_once() -> None:
    p, method = torch.rand(20, 3, generator=torch.Generator().manual_seed(0)), GENMethod()
    with pytest.warns(UserWarning, match=r"look like probabilities.*task=MultiLabel\(logits=False\)") as caught:
        method.score(p, (p > 0).long())
    assert len(caught) == 1
    method.score(p, (p > 0).long())
