"""Features that are extracted once, for many methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import Features, GaussianMixture, LatentDensity, Reduce, Regression
from hidden_uncertainty.baselines import Energy, Mahalanobis, NearestNeighbours
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


@pytest.mark.parametrize("build", [LatentDensity, Mahalanobis, NearestNeighbours])
def test_arrays_score_as_features_of_a_network_do(build: type, trained: nn.Module, data: dict, tmp_path: Path) -> None:
    with_network = build(trained, "hidden")
    parts = [with_network.extract(data[name]) for name in ("train", "unseen", "test")]
    arrays = [Features.from_arrays({"hidden": f.z["hidden"].numpy()}, f.prediction.numpy(), f.label) for f in parts]
    detector = build(None, "hidden").fit_features(*arrays[:2])
    with_network.fit_features(*parts[:2])
    found, expected = detector.predict_features(arrays[2]), with_network.predict_features(parts[2])
    assert torch.equal(found.epistemic, expected.epistemic) and torch.equal(found.p_value, expected.p_value)
    assert detector.threshold(false_alarm=0.05) == with_network.threshold(false_alarm=0.05)
    detector.save(tmp_path / "detector")
    again = build.load(tmp_path / "detector", None)
    assert torch.equal(again.predict_features(arrays[2]).surprising, with_network.predict_features(parts[2]).surprising)
    with pytest.raises(ValueError, match="detector"):
        build.load(tmp_path / "detector", trained)


def test_arrays_of_several_layers_and_of_numbers() -> None:
    rng = np.random.default_rng(0)
    x, other = rng.normal(size=(400, 3)), rng.normal(size=(400, 2)).astype(np.float32)
    y = (x[:, :1] > 0).astype(np.uint8)[:, 0]
    logits = np.stack([-x[:, 0], x[:, 0]], axis=1)
    both = Features.from_arrays({"a": x, "b": other, "outputs": logits}, y)
    far = Features.from_arrays({"a": x[:5] + 50, "b": other[:5] + 50, "outputs": logits[:5]}, y[:5])
    assert both.classes == 2 and not both.prediction.is_floating_point() and both.label is None
    for build in (LatentDensity, Mahalanobis):
        detector = build(None, ["a", "b"], combine="mean").fit_features(both[:300], calibration=both[300:])
        assert detector.predict_features(far).p_value.max() == 1 / 101, build
    torch.testing.assert_close(
        Energy(None).predict_features(both).epistemic, -torch.logsumexp(torch.as_tensor(logits), dim=1)
    )
    target = x[:, 0] + 0.1 * rng.normal(size=400)
    numbers = Features.from_arrays(x, x[:, :1], target)
    assert numbers.prediction.shape == (400,) and numbers.classes is None
    regression = LatentDensity(None, "z", condition="label").fit_features(numbers[:300], calibration=numbers[300:])
    low, high = regression.interval(regression.predict_features(numbers), coverage=0.9)
    inside = (low.numpy() <= target) & (target <= high.numpy())
    assert 0.85 < inside.mean() < 0.97


def test_arrays_are_copied_whatever_their_memory_is() -> None:
    x = np.arange(12.0).reshape(6, 2)
    x.flags.writeable = False
    features = Features.from_arrays(x[::-1], [0, 1, 0, 1, 0, 1])
    x.flags.writeable = True
    x[:] = 0
    assert features.z["z"][0].tolist() == [10.0, 11.0]
    assert Features.from_arrays(np.arange(12).reshape(6, 2), np.ones(6, dtype=bool)).z["z"].dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        (
            ([[1.0], [2.0]], ["cat", "dog"]),
            TypeError,
            r"'prediction': .* holds <U3, .* np.unique\(names, return_inverse=True",
        ),
        (([[1.0], [2.0]], [0, -1]), ValueError, r"whole numbers from 0, .* with \[-1, 0\]"),
        (([[1.0], [2.0]], [[0], [1]]), ValueError, r"prediction takes classes \(n,\), .*not torch.int64 \(2, 1\)"),
        (([1.0, 2.0], [0, 1]), ValueError, r"expected 'z' of shape \(2, d\), as prediction, got \(2,\)"),
        (({"a": [[1.0]]}, [0, 1]), ValueError, r"expected 'a' of shape \(2, d\)"),
        (([[1.0], [2.0]], [0, 1], [1]), ValueError, "a label for each of 2 predictions, got 1"),
        (([[1.0], [float("nan")]], [0, 1]), ValueError, "'z' has NaN or infinity for 1 of 2 inputs"),
    ],
)
def test_arrays_that_are_no_features(arguments: tuple, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        Features.from_arrays(*arguments)


def test_without_a_network_there_is_nothing_to_run() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)), rng.integers(2, size=200)
    detector = LatentDensity(None, "z", GaussianMixture(1)).fit_features(Features.from_arrays(x, y))
    inputs = torch.as_tensor(x).float()
    assert repr(detector).startswith("LatentDensity(NoNetwork, layers=['z']")
    for call in (detector, detector.distribution, detector.read):
        with pytest.raises(RuntimeError, match="built without a network, so it takes features, not inputs"):
            call(inputs)
    for use in (detector.fit, detector.predict, detector.extract, detector.calibrate):
        with pytest.raises(RuntimeError, match="call fit_features and predict_features"):
            use([inputs])
    with pytest.raises(ValueError, match=r"name the array, LatentDensity\(None, 'z'\)"):
        LatentDensity(None)
    for take in (detector.fit_features, detector.predict_features):
        with pytest.raises(TypeError, match=r"expected Features, got ndarray: .*Features.from_arrays\(z, prediction"):
            take(x)
    with pytest.raises(ValueError, match="or give arrays of the same width"):
        detector.predict_features(Features.from_arrays(x[:, :2], y))
