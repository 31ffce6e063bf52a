"""The variational information bottleneck: its rate, its loss and its detector."""

from __future__ import annotations

import torch
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional as F

from reproduction.rivals import Bottleneck
from reproduction.rivals.bottleneck import gaussian, rate

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
