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


@pytest.mark.parametrize("width", [1, 1 / 50])
@pytest.mark.parametrize(
    ("numbers", "away", "off"),
    [(2, 0, 0), (2, 0, 30), (2, 12, 0), (2, 12, 1), (2, 12, 30), (3, 0, 0), (3, 0, 30), (3, 12, 0), (3, 12, 1)],
)
def test_gaussian_posteriors_wherever_they_and_the_predictions_are(
    numbers: int, width: float, away: float, off: float
) -> None:
    """As wide as the marginal and far narrower, `away` deviations out, with predictions that are off by some too."""
    y = normals(2000, numbers, seed=numbers, dtype=torch.float64)
    marginal = Gaussian().fit(y)
    mean, factor = marginal.mean, marginal.factor
    prior = factor @ factor.mT
    # z = A y + noise; A and the noise are such that likelihoods, seen as functions of y, have deviations of `width`.
    generator = torch.Generator().manual_seed(1)
    rotation = torch.linalg.qr(torch.randn(numbers, numbers, generator=generator, dtype=torch.float64))[0]
    a = rotation @ torch.linalg.inv(factor)
    noise = width**2 * torch.diag(torch.linspace(0.7, 1.4, numbers, dtype=torch.float64))
    drawn = torch.randn(100, numbers, generator=generator, dtype=torch.float64) @ noise.sqrt()
    z = (y[:100] + away * factor[:, 0]) @ a.mT + drawn

    covariance = torch.linalg.inv(torch.linalg.inv(prior) + a.mT @ torch.linalg.inv(noise) @ a)
    centre = mean + (z - mean @ a.mT) @ torch.linalg.inv(noise) @ a @ covariance

    def log_prob(points: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        return MultivariateNormal(z[rows, None], noise).log_prob(points @ a.mT)

    support = marginal.at((centre + off * factor.sum(1)).float(), log_prob)
    assert support.points.shape == (100, 1024, numbers)
    evidence, entropy = summed(support, log_prob(support.points))

    expected = MultivariateNormal(mean @ a.mT, a @ prior @ a.mT + noise).log_prob(z)
    torch.testing.assert_close(evidence, expected, rtol=0, atol=0.05)
    expected_entropy = MultivariateNormal(mean, covariance).entropy()
    torch.testing.assert_close(entropy, expected_entropy.expand(100), rtol=0, atol=0.1)


@pytest.mark.parametrize(("numbers", "width"), [(2, 0.3), (2, 1 / 50), (3, 0.3)])
@pytest.mark.parametrize("off", [0, 3])
def test_truncated_posteriors_in_a_box(numbers: int, width: float, off: float) -> None:
    """Some within the box, some cut by its edges, some that have all but their tails outside of it."""
    y = torch.rand(2000, numbers, generator=torch.Generator().manual_seed(0)) * torch.arange(1, numbers + 1)
    marginal = Uniform().fit(y)
    low, high = marginal.bounds.double()
    deviation = width * (high - low) / math.sqrt(12)
    inner, outer, beyond = low + 0.4 * (high - low), high - deviation, high + 4 * deviation
    centres = torch.stack([inner, outer, torch.cat([inner[:1], outer[1:]]), torch.cat([inner[:1], beyond[1:]])])
    normal = torch.distributions.Normal(centres[:, None], deviation)

    def log_prob(points: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        return torch.distributions.Normal(centres[rows, None], deviation).log_prob(points).sum(2)

    support = marginal.at((centres + off * (high - low)).float(), log_prob)
    assert ((support.points >= low) & (support.points <= high)).all()
    evidence, entropy = summed(support, log_prob(support.points))

    mass = normal.cdf(high) - normal.cdf(low)
    expected = mass.log().sum(2)[:, 0] - (high - low).log().sum()
    torch.testing.assert_close(evidence, expected, rtol=0, atol=0.1)
    ends = [((end - centres) / deviation).numpy() for end in (low, high)]
    parts = stats.truncnorm(*ends, loc=centres.numpy(), scale=deviation.numpy()).entropy()
    torch.testing.assert_close(entropy, torch.as_tensor(parts).sum(1), rtol=0, atol=0.15)


def test_no_input_depends_on_others_in_its_batch() -> None:
    marginal = Gaussian().fit(normals(500, 2, seed=0))
    z, prediction = 40 * normals(6, 2, seed=1, dtype=torch.float64), normals(6, 2, seed=2)

    def at(some: slice) -> Support:
        def log_prob(points: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
            return -50 * (points - z[some][rows, None]).square().sum(2)

        return marginal.at(prediction[some], log_prob)

    together = at(slice(None))
    for i in range(6):
        alone = at(slice(i, i + 1))
        torch.testing.assert_close(alone.points[0], together.points[i])
        torch.testing.assert_close(alone.log_weight[0], together.log_weight[i])


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
        unit = 1 + float(((y[0] - mean) @ marginal.inverse.mT).abs().max()) / 2
        proposal += count * stats.multivariate_normal(y[0], (unit * scale) ** 2 * covariance).pdf(points[0])
    torch.testing.assert_close((-log_volume[0]).exp(), torch.as_tensor(proposal))
    torch.testing.assert_close(log_weight[0] - log_volume[0], marginal.log_prob(points[0]))


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
