"""The variational information bottleneck: its rate, its loss and its detector."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    kl_divergence,
)
from torch.nn import functional as F

from reproduction.rivals import Bottleneck
from reproduction.rivals.base import draw
from reproduction.rivals.bottleneck import DRAWS, Mixture, correlated, gaussian, rate

random = torch.Generator().manual_seed(0)
x = torch.randn(40, 4, generator=random)
y = torch.arange(40) % 3


def scattered(components: int, code: int) -> Mixture:
    """With weights, means and covariances of no particular form."""
    marginal = Mixture(components, code, seed=1)
    with torch.no_grad():
        marginal.logits.copy_(torch.randn(components, generator=random))
        marginal.raw.copy_(0.4 * torch.randn(components, code, code, generator=random))
    return marginal


def reference(marginal: Mixture) -> MixtureSameFamily:
    """The same, of torch: what is above the diagonal counts for nothing, the diagonal is a logarithm."""
    raw = marginal.raw.detach()
    roots = raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=1, dim2=2).exp())
    gaussians = MultivariateNormal(marginal.means.detach(), precision_matrix=roots @ roots.mT)
    return MixtureSameFamily(Categorical(logits=marginal.logits.detach()), gaussians)


def test_the_rate_is_the_divergence_from_a_standard_gaussian() -> None:
    mean, std = torch.randn(20, 5, generator=random), torch.rand(20, 5, generator=random) + 0.01
    codes, standard = Independent(Normal(mean, std), 1), Independent(Normal(torch.zeros(5), torch.ones(5)), 1)
    torch.testing.assert_close(rate(mean, std), kl_divergence(codes, standard))
    z = codes.rsample(torch.Size([5_000]))  # and of what it is the mean
    sampled = (codes.log_prob(z) - standard.log_prob(z)).mean(0)
    torch.testing.assert_close(rate(mean, std), sampled, rtol=0.03, atol=0.1)


def test_the_loss_is_the_bound() -> None:
    rival = Bottleneck(4, 8, 3, code=2, beta=0.7)
    mean, std = gaussian(rival.encoder(rival.body(x)))
    drawn = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    expected = F.cross_entropy(rival.output(mean + std * drawn), y) + 0.7 * rate(mean, std).mean()
    torch.testing.assert_close(rival.loss(x, y), expected)
    torch.testing.assert_close(rival(x), rival.output(mean))  # predictions take the mean


def test_the_detector_scores_by_the_rate() -> None:
    rival = Bottleneck(4, 8, 3, code=2).eval()
    ((name, detector),) = rival.detectors()
    u = detector.fit([(x, y)])(x)
    assert name == "VIB"
    torch.testing.assert_close(u.epistemic, rate(*gaussian(rival.encoder(rival.body(x)))).detach())
    assert torch.equal(u.prediction, rival(x).argmax(1))


def test_correlated_codes_have_a_root_with_a_positive_diagonal() -> None:
    encoded = torch.arange(-12.0, 12.0).view(2, 12)
    mean, root = correlated(encoded, 3)
    assert torch.equal(mean, encoded[:, :3])
    for row, own in zip(encoded, root, strict=True):
        below = row[3:].view(3, 3)
        for i in range(3):
            for j in range(3):
                expected = float(below[i, j]) if j < i else float(F.softplus(below[i, i])) + 1e-6 if i == j else 0.0
                assert own[i, j].item() == pytest.approx(expected, rel=1e-6)


def test_a_learnt_marginal_is_a_mixture() -> None:
    marginal = scattered(4, 3)
    z = torch.randn(30, 3, generator=random)
    torch.testing.assert_close(marginal.log_prob(z).detach(), reference(marginal).log_prob(z))


def test_the_rate_with_a_learnt_marginal_is_a_divergence() -> None:
    mean, root = correlated(0.5 * torch.randn(10, 12, generator=random), 3)
    codes, noise = MultivariateNormal(mean, scale_tril=root), torch.randn(20_000, 10, 3, generator=random)
    with torch.no_grad():
        single = scattered(1, 3)  # with one component, the divergence has a closed form
        own = reference(single).component_distribution
        expected = kl_divergence(codes, MultivariateNormal(own.mean[0], own.covariance_matrix[0]))
        torch.testing.assert_close(single.rate(mean, root, noise), expected, rtol=0.03, atol=0.05)
        several = scattered(4, 3)  # with several, what is averaged is exact for each draw
        z = mean + torch.stack([root @ each[..., None] for each in noise[:5]])[..., 0]
        expected = (codes.log_prob(z) - reference(several).log_prob(z)).mean(0)
        torch.testing.assert_close(several.rate(mean, root, noise[:5]), expected, rtol=1e-4, atol=1e-4)


def test_the_loss_with_a_learnt_marginal_is_the_bound() -> None:
    rival = Bottleneck(4, 8, 3, code=2, components=5, beta=0.7)
    assert rival.marginal is not None
    drawn = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    mean, root = correlated(rival.encoder(rival.body(x)), 2)
    codes = MultivariateNormal(mean, scale_tril=root)
    z = mean + (root @ drawn[:, :, None])[:, :, 0]
    rates = codes.log_prob(z) - reference(rival.marginal).log_prob(z)
    loss = rival.loss(x, y)
    torch.testing.assert_close(loss, F.cross_entropy(rival.output(z), y) + 0.7 * rates.mean())
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in rival.marginal.parameters())


def test_the_detector_scores_by_the_rate_of_a_learnt_marginal() -> None:
    rival = Bottleneck(4, 8, 3, code=2, components=5).eval()
    ((name, detector),) = rival.detectors()
    u = detector.fit([(x, y)])(x)
    assert rival.marginal is not None
    mean, root = correlated(rival.encoder(rival.body(x)), 2)
    codes = MultivariateNormal(mean, scale_tril=root)
    z = mean + torch.stack([(root @ each[0][:, None])[..., 0] for each in draw(0, DRAWS, 1, 2)])
    expected = (codes.log_prob(z) - reference(rival.marginal).log_prob(z)).mean(0)
    assert name == "VIB, learnt marginal"
    torch.testing.assert_close(u.epistemic, expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(detector(x[7:9]).epistemic, u.epistemic[7:9])  # draws do not depend on the batch
