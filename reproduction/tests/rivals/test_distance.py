"""The loss of distances against a loop, and the published score against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from reproduction.rivals import Distance
from reproduction.rivals.distance import distance_loss

random = torch.Generator().manual_seed(0)
x = torch.randn(80, 4, generator=random)
y = torch.arange(80) % 3


def test_the_loss_is_the_mean_over_drawn_pairs() -> None:
    z = 4 * x
    same, others = [], []
    for i in range(len(z)):
        for j in range(i):
            away = math.dist(z[i].tolist(), z[j].tolist())
            if y[i] == y[j]:
                same.append(away)
            else:
                others.append(max(0.0, 9.0 - away))
    expected = 0.2 * sum(same) / len(same) + 0.8 * sum(others) / len(others)
    assert float(distance_loss(z, y, margin=9.0)) == pytest.approx(expected, rel=1e-5)


def test_equal_embeddings_and_a_single_class_have_finite_gradients() -> None:
    z = torch.ones(5, 3, requires_grad=True)
    distance_loss(z, torch.zeros(5, dtype=torch.long)).backward()
    assert z.grad is not None and bool(z.grad.isfinite().all())


def test_without_pairs_of_a_kind_the_other_counts() -> None:
    z = torch.tensor([[0.0], [3.0], [20.0]])
    assert distance_loss(z, torch.arange(3)).item() == pytest.approx(0.8 * (22 + 5 + 8) / 3, rel=1e-6)
    assert distance_loss(z, torch.zeros(3)).item() == pytest.approx(0.2 * (3 + 20 + 17) / 3, rel=1e-6)


def test_the_score_is_the_share_of_other_classes() -> None:
    rival = Distance(4, 8, 3).eval()
    (name, detector), _ = rival.detectors()
    u = detector.fit([(x[:60], y[:60])])(x[60:])
    assert name == "distance"
    with torch.no_grad():
        z = rival.body(x)
    for i, score in enumerate(u.epistemic.tolist()):
        away = (z[:60] - z[60 + i]).norm(dim=1)
        near = away.argsort()[:50]
        kernels = (-away[near]).exp()
        own = kernels[y[near] == u.prediction[i]].sum() / kernels.sum()
        assert score == pytest.approx(1 - float(own), abs=1e-4)
