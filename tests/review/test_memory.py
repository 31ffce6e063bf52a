"""Loaders and networks that use their memory again."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from found import found
from hidden_uncertainty import JointMixture, LatentDensity
from hidden_uncertainty.baselines import MCDropout
from reproduction.rivals.process import GaussianProcess


class Reusing:
    """A loader that writes every batch into the same two tensors."""

    def __init__(self, x: Tensor, y: Tensor, size: int = 100) -> None:
        self.x, self.y, self.size = x, y, size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, labels = self.x[: self.size].clone(), self.y[: self.size].clone()
        for x, y in zip(self.x.split(self.size), self.y.split(self.size), strict=True):
            yield inputs.copy_(x), labels.copy_(y)


class Static(nn.Module):
    """Returns its numbers in the same tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.hidden, self.drop, self.out = nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 1)
        self.output = torch.zeros(50)

    def forward(self, x: Tensor) -> Tensor:
        return self.output.copy_(self.out(self.drop(self.hidden(x).tanh()))[:, 0])


def _draw(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator)
    return x, x.sum(1) + 0.1 * torch.randn(n, generator=generator)


@found(
    "A5",
    "a loader that gives its labels in the same tensor each time",
    "44 % of the labels are right",
    "labels are copied: all are right",
)
def test_labels_in_memory_that_is_used_again():
    x, y = _draw(600)
    label = (y > 0).long()
    torch.manual_seed(0)
    features = LatentDensity(nn.Linear(2, 2), "", task="classification").extract(Reusing(x, label))
    assert float((features.label == label).float().mean()) == 1.0


@found(
    "A5",
    "intervals from such a loader",
    "several times too wide",
    "as from any other loader",
)
def test_intervals_from_memory_that_is_used_again():
    x, y = _draw(600)
    network = nn.Sequential(nn.Identity(), nn.Linear(2, 1, bias=False), nn.Flatten(0))
    nn.init.ones_(network[1].weight)
    widths = []
    for loader in ([(x, y)], Reusing(x, y)):
        detector = LatentDensity(network, "0", JointMixture(1), task="regression", condition="label")
        detector.fit([(x, y)], calibration=loader)
        low, high = detector.interval(detector(x[:50]), 0.9)
        widths.append(float((high - low).mean()))
    assert widths[1] < 1.01 * widths[0]


@found(
    "A5",
    "a network that returns its numbers in the same tensor each time",
    "predictions change after the call",
    "predictions are copied",
)
def test_predictions_in_memory_that_is_used_again():
    x = _draw(100)[0]
    detector = LatentDensity(Static(), "hidden", JointMixture(1), task="regression").fit(x.split(50))
    u = detector(x[:50])
    before = u.prediction.clone()
    detector(x[50:])
    assert torch.equal(u.prediction, before)


@found(
    "A5",
    "MC dropout on such a network",
    "all samples are the last one: no epistemic uncertainty",
    "every sample counts",
)
def test_samples_in_memory_that_is_used_again():
    u = MCDropout(Static(), samples=5, task="regression")(_draw(50)[0])
    assert float(u.epistemic.min()) > 0


@found(
    "A5",
    "a Gaussian process fitted to a loader that gives the same tensors each time",
    "it is fitted to the last batch, many times over",
    "it is fitted to all batches",
)
def test_a_process_fitted_to_memory_that_is_used_again():
    x = torch.linspace(-3, 3, 45)[:, None]
    y = x[:, 0].sin() + 0.1 * _draw(45)[0][:, 0]
    process = GaussianProcess().fit(Reusing(x, y, 15))
    assert float((process(x).prediction - y).abs().max()) < 0.5
