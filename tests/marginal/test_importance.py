from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import MultivariateNormal

from hidden_uncertainty.marginal import Gaussian, Support, Uniform
from hidden_uncertainty.marginal._importance import LADDER, WIDE, draw
from hidden_uncertainty.scoring.bayes import infer


def normals(n: int, numbers: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = 2 * torch.randn(numbers, numbers, generator=generator, dtype=torch.float64)
    return (torch.randn(n, numbers, generator=generator, dtype=torch.float64) @ mix + 3).to(dtype)


def summed(support: Support, log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """Evidence and differential entropy (n,) from support and log-likelihoods (n, m)."""
    posterior = infer(log_likelihood, support.log_weight, support.log_volume)
    return posterior.log_evidence, posterior.entropy


@pytest.mark.parametrize("numbers", [2, 3])
@pytest.mark.parametrize("width", [1, 1 / 50])
def test_gaussian_posteriors_as_wide_as_the_marginal_and_far_narrower(numbers: int, width: float) -> None:
    y = normals(2000, numbers, seed=numbers)
    marginal = Gaussian().fit(y)
    mean, factor = marginal.mean.double(), marginal.factor.double()
    prior = factor @ factor.mT
    # z = A y + noise; A and the noise are such that likelihoods, seen as functions of y, have deviations of `width`.
    generator = torch.Generator().manual_seed(1)
    rotation = torch.linalg.qr(torch.randn(numbers, numbers, generator=generator, dtype=torch.float64))[0]
    a = rotation @ torch.linalg.inv(factor)
    noise = width**2 * torch.diag(torch.linspace(0.7, 1.4, numbers, dtype=torch.float64))
    z = y[:100].double() @ a.mT + torch.randn(100, numbers, generator=generator, dtype=torch.float64) @ noise.sqrt()

    covariance = torch.linalg.inv(torch.linalg.inv(prior) + a.mT @ torch.linalg.inv(noise) @ a)
    centre = mean + (z - mean @ a.mT) @ torch.linalg.inv(noise) @ a @ covariance
    support = marginal.at(centre.float())
    assert support.points.shape == (100, 1024, numbers)
    assert support.points.dtype == support.log_weight.dtype == torch.float32
    likelihood = MultivariateNormal(z[:, None], noise).log_prob(support.points.double() @ a.mT)
    evidence, entropy = summed(support, likelihood)

    expected = MultivariateNormal(mean @ a.mT, a @ prior @ a.mT + noise).log_prob(z)
    torch.testing.assert_close(evidence, expected, rtol=0, atol=0.05)
    expected_entropy = MultivariateNormal(mean, covariance).entropy()
    torch.testing.assert_close(entropy, expected_entropy.expand(100), rtol=0, atol=0.1)


@pytest.mark.parametrize("numbers", [2, 3])
@pytest.mark.parametrize("width", [0.3, 1 / 50])
def test_truncated_posteriors_in_a_box(numbers: int, width: float) -> None:
    y = torch.rand(2000, numbers, generator=torch.Generator().manual_seed(0)) * torch.arange(1, numbers + 1)
    marginal = Uniform().fit(y)
    low, high = marginal.bounds.double()
    deviation = width * (high - low) / math.sqrt(12)
    inner, outer = low + 0.4 * (high - low), high - deviation
    centres = torch.stack([inner, outer, torch.cat([inner[:1], outer[1:]])])
    support = marginal.at(centres.float())
    normal = torch.distributions.Normal(centres[:, None], deviation)
    evidence, entropy = summed(support, normal.log_prob(support.points.double()).sum(2))

    mass = normal.cdf(high) - normal.cdf(low)
    expected = mass.log().sum(2)[:, 0] - (high - low).log().sum()
    torch.testing.assert_close(evidence, expected, rtol=0, atol=0.1)
    ends = [((end - centres) / deviation).numpy() for end in (low, high)]
    parts = stats.truncnorm(*ends, loc=centres.numpy(), scale=deviation.numpy()).entropy()
    torch.testing.assert_close(entropy, torch.as_tensor(parts).sum(1), rtol=0, atol=0.15)


def test_predictions_beside_the_posterior_are_right_on_average() -> None:
    """Each prediction is off by what the likelihood leaves open; errors are larger, and not to one side."""
    marginal = Gaussian().fit(normals(2000, 2, seed=2))
    mean, factor = marginal.mean.double(), marginal.factor.double()
    generator = torch.Generator().manual_seed(0)
    y = mean + torch.randn(300, 2, generator=generator, dtype=torch.float64) @ factor.mT
    noise = 0.02 * factor
    z = y + torch.randn(300, 2, generator=generator, dtype=torch.float64) @ noise.mT
    support = marginal.at(y)
    evidence, _ = summed(support, MultivariateNormal(z[:, None], scale_tril=noise).log_prob(support.points.double()))
    expected = MultivariateNormal(mean, (1 + 0.02**2) * factor @ factor.mT).log_prob(z)
    error = evidence - expected
    assert abs(error.mean().item()) < 0.02
    assert error.std().item() < 0.08


def test_more_points_are_closer() -> None:
    y = normals(500, 3, seed=0)
    errors = []
    for points in (64, 512, 4096):
        marginal = Gaussian(points=points).fit(y)
        support = marginal.at(y[:200])
        assert support.points.shape == (200, points, 3)
        errors.append((support.log_weight.logsumexp(1)).abs().mean().item())  # the likelihood is one
    assert errors[0] > 4 * errors[1] > 8 * errors[2]


def test_weights_are_prior_over_proposal() -> None:
    """One prediction, one point at a time, with scipy's densities."""
    y = normals(500, 2, seed=0, dtype=torch.float64)
    marginal = Gaussian(points=32).fit(y)
    points, log_weight, log_volume = marginal.at(y[:1])
    assert log_volume is not None
    mean, covariance = marginal.mean, marginal.factor @ marginal.factor.mT
    own = [4, 3, 3, 3, 3]
    proposal = 16 * stats.multivariate_normal(mean, WIDE**2 * covariance).pdf(points[0])
    for scale, count in zip(LADDER, own, strict=True):
        proposal += count * stats.multivariate_normal(y[0], scale**2 * covariance).pdf(points[0])
    torch.testing.assert_close((-log_volume[0]).exp(), torch.as_tensor(proposal))
    torch.testing.assert_close(log_weight[0] - log_volume[0], marginal.log_prob(points[0]))


def test_inputs_share_half_of_their_points_and_draws() -> None:
    y = normals(500, 3, seed=0, dtype=torch.float64)
    points = Gaussian(points=64).fit(y).at(y[:2]).points
    assert torch.equal(points[0, :32], points[1, :32])
    torch.testing.assert_close(points[0, 32:] - y[0], points[1, 32:] - y[1])
    together = Gaussian(points=64).fit(y).at(y[:5])
    alone = Gaussian(points=64).fit(y).at(y[3:4])
    torch.testing.assert_close(together.log_weight[3:4], alone.log_weight)


@pytest.mark.parametrize("kind", [Gaussian, Uniform])
@pytest.mark.parametrize("size", [1e4, 1e20, 3e38, 1e300])
def test_predictions_however_far(kind: type[Gaussian] | type[Uniform], size: float) -> None:
    marginal = kind().fit(normals(500, 3, seed=0))
    far = size * torch.tensor([[1.0, 0, 0], [-1, 1, -1], [1, 1e-3, 1]], dtype=torch.float64)
    points, log_weight, log_volume = marginal.at(far)
    assert log_volume is not None and points.isfinite().all() and log_volume.isfinite().all()
    assert not log_weight.isnan().any() and log_weight.max() < math.inf
    assert log_weight.logsumexp(1).abs().max() < 0.05  # the shared half still holds the marginal


def test_draws_are_standard() -> None:
    shared, offset = draw(2**14, 2, box=False)
    assert shared.std(0).tolist() == pytest.approx([WIDE, WIDE], rel=0.01)
    rungs = offset.split([1639, 1639, 1638, 1638, 1638])
    for rung, scale in zip(rungs, LADDER, strict=True):
        assert rung.std(0).tolist() == pytest.approx([scale, scale], rel=0.02)
        assert rung.mean(0).tolist() == pytest.approx([0, 0], abs=0.02 * scale)
    box, _ = draw(2**14, 2, box=True)
    assert box.std(0).tolist() == pytest.approx([1, 1], rel=0.01)


def test_too_few_points() -> None:
    with pytest.raises(ValueError, match="vectors need points of at least 16, not 15"):
        Gaussian(points=15).fit(normals(50, 2, seed=0))
    assert Gaussian(points=16).fit(normals(50, 2, seed=0)).at(torch.zeros(1, 2)).points.shape == (1, 16, 2)
