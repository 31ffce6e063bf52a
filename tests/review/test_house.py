"""What the new house mended by itself."""

import torch
from torch import nn

from found import found
from hidden_uncertainty import LatentDensity
from hidden_uncertainty.baselines import Mahalanobis


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).eval()


@found(
    "A12",
    "a fit that guesses the task and then fails, and another fit",
    "the guess stays: the next fit runs as classification",
    "nothing of a failed fit stays",
)
def test_a_guessed_task_does_not_outlive_its_fit():
    detector = LatentDensity(_network(), "1")
    x = torch.randn(400, 2)
    try:
        detector.fit([x, torch.full((5, 2), torch.nan)])
        raise RuntimeError("the fit should have failed")
    except ValueError:
        pass
    numbers = detector.fit([(x, torch.randn(400, 3))])(x).prediction
    assert numbers.is_floating_point()


@found(
    "B29",
    "a detector fitted to features that another one extracted, used on inputs",
    "a bare AssertionError",
    "it scores them",
)
def test_features_of_another_detector():
    network, x = _network(), torch.randn(200, 2)
    features = LatentDensity(network, "0").extract([x])
    try:
        scores: object = Mahalanobis(network, "0").fit_features(features)(x).epistemic
    except AssertionError as error:
        scores = error
    assert isinstance(scores, torch.Tensor)
