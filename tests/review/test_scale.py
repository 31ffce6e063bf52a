"""Scales of layers, and densities that were not those of the data."""

import math
import warnings

import torch
from torch import nn

from found import found
from hidden_uncertainty import GaussianMixture, LatentDensity


def _detection(scale: float) -> float:
    """How often far inputs score above near ones, with a hidden layer multiplied by a constant."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        for parameter in network[0].parameters():
            parameter.mul_(scale)
        network[1].weight.mul_(3 / scale)
    x, unseen = torch.randn(600, 6), torch.randn(200, 6)
    detector = LatentDensity(network, "0", task="classification").fit(x.split(100))
    near, far = detector(unseen).epistemic, detector(2 * unseen).epistemic
    return float((far[:, None] > near).float().mean())


@found(
    "A6",
    "a layer multiplied by 1e-8, 1e-5 or 1e5",
    "blind on small activations: far inputs score no higher than near ones",
    "the same decisions at every scale",
)
def test_small_activations_are_not_drowned():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _detection(1.0)
        for scale in (1e-8, 1e-5, 1e5):
            assert abs(_detection(scale) - expected) < 0.01


@found(
    "A18",
    "100,000 normal numbers, fitted with two components",
    "the density is off by 7 nats at 4 deviations, for any number of samples",
    "below half a nat, and less with more samples",
)
def test_shrinkage_follows_what_em_finds():
    z = torch.randn(100_000, 1, generator=torch.Generator().manual_seed(0))
    density = GaussianMixture(2, tol=1e-3, max_iter=1000).fit(z, torch.zeros(len(z), dtype=torch.long))
    far = torch.tensor([[4.0], [-4.0]])
    truth = -8 - 0.5 * math.log(2 * math.pi)
    assert float((density.log_prob(far, density.classes) - truth).abs().max()) < 0.5


@found(
    "A19",
    "one Gaussian without shrinkage, hardly more rows than dimensions, in float32",
    "log p is off by up to 6 %",
    "such classes are fitted in float64: within 0.5 %",
)
def test_float32_is_not_trusted_with_nearly_singular_covariances():
    generator = torch.Generator().manual_seed(0)
    narrow = torch.cat([torch.ones(8), torch.full((56,), 0.01)])
    turn = torch.linalg.qr(torch.randn(64, 64, generator=generator)).Q
    z = torch.randn(266, 64, generator=generator) * narrow @ turn
    y = torch.zeros(66, dtype=torch.long)
    coarse, fine = (GaussianMixture(1, shrinkage=None, dtype=d).fit(z[:66], y) for d in ("float32", "float64"))
    found, truth = (density.log_prob(z[66:].double(), density.classes).double() for density in (coarse, fine))
    assert float((found - truth).abs().max() / truth.abs().mean()) < 0.005
