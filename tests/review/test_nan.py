"""Numbers that are none, from the network itself."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from found import found
from hidden_uncertainty import GaussianMixture, LatentDensity


class Failing(nn.Module):
    """Its layers are finite; for inputs whose first number is large, its outputs are NaN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.out(torch.tanh(self.hidden(x.clamp(-3, 3))))
        return logits.masked_fill(x[:, :1] > 9, torch.nan)


def _inputs(n: int, failing: int, seed: int) -> Tensor:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    x[:failing, 0] = 10.0
    return x


@found(
    "A7",
    "a network whose outputs are NaN for some inputs, while the layer that is read is finite",
    "they are class 0, not surprising, with p-values up to 0.96",
    "their epistemic uncertainty is inf, they are surprising, and a warning says how many there are",
)
def test_outputs_of_nan_are_surprising():
    detector = LatentDensity(Failing().eval(), "hidden", GaussianMixture(1), task="classification")
    detector.fit([_inputs(1000, 0, 1)], calibration=[_inputs(500, 0, 2)])
    detector.threshold(0.05)
    x = _inputs(100, 7, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        u = detector(x)
    assert u.surprising[:7].all() and u.p_value[:7].max() < 0.01
    assert u.epistemic.isfinite().tolist() == [False] * 7 + [True] * 93
    assert len(caught) == 1 and "7 of 100 inputs" in str(caught[0].message)


@found(
    "A7",
    "training and calibration data for which the outputs are NaN",
    "they are fitted as class 0",
    "an error says how many there are, and in which batch",
)
def test_outputs_of_nan_are_not_fitted_to():
    good, bad = _inputs(500, 0, 1), _inputs(500, 5, 2)
    for train, unseen in (([good, bad], [good]), ([good], [good, bad])):
        with pytest.raises(ValueError, match="NaN"):
            LatentDensity(Failing().eval(), "hidden", GaussianMixture(1), task="classification").fit(train, unseen)
