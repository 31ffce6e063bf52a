"""Multiplying a layer by a constant changes no decision of any method that looks at it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import Detector, GaussianMixture, JointMixture, LatentDensity
from hidden_uncertainty.baselines import Mahalanobis, NearestNeighbours, RelativeMahalanobis
from hidden_uncertainty.baselines.mahalanobis import one_gaussian_per_class

SCALES = [1e-30, 1e-5, 1e15]
METHODS: dict[str, tuple[Callable[..., Detector], bool]] = {  # whether the score is a density's
    "latent": (lambda *args: LatentDensity(*args, GaussianMixture(2)), True),
    "one gaussian": (one_gaussian_per_class, True),
    "mahalanobis": (Mahalanobis, False),
    "relative": (RelativeMahalanobis, False),
    "directions": (lambda *args: NearestNeighbours(*args, k=5), False),
}


class Scaled(nn.Module):
    """A network whose hidden layer is multiplied by a constant, which its head divides by again."""

    def __init__(self, scale: float, outputs: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.hidden, self.head = nn.Linear(5, 5), nn.Linear(5, outputs)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=random))
        self.head.weight.data.mul_(3)
        self.hidden.weight.data.mul_(scale)
        self.hidden.bias.data.mul_(scale)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.hidden(x) / self.scale).tanh())


def rows(n: int, seed: int) -> Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))


def scores(build: Callable[..., Any], scale: float, outputs: int) -> Tensor:
    loader = rows(300, 0).split(100)
    if outputs == 1:
        network = Scaled(scale, 1).eval()
        detector = LatentDensity(network, "hidden", JointMixture(2), task="regression").fit(loader)
    else:
        detector = build(Scaled(scale, outputs).eval(), "hidden").fit(loader)
    found: Tensor = detector(torch.cat([rows(60, 1), 3 * rows(30, 2), 10 * rows(30, 3)])).epistemic
    return found


@pytest.mark.parametrize("name", [*METHODS, "numbers"])
@pytest.mark.filterwarnings("ignore:.*too few")
def test_no_decision_changes(name: str) -> None:
    build, nats = METHODS.get(name, (LatentDensity, True))
    outputs = 1 if name == "numbers" else 3
    expected = scores(build, 1.0, outputs)
    for scale in SCALES:
        found = scores(build, scale, outputs) - (5 * math.log(scale) if nats else 0)
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-2)


def test_plain_distances_scale_alike() -> None:
    def build(*args: Any) -> Detector:
        return NearestNeighbours(*args, k=5, normalise=False)

    expected = scores(build, 1.0, 3)
    for scale in SCALES:
        torch.testing.assert_close(scores(build, scale, 3) / scale, expected, rtol=1e-4, atol=1e-5)
