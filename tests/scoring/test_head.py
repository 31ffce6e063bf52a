"""What was fitted scores without a trace, also when it is interrupted half way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from hidden_uncertainty import LatentDensity
from hidden_uncertainty.scoring import bayes


@pytest.fixture(scope="module")
def detector() -> LatentDensity:
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    return LatentDensity(net, "1", task="regression").fit([x[:400]], calibration=[(x[400:], x[400:, 0])])


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_an_interrupted_call_leaves_gradients_and_autocast_alone(
    detector: LatentDensity, monkeypatch: pytest.MonkeyPatch, grad: bool, autocast: bool
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bayes, "_expected_error", interrupted)
    with (
        pytest.raises(KeyboardInterrupt) as error,  # which keeps every frame, as a notebook does
        torch.set_grad_enabled(grad),
        torch.autocast("cpu", enabled=autocast),
    ):
        detector(torch.zeros(3, 2))
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    del error
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_intervals_are_where_the_predictions_are(detector: LatentDensity) -> None:
    """What was fitted may be on another device than the model."""
    u = detector(torch.zeros(3, 2))
    elsewhere = replace(u, prediction=u.prediction.to("meta"))
    assert all(bound.device.type == "meta" for bound in detector.interval(elsewhere))
