from typing import Any

import pytest
import torch
from sklearn.covariance import OAS, EmpiricalCovariance, LedoitWolf
from torch import nn

from hidden_uncertainty import LatentDensity, Reduce
from hidden_uncertainty.baselines.mahalanobis import Mahalanobis, MahalanobisDistance, RelativeMahalanobis


def scores_by_hand(model, data, x, condition, relative):
    """Straight from the two papers, with matrix inverses."""
    model.eval()

    def hidden(v):
        return model.hidden(model.body(v)).detach().double()

    inputs, labels = (torch.cat(parts) for parts in zip(*data["train"], strict=True))
    z, y = hidden(inputs), labels if condition == "label" else model(inputs).argmax(1)
    means = torch.stack([z[y == c].mean(0) for c in range(3)])
    rest = z - means[y]
    precision = torch.linalg.inv(rest.T @ rest / len(z) + 1e-6 * rest.square().mean() * torch.eye(6))
    away = hidden(x)[:, None] - means
    scores = torch.einsum("ncd,de,nce->nc", away, precision, away).amin(1)
    if relative:
        around = z - z.mean(0)
        background = torch.linalg.inv(around.T @ around / len(z) + 1e-6 * around.square().mean() * torch.eye(6))
        away = hidden(x) - z.mean(0)
        scores = scores - torch.einsum("nd,de,ne->n", away, background, away)
    model.train()
    return scores


@pytest.mark.parametrize("condition", ["prediction", "label"])
@pytest.mark.parametrize("kind", [Mahalanobis, RelativeMahalanobis])
def test_scores_are_those_of_the_papers(trained, data, kind, condition):
    method = kind(trained, "hidden", condition=condition, shrinkage=None).fit(data["train"])
    expected = scores_by_hand(trained, data, data["test"][0][0], condition, kind is RelativeMahalanobis)
    assert torch.allclose(method(data["test"][0][0]).epistemic.double(), expected, rtol=1e-3, atol=1e-4)


def test_features_may_be_those_of_another_detector(trained, data):
    train = LatentDensity(trained, ["body.0", "hidden"]).extract(data["train"])
    found = RelativeMahalanobis(trained, "hidden").fit_features(train).predict(data["test"])
    expected = RelativeMahalanobis(trained, "hidden").fit(data["train"]).predict(data["test"])
    assert torch.allclose(found.epistemic, expected.epistemic, rtol=1e-4, atol=1e-4)


def test_the_mean_standardises_layers_by_their_scores_on_training_data(trained, data):
    method = Mahalanobis(trained, ["body.0", "hidden"]).fit(data["train"])
    layers, seen = method.predict(data["test"]).layers, method.predict(data["train"]).layers
    parts = [(layers[n].epistemic - seen[n].epistemic.mean()) / seen[n].epistemic.std() for n in seen]
    assert torch.allclose(method.predict(data["test"]).epistemic, (parts[0] + parts[1]) / 2, atol=1e-4)


def test_errors_say_what_to_do(trained, data):
    with pytest.raises(ValueError, match="condition='label' needs"):
        Mahalanobis(trained, "hidden", condition="label").fit([x for x, _ in data["train"]])
    number = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match="Mahalanobis needs classes, but the network predicts numbers"):
        Mahalanobis(number, "0", task="regression").fit(data["train"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shrinkage": "some"}, "shrinkage must be 'auto', one of"),
        ({"ridge": -1.0}, "ridge must be zero or more"),
        ({"condition": "hope"}, "condition must be"),
        ({"combine": "median"}, "combine must be"),
        ({"combine": {"out": 1.0}}, r"combine has weights for \['out'\]; name some of the layers \['hidden'\]"),
    ],
)
def test_options_are_checked(trained, options, text):
    with pytest.raises(ValueError, match=text):
        Mahalanobis(trained, "hidden", **options)


def test_unknown_options_are_refused(trained):
    with pytest.raises(TypeError, match="takes no argument 'layer'"):
        Mahalanobis(trained, "hidden", layer="out")


def test_maps_are_averaged_over_positions():
    conv = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    images = torch.randn(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    method = Mahalanobis(conv, {"0": Reduce("channels")}, task="classification").fit(images.split(50))
    assert next(method.read(images[:5]).rows("0")).z.shape == (5, 4)
    assert method(images[:5]).epistemic.shape == (5,)


@pytest.mark.parametrize(
    ("shrinkage", "reference"), [(None, EmpiricalCovariance), ("ledoit-wolf", LedoitWolf), ("oas", OAS)]
)
def test_distances_are_those_of_scikit_learn(shrinkage: Any, reference: type[EmpiricalCovariance]) -> None:
    generator = torch.Generator().manual_seed(0)
    y, mix = torch.arange(300) % 3, torch.randn(6, 6, generator=generator)
    z = torch.randn(300, 6, generator=generator) @ mix + 4 * torch.eye(3, 6)[y]
    means = torch.stack([z[y == c].mean(0) for c in range(3)])
    covariance = reference(assume_centered=True).fit((z - means[y]).double().numpy())
    expected = torch.stack([torch.from_numpy(covariance.mahalanobis((z - m).numpy())) for m in means], 1)
    method: Any = MahalanobisDistance(shrinkage, 0.0, False)
    found = method.fit(z, torch.tensor([2, 7, 90])[y], None).measure(z.double(), y)
    torch.testing.assert_close(found, expected.amin(1), rtol=1e-4, atol=0)


def test_a_singular_covariance_is_an_error() -> None:
    z, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    method: Any = MahalanobisDistance(None, 0.0, False)
    with pytest.raises(ValueError, match=r"singular.*raise ridge, set shrinkage"):
        method.fit(torch.cat([z, z], 1), y, None)
