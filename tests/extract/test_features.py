"""Features that are extracted once, for many methods."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Reduce, Regression
from hidden_uncertainty.detector import Detector
from hidden_uncertainty.scoring.bayes import DensityMethod
from hidden_uncertainty.scoring.terms import Term


class Calls(nn.Module):
    """Counts how often it is called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.count = model, 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.model(x)


def test_features_once_densities_many(trained: nn.Module, data: dict) -> None:
    model = Calls(trained)
    detector = LatentDensity(model, ["model.body", "model.hidden"], max_dim=5)
    train = detector.extract(data["train"])
    detector.fit_features(train)
    unseen, test = detector.extract(data["unseen"]), detector.extract(data["test"])
    count = model.count
    for components in (1, 3):
        other = LatentDensity(model, ["model.body", "model.hidden"], GaussianMixture(components), task="classification")
        u = other.fit_features(train, calibration=unseen).predict_features(test)
        assert model.count == count
        torch.testing.assert_close(u.epistemic, other(torch.cat([x for x, _ in data["test"]])).epistemic)
        count = model.count
    whole = LatentDensity(model, ["model.body", "model.hidden"], GaussianMixture(3), max_dim=5)
    whole.fit(data["train"], calibration=data["unseen"])
    found = whole.predict(data["test"])
    torch.testing.assert_close(found.epistemic, u.epistemic)
    assert (found.p_value - u.p_value).abs().max() < 4.01 / 501  # ties are measured with the network, or without it
    with pytest.raises(ValueError, match="the features have no layer"):
        LatentDensity(model, "model.out").fit_features(train)


def test_features_of_another_place_are_refused(trained: nn.Module, data: dict, tmp_path: Path) -> None:
    features = LatentDensity(trained, "hidden", reduce=Reduce(read="input")).extract(data["train"])
    with pytest.raises(ValueError, match=r"features of \['hidden'\] were read elsewhere .* same read= and select="):
        LatentDensity(trained, "hidden").fit_features(features)
    other = Detector(trained, [Term(DensityMethod(GaussianMixture(1)), "body", name="hidden")], task="classification")
    with pytest.raises(ValueError, match=r"features of \['hidden'\] were read elsewhere"):
        LatentDensity(trained, "hidden").fit_features(other.extract(data["train"]))
    # How they were reduced belongs to the features, in files too.
    short = LatentDensity(trained, "hidden", reduce=Reduce(max_dim=4, normalise=True)).extract(data["train"])
    detector = LatentDensity(trained, "hidden", GaussianMixture(1)).fit_features(short)
    detector.save(tmp_path / "file")
    x = data["test"][0][0]
    assert torch.equal(LatentDensity.load(tmp_path / "file", trained)(x).epistemic, detector(x).epistemic)


def test_features_reduced_differently_are_not_mixed(trained: nn.Module, data: dict) -> None:
    detector = LatentDensity(trained, "body", GaussianMixture(1), max_dim=4)
    train, unseen = detector.extract(data["train"]), detector.extract(data["unseen"])
    assert train.reductions["body"].same_as(unseen.reductions["body"])
    detector.fit_features(train, calibration=unseen)
    foreign = LatentDensity(trained, "body", max_dim=4).extract(data["test"])
    for use in (
        lambda: detector.predict_features(foreign),
        lambda: LatentDensity(trained, "body").fit_features(train, calibration=foreign),
    ):
        with pytest.raises(ValueError, match=r"layer \['body'\] were reduced otherwise"):
            use()
    again = LatentDensity(trained, "body", max_dim=4).extract(data["train"])
    assert len(detector.predict_features(again)) == 600


def test_features_of_another_detector_tell_the_task(trained: nn.Module, data: dict, tmp_path: Path) -> None:
    first = LatentDensity(trained, "hidden", GaussianMixture(1), task="classification")
    features = first.extract(data["train"])
    second = LatentDensity(trained, "hidden", GaussianMixture(1)).fit_features(features)
    x = data["test"][0][0]
    assert torch.equal(second(x).epistemic, first.fit_features(features)(x).epistemic)
    second.save(tmp_path / "detector")
    assert torch.equal(LatentDensity.load(tmp_path / "detector", trained)(x).prediction, first(x).prediction)


def test_features_carry_a_variance_and_where_it_is() -> None:
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    features = LatentDensity(net, "0", task=Regression(spread="columns", spread_is="log_variance")).extract([x])
    other = LatentDensity(net, "0").fit_features(features)
    assert torch.equal(other.predict_features(features).variance, features.variance)
    torch.testing.assert_close(other(x[:5]).variance, features.variance[:5])
