"""Reading loaders: networks that write into their inputs, features of another detector, and nothing at all."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels, Regression

X = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
PLAIN = GaussianMixture(components=1)


class Normalising(nn.Module):
    """Normalises its inputs, in place or not; otherwise the same."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.hidden, self.out = nn.Linear(2, 8, bias=False), nn.Linear(8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.sub_(5.0).div_(2.0) if self.in_place else (x - 5.0) / 2.0
        return self.out(self.hidden(x).tanh())


class Loader:
    """Gives new tensors in every pass, as a `DataLoader` does."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter((3 * X + 5.0).split(100))


@pytest.mark.parametrize("max_dim", [None, 4])
@pytest.mark.parametrize("holdout", [None, 0.3])
def test_a_network_that_writes_into_its_inputs(max_dim: int | None, holdout: float | None) -> None:
    scores = []
    for in_place in (True, False):
        detector = LatentDensity(
            Normalising(in_place=in_place), "hidden", PLAIN, max_dim=max_dim, task="classification"
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="calibrated on a part of the training data")
            detector.fit(Loader(), holdout=holdout)
        scores.append(detector.predict(Loader()).epistemic)
    assert torch.equal(*scores)


def test_a_network_of_pixels_that_writes_into_its_inputs() -> None:
    class Maps(nn.Module):
        def __init__(self, *, in_place: bool) -> None:
            super().__init__()
            self.inner = Normalising(in_place=in_place)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.movedim(1, 3)).movedim(3, 1)

    class Images:
        def __iter__(self) -> Iterator[Tensor]:
            return iter((3 * X + 5.0).view(20, 4, 5, 2).movedim(3, 1).contiguous().split(5))

    scores = []
    for in_place in (True, False):
        detector = LatentDensity(Maps(in_place=in_place), "", PLAIN, task="classification", pixels=Pixels())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="calibrated on a part of the training data")
            detector.fit(Images(), holdout=0.3)
        scores.append(torch.cat([detector(x.clone()).p_value.flatten() for x in Images()]))
    assert torch.equal(*scores)


def test_features_of_another_detector_tell_the_task(trained: nn.Module, data: dict, tmp_path: Path) -> None:
    first = LatentDensity(trained, "hidden", PLAIN, task="classification")
    features = first.extract(data["train"])
    second = LatentDensity(trained, "hidden", PLAIN).fit_features(features)
    x = data["test"][0][0]
    assert torch.equal(second(x).epistemic, first.fit_features(features)(x).epistemic)
    second.save(tmp_path / "detector")
    assert torch.equal(LatentDensity.load(tmp_path / "detector", trained)(x).prediction, first(x).prediction)


def test_features_with_a_variance_do_not_tell_where_it_is() -> None:
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    task = Regression(spread="columns", spread_is="log_variance")
    features = LatentDensity(net, "0", task=task).extract([X])
    with pytest.raises(ValueError, match=r"pass task=Regression\(spread="):
        LatentDensity(net, "0").fit_features(features)


def test_nothing_to_fit_to_or_to_calibrate_with() -> None:
    detector = LatentDensity(Normalising(in_place=False), "hidden", PLAIN, task="classification")
    with pytest.raises(ValueError, match="nothing to fit to: no input came"):
        detector.fit([X[:0]])
    with pytest.raises(ValueError, match=r"nothing to fit to: .* all were held out"):
        detector.fit([X[:20]], holdout=0.9999)
    with pytest.raises(ValueError, match="nothing to calibrate with: no input came or was held out"):
        detector.fit(Loader(), calibration=[X[:0]])
