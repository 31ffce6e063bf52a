"""SNGP: random features against their kernel, and the posterior against brute force in the space of functions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from reproduction.rivals import SNGP

random = torch.Generator().manual_seed(0)
x = torch.randn(30, 3, generator=random)
y = torch.arange(30) % 2


def finished(features: int = 40, **options: float) -> SNGP:
    """With a covariance of the inputs above."""
    rival = SNGP(nn.Identity(), 3, 2, features=features, length_scale=1.5, **options).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        rival.finish([(x[:20], y[:20]), (x[20:], y[20:])])
    return rival


def test_features_give_the_gaussian_kernel() -> None:
    products = []
    for seed in range(0, 100, 2):
        rival = SNGP(nn.Identity(), 3, 2, features=1000, length_scale=1.5, scaled=True, seed=seed)
        products.append(rival.features(x) @ rival.features(x).T)
    expected = (-0.5 * torch.cdist(x, x).square() / 1.5**2).exp()
    torch.testing.assert_close(torch.stack(products).mean(0), expected, rtol=0, atol=0.02)


def test_features_are_cosines_of_random_projections() -> None:
    rival, wide = SNGP(nn.Identity(), 90, 2, features=300, length_scale=4.0), x.repeat(1, 30)
    torch.testing.assert_close(rival.features(wide), (wide @ rival.frequencies.T + rival.phases).cos())
    assert rival.frequencies.std().item() == pytest.approx(1 / 4, rel=0.03)
    assert rival.phases.min().item() >= 0 and rival.phases.max().item() == pytest.approx(2 * math.pi, rel=0.02)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_variance_is_that_of_the_gaussian_process(scaled: bool) -> None:
    rival = finished(scaled=scaled)
    with torch.no_grad():
        phi, new = rival.features(x).double(), rival.features(x + 1).double()
        # k** - k*ᵀ (K + I)⁻¹ k*, with kernels only
        gain = torch.linalg.inv(phi @ phi.T + torch.eye(len(x)).double())
        cross = new @ phi.T
        expected = (new * new).sum(1) - ((cross @ gain) * cross).sum(1)
        torch.testing.assert_close(rival.variance(new.float()).double(), expected, rtol=1e-4, atol=1e-5)
        assert float(rival.variance(rival.features(100 + x)).mean()) > float(expected.mean())


def test_logits_shrink_with_the_variance_and_the_detector_ranks_as_published() -> None:
    rival = finished(factor=math.pi / 8)
    ((_, detector),) = rival.detectors()
    with torch.no_grad():
        phi = rival.features(x)
        logits = rival.output(phi) / (1 + math.pi / 8 * rival.variance(phi)).sqrt()[:, None]
    torch.testing.assert_close(rival(x), logits)
    published = 2 / (2 + logits.exp().sum(1))
    assert torch.equal(detector(x).epistemic.argsort(), published.argsort())
