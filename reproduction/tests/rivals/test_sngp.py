"""SNGP: random features against their kernel, and the posterior against brute force in the space of functions."""

from __future__ import annotations

import math

import torch
from torch import nn

from reproduction.rivals import SNGP

random = torch.Generator().manual_seed(0)
x = torch.randn(30, 3, generator=random)
y = torch.arange(30) % 2


def finished(features: int = 40, **options: float) -> SNGP:
    """With a covariance of the inputs above."""
    rival = SNGP(nn.Identity(), 3, 2, features=features, length_scale=1.5, normalise=False, **options).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        rival.finish([(x[:20], y[:20]), (x[20:], y[20:])])
    return rival


def test_features_give_the_gaussian_kernel() -> None:
    products = []
    for seed in range(0, 100, 2):
        rival = SNGP(nn.Identity(), 3, 2, features=1000, length_scale=1.5, normalise=False, seed=seed)
        products.append(rival.features(x) @ rival.features(x).T)
    expected = (-0.5 * torch.cdist(x, x).square() / 1.5**2).exp()
    torch.testing.assert_close(torch.stack(products).mean(0), expected, rtol=0, atol=0.02)


def test_the_variance_is_that_of_the_gaussian_process() -> None:
    rival = finished()
    with torch.no_grad():
        phi, new = rival.features(x).double(), rival.features(x + 1).double()
        p = rival.output(rival.features(x)).double().softmax(1).amax(1)
        weights = (p * (1 - p)).diag()
        # k** - k*ᵀ (K + W⁻¹)⁻¹ k*, with kernels only
        gain = torch.linalg.inv(phi @ phi.T + torch.linalg.inv(weights))
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
