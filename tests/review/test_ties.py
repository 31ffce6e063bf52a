"""Repeated inputs, rounding, and widths: what p-values and intervals promise."""

import torch
from torch import nn

from found import found
from hidden_uncertainty import GaussianMixture, LatentDensity, Regression


def _inputs(n: int, seed: int) -> torch.Tensor:
    """Two in five are the same, far out, so that its ties decide about most alarms."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    x[torch.rand(n, generator=generator) < 0.4] = torch.linspace(-5.1, 4.3, 8)
    return x


def _network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, outputs)).eval()


@found(
    "A1",
    "two in five inputs are identical; calibrated in batches of 100, scored in batches of 1 to 64, asked rate 5 %",
    "up to 44 % false alarms: the last digits of a score depend on its batch, and ties are lost",
    "at most 5 %: rounding is measured when a detector is calibrated, and ties reach as far",
)
def test_repeated_inputs_ring_no_false_alarm():
    detector = LatentDensity(_network(3), "1", GaussianMixture(1), task="classification")
    detector.fit(torch.randn(1000, 8).split(100), calibration=_inputs(1000, 1).split(100))
    detector.threshold(0.05)
    new = _inputs(400, 2)
    for size in (1, 2, 3, 5, 7, 64):
        rate = detector.predict(new.split(size)).surprising.float().mean().item()
        assert rate < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5, f"batches of {size}: {rate:.1%} false alarms"


@found(
    "A1",
    "intervals for inputs whose labels lie exactly on the bound of a repeated calibration input",
    "the bound is rounded, and up to 40 % more labels than promised lie outside",
    "bounds are a few units in the last place wider, and hold what they promise",
)
def test_a_label_on_the_bound_is_inside():
    network = _network(1)
    detector = LatentDensity(network, "1", condition="label", task="regression")
    train = torch.randn(1000, 8)
    detector.fit([(train, network(train).detach()[:, 0] + torch.randn(1000))], calibration=_labelled(network, 1))
    for size in (1, 7):
        inside = total = 0
        for x, y in zip(*(part[:300].split(size) for part in _pair(network, 2)), strict=True):
            low, high = detector.interval(detector(x), 0.9)
            inside, total = inside + int(((low <= y) & (y <= high)).sum()), total + len(y)
        assert inside / total > 0.9 - 3 * (0.09 / total) ** 0.5, f"batches of {size}: {inside / total:.1%} covered"


def _pair(network: nn.Module, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One error for all that is the same, larger than usual."""
    x = _inputs(1000, seed)
    same = (x == x.mode(0).values).all(1)
    noise = 0.3 * torch.randn(1000, generator=torch.Generator().manual_seed(seed))
    return x, network(x).detach()[:, 0] + torch.where(same, 8.7, noise)


def _labelled(network: nn.Module, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = _pair(network, seed)
    return list(zip(x.split(100), y.split(100), strict=True))


@found(
    "C40",
    "p-values as a list of floats, compared with the asked rate",
    "some are above it by rounding although their inputs are surprising",
    "p-values are in float64 and agree with `surprising`",
)
def test_p_values_in_a_list_agree_with_the_alarm():
    detector = LatentDensity(_network(3), "1", GaussianMixture(1), task="classification")
    detector.fit(torch.randn(1000, 8).split(100), calibration=[torch.randn(99, 8)])
    x = 2 * torch.randn(500, 8)
    for alarms in range(1, 99):
        detector.threshold(alarms / 100)
        u = detector(x)
        assert u.surprising.tolist() == [p <= alarms / 100 for p in u.p_value.tolist()]


class Spreading(nn.Module):
    """Predicts a mean and how far off labels are, which is right."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.hidden(x)[:, :1], torch.where(x > 0, 1.0, 0.01)


@found(
    "A22",
    "intervals of a network that predicts a variance, ten times as large a deviation for half of the inputs",
    "the variance is left out: noisy and quiet inputs have intervals of about one width",
    "widths follow the deviation that the network predicts, and cover as asked",
)
def test_intervals_follow_a_predicted_variance():
    torch.manual_seed(0)
    network = Spreading().eval()

    def draw(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 1)
        mean, variance = network(x)
        return x, (mean + variance.sqrt() * torch.randn(n, 1)).detach()

    task = Regression(output=0, spread=1)
    detector = LatentDensity(network, "hidden", task=task).fit([draw(1000)], calibration=[draw(2000)])
    x, y = draw(2000)
    low, high = (bound[:, None] for bound in detector.interval(detector(x), 0.9))
    noisy, inside = x > 0, (low <= y) & (y <= high)
    assert (high - low)[noisy].median() > 8 * (high - low)[~noisy].median()
    for half in (noisy, ~noisy):
        assert abs(inside[half].float().mean() - 0.9) < 0.05
