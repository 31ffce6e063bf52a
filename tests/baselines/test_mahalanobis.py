import copy

import pytest
import torch
from sklearn.covariance import EmpiricalCovariance, LedoitWolf
from torch import nn

from hidden_uncertainty import Reduce
from hidden_uncertainty.baselines.mahalanobis import Gaussians, Mahalanobis, RelativeMahalanobis


def three_classes(n: int = 300, dim: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    mix = torch.randn(dim, dim, generator=generator)
    return torch.randn(n, dim, generator=generator) @ mix + 4 * torch.eye(3, dim)[y], y


@pytest.mark.parametrize(("shrinkage", "reference"), [(None, EmpiricalCovariance), ("ledoit-wolf", LedoitWolf)])
def test_distances_are_those_of_scikit_learn(shrinkage, reference):
    z, y = three_classes()
    means = torch.stack([z[y == c].mean(0) for c in range(3)])
    covariance = reference(assume_centered=True).fit((z - means[y]).double().numpy())
    expected = torch.stack([torch.from_numpy(covariance.mahalanobis((z - m).numpy())) for m in means], 1)
    assert torch.allclose(Gaussians(z, y, shrinkage=shrinkage, ridge=0.0)(z.double()), expected, rtol=1e-4)


def test_classes_need_not_be_consecutive():
    z, y = three_classes()
    same = Gaussians(z, torch.tensor([7, 2, 90])[y], shrinkage=None, ridge=1e-6)(z.double())
    assert torch.allclose(same[:, [1, 0, 2]], Gaussians(z, y, shrinkage=None, ridge=1e-6)(z.double()))


def test_a_singular_covariance_is_an_error_that_says_what_to_do():
    z, y = three_classes(dim=4)
    with pytest.raises(ValueError, match=r"singular.*raise ridge, set shrinkage"):
        Gaussians(torch.cat([z, z], 1), y, shrinkage=None, ridge=0.0)


def scores_by_hand(model, data, x, condition, relative):
    """Straight from the two papers, with matrix inverses."""
    model.eval()

    def hidden(v):
        return model.hidden(model.body(v)).detach().double()

    inputs, labels = (torch.cat(parts) for parts in zip(*data["train"], strict=True))
    z, y = hidden(inputs), labels if condition == "label" else model(inputs).argmax(1)
    means = torch.stack([z[y == c].mean(0) for c in range(3)])
    rest = z - means[y]
    precision = torch.linalg.inv(rest.T @ rest / len(z) + 1e-6 * torch.eye(6))
    away = hidden(x)[:, None] - means
    scores = torch.einsum("ncd,de,nce->nc", away, precision, away).amin(1)
    if relative:
        around = z - z.mean(0)
        background = torch.linalg.inv(around.T @ around / len(z) + 1e-6 * torch.eye(6))
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


@pytest.mark.parametrize("kind", [Mahalanobis, RelativeMahalanobis])
def test_far_inputs_are_uncertain_and_finite(trained, data, kind):
    method = kind(trained, ["body.0", "hidden"]).fit(data["train"])
    known, far = method.predict(data["test"]), method(data["far"])
    assert far.epistemic.min() > known.epistemic.quantile(0.99)
    with torch.no_grad():
        trained.body[0].weight.mul_(1e15)
    assert method(data["far"] * 1e15).epistemic.isfinite().all()


def test_features_extracted_once_serve_both(trained, data):
    first = Mahalanobis(trained, "hidden")
    train, test = first.extract(data["train"]), first.extract(data["test"])
    for kind in (Mahalanobis, RelativeMahalanobis):
        again = kind(trained, "hidden").fit_features(train).predict_features(test)
        whole = kind(trained, "hidden").fit(data["train"]).predict(data["test"])
        assert torch.allclose(again.epistemic, whole.epistemic, rtol=1e-4, atol=1e-4)
        assert torch.equal(again.prediction, whole.prediction)
    with pytest.raises(ValueError, match="no layer"):
        Mahalanobis(trained, "out").fit_features(train)


def test_layers_are_combined_as_asked(trained, data):
    names = ["body.0", "hidden"]
    methods = {
        str(how): Mahalanobis(trained, names, combine=how).fit(data["train"])
        for how in ("mean", "last", "body.0", {"body.0": 2.0, "hidden": 0.5})
    }
    results = {how: method.predict(data["test"]) for how, method in methods.items()}
    layers = {name: results["mean"].layers[name].epistemic for name in names}
    seen = methods["mean"].predict(data["train"]).layers
    standard = [(layers[n] - seen[n].epistemic.mean()) / seen[n].epistemic.std() for n in names]
    assert torch.allclose(results["mean"].epistemic, (standard[0] + standard[1]) / 2, atol=1e-4)
    assert torch.equal(results["last"].epistemic, layers["hidden"])
    assert torch.equal(results["body.0"].epistemic, layers["body.0"])
    weighted = results["{'body.0': 2.0, 'hidden': 0.5}"].epistemic
    assert torch.allclose(weighted, 2 * layers["body.0"] + 0.5 * layers["hidden"])


def test_moving_inputs_follows_the_gradient_by_hand(trained, data):
    x, epsilon = data["test"][0][0], 0.05
    plain = Mahalanobis(trained, "hidden", shrinkage=None).fit(data["train"])
    moving = Mahalanobis(trained, "hidden", shrinkage=None, epsilon=epsilon).fit(data["train"])
    steps = torch.empty_like(x)
    for i in range(2):  # differences, not autograd
        ahead, behind = x.double().clone(), x.double().clone()
        ahead[:, i] += 1e-4
        behind[:, i] -= 1e-4
        double = copy.deepcopy(trained).double()
        exact = Mahalanobis(double, "hidden", shrinkage=None)
        exact.parts, exact._reductions, exact.extractor.task = plain.parts, plain._reductions, plain.task
        steps[:, i] = (exact(ahead).epistemic - exact(behind).epistemic).float().sign()
    moved, expected = moving(x).epistemic, plain(x - epsilon * steps).epistemic
    close = torch.isclose(moved, expected, rtol=1e-3, atol=1e-4)
    assert close.float().mean() > 0.97  # a difference across a ReLU's edge may have the other sign
    assert (moved < plain(x).epistemic).float().mean() > 0.9


def test_moving_inputs_leaves_no_trace(trained, data):
    method = Mahalanobis(trained, ["body.0", "hidden"], epsilon=0.01).fit(data["train"])
    for parameter in list(trained.parameters())[::2]:
        parameter.requires_grad_(False)
    before = copy.deepcopy(trained.state_dict())
    x = data["test"][0][0].clone()
    kept = x.clone()
    with torch.inference_mode():
        inside = method(x)
    outside = method(x)
    assert torch.equal(inside.epistemic, outside.epistemic)
    assert not outside.epistemic.requires_grad
    assert torch.equal(x, kept) and not x.requires_grad
    assert all(parameter.grad is None for parameter in trained.parameters())
    assert [parameter.requires_grad for parameter in trained.parameters()] == [False, True] * 4
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    assert all(module.training and not module._forward_hooks for module in trained.modules())


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
    with pytest.raises(RuntimeError, match=r"Mahalanobis is not fitted: call fit\(loader\)"):
        method(data["far"])
    features = method.extract(data["train"])
    with pytest.raises(ValueError, match="epsilon moves inputs"):
        method.fit_features(features).predict_features(features)
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
        ({"ridge": -1.0}, "ridge must be zero or more"),
        ({"epsilon": float("nan")}, "epsilon must be zero or more"),
        ({"shrinkage": "some"}, "shrinkage must be one of"),
        ({"condition": "hope"}, "condition must be"),
        ({"combine": "median"}, "combine must be"),
        ({"combine": {"out": 1.0}}, "name the same ones"),
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
    assert method._reductions["0"].dim == 4
    assert method(images[:5]).epistemic.shape == (5,)
