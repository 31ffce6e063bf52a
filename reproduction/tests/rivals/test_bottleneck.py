"""The variational information bottleneck: its rate, its loss and its detector."""

from __future__ import annotations

import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence
from torch.nn import functional as F

from reproduction.rivals import Bottleneck
from reproduction.rivals.bottleneck import Mixture, gaussian, rate

random = torch.Generator().manual_seed(0)
x = torch.randn(40, 4, generator=random)
y = torch.arange(40) % 3


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


def test_a_learnt_marginal_is_a_mixture_and_its_rate_a_divergence() -> None:
    marginal = Mixture(4, 3, seed=1)
    with torch.no_grad():
        marginal.logits.copy_(torch.randn(4, generator=random))
        marginal.log_std.copy_(0.3 * torch.randn(4, 3, generator=random))
        gaussians = Independent(Normal(marginal.means, marginal.log_std.exp()), 1)
        expected = MixtureSameFamily(Categorical(logits=marginal.logits), gaussians)
        z = torch.randn(30, 3, generator=random)
        torch.testing.assert_close(marginal.log_prob(z), expected.log_prob(z))
        # with one component, the divergence has a closed form
        single = Mixture(1, 3)
        single.means.zero_()
        mean, std = torch.randn(10, 3, generator=random), torch.rand(10, 3, generator=random) + 0.1
        estimate = single.rate(mean, std, torch.randn(20_000, 1, 3, generator=random))
        torch.testing.assert_close(estimate, rate(mean, std), rtol=0.03, atol=0.05)


def test_training_and_scoring_with_a_learnt_marginal() -> None:
    rival = Bottleneck(4, 8, 3, code=2, components=5)
    rival.loss(x, y).backward()
    assert rival.marginal is not None and rival.marginal.means.grad is not None
    ((name, detector),) = rival.eval().detectors()
    u = detector.fit([(x, y)])(x)
    mean, std = gaussian(rival.encoder(rival.body(x)))
    many = rival.marginal.rate(mean, std, torch.randn(5_000, 1, 2, generator=random)).detach()
    assert name == "VIB, learnt marginal" and torch.equal(detector(x).epistemic, u.epistemic)
    assert torch.corrcoef(torch.stack([u.epistemic, many]))[0, 1].item() > 0.99
