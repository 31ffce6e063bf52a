"""The order in which a loader brings its inputs."""

import warnings

import torch
from torch import nn

from found import found
from hidden_uncertainty import JointMixture, LatentDensity


@found(
    "A16",
    "four fits of one shuffling loader, with one seed",
    "scores differ by nats, and so do thresholds",
    "they differ by less than 0.01 nats",
)
def test_the_order_of_a_loader_does_not_matter():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).eval()
    x, unseen = torch.randn(900, 4), torch.randn(100, 4)
    scores = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(4):
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
            detector = LatentDensity(network, "1", task="classification").fit(x[order].split(100))
            scores.append(detector(unseen).epistemic)
    assert max(float((other - scores[0]).abs().max()) for other in scores) < 0.01


@found(
    "A16",
    "a joint mixture, fitted to the same rows in two orders",
    "log p(z) differs by nats",
    "it is the same",
)
def test_the_order_of_rows_does_not_matter_to_regression():
    generator = torch.Generator().manual_seed(0)
    z, unseen = torch.randn(500, 5, generator=generator), torch.randn(100, 5, generator=generator)
    y = z[:, 0] + z[:, 1].square()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        order = torch.randperm(500, generator=generator)
        fits = [JointMixture(3).fit(z, y), JointMixture(3).fit(z[order], y[order])]
    one, other = (density.log_prob(unseen, y[:20]) for density in fits)
    assert torch.equal(one, other)
