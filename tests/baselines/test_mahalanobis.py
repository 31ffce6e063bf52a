import copy

import pytest
import torch
from torch import nn

from hidden_uncertainty import LatentDensity, Reduce
from hidden_uncertainty.baselines.mahalanobis import Mahalanobis, RelativeMahalanobis


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


def test_moving_inputs_follows_the_gradient_by_hand(trained, data):
    x, epsilon = data["test"][0][0], 0.05
    plain = Mahalanobis(trained, "hidden", shrinkage=None).fit(data["train"])
    moving = Mahalanobis(trained, "hidden", shrinkage=None, epsilon=epsilon).fit(data["train"])
    exact = Mahalanobis(copy.deepcopy(trained).double(), "hidden", shrinkage=None)
    exact.fit([(x.double(), y) for x, y in data["train"]])
    steps = torch.empty_like(x)
    for i in range(2):  # differences, not autograd
        ahead, behind = x.double().clone(), x.double().clone()
        ahead[:, i] += 1e-4
        behind[:, i] -= 1e-4
        steps[:, i] = (exact(ahead).epistemic - exact(behind).epistemic).float().sign()
    moved, expected = moving(x).epistemic, plain(x - epsilon * steps).epistemic
    close = torch.isclose(moved, expected, rtol=1e-3, atol=1e-4)
    assert close.float().mean() > 0.97  # a difference across a ReLU's edge may have the other sign
    assert (moved < plain(x).epistemic).float().mean() > 0.9


def test_moving_inputs_works_in_inference_mode(trained, data):
    method = Mahalanobis(trained, ["body.0", "hidden"], epsilon=0.01).fit(data["train"])
    with torch.inference_mode():
        inside = method(data["far"])
    assert torch.equal(inside.epistemic, method(data["far"]).epistemic)


def test_a_dead_layer_has_no_gradient_but_a_score():
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    method = Mahalanobis(model, "1", task="classification", epsilon=0.1).fit([x])
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1)
    assert method(x[:3]).epistemic.isfinite().all()


class NoGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, x):
        with torch.no_grad():
            return self.layer(x)


def test_errors_say_what_to_do(trained, data):
    method = Mahalanobis(trained, "hidden", epsilon=0.1)
    features = method.extract(data["train"])
    with pytest.raises(ValueError, match="epsilon moves inputs"):
        method.fit_features(features, calibration=features)
    blind = Mahalanobis(NoGradient(), "layer", epsilon=0.1, task="classification").fit(data["train"])
    with pytest.raises(RuntimeError, match="no gradient comes from layer 'layer'"):
        blind(data["far"])
    with pytest.raises(ValueError, match="condition='label' needs"):
        Mahalanobis(trained, "hidden", condition="label").fit([x for x, _ in data["train"]])
    number = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match="Mahalanobis needs classes, but the network predicts numbers"):
        Mahalanobis(number, "0", task="regression").fit(data["train"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"epsilon": float("nan")}, "epsilon must be zero or more"),
        ({"shrinkage": "some"}, "shrinkage must be one of"),
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
    method = Mahalanobis(conv, {"0": Reduce("channels")}, task="classification", epsilon=0.01).fit(images.split(50))
    assert method.head.reductions["0"].dim == 4
    assert method(images[:5]).epistemic.shape == (5,)


def test_inputs_are_moved_by_what_a_layer_reads_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    x = torch.randn(300, 4)
    options = {"epsilon": 0.05, "task": "classification"}
    outputs = Mahalanobis(model, "1", **options).fit(x.split(100))
    inputs = Mahalanobis(model, {"2": Reduce(read="input")}, **options).fit(x.split(100))
    torch.testing.assert_close(inputs(x[:20]).epistemic, outputs(x[:20]).epistemic)
