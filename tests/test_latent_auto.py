"""`LatentDensity(model)`, with nothing to choose."""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels, Reduce, Uncertainty
from hidden_uncertainty.scoring.outputs import GENMethod

LAYERS = ["0", "2", "6", "outputs"]


def draw(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three clusters in eight dimensions."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    x = torch.randn(n, 8, generator=generator)
    x[:, :3] += 3 * nn.functional.one_hot(y, 3)
    return x, y


@pytest.fixture(scope="module")
def model() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden = [part for width in (8, 16, 16) for part in (nn.Linear(width, 16), nn.ReLU())]
        network = nn.Sequential(*hidden, nn.Linear(16, 3))
        x, y = draw(2000, 1)
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
        for _ in range(60):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimiser.step()
    return network.eval()


@pytest.fixture(scope="module")
def detector(model: nn.Sequential) -> LatentDensity:
    fitted = LatentDensity(model).fit(draw(2000, 1)[0].split(500), calibration=draw(1500, 2)[0].split(500))
    fitted.threshold(0.05)
    return fitted


def area(known: Tensor, unknown: Tensor) -> float:
    label = torch.cat([torch.zeros(len(known)), torch.ones(len(unknown))])
    return float(roc_auc_score(label, torch.cat([known, unknown])))


def test_it_reads_the_head_two_layers_and_the_outputs(detector: LatentDensity) -> None:
    assert detector.layers == LAYERS and detector.unit == "nats" and detector.combine == "fisher"
    head = detector.terms["6"].reduce
    assert head.read == "input" and head.normalise
    assert not any(detector.terms[name].reduce.normalise for name in ("0", "2"))
    assert all(density.pooling == 10 for density in detector.fitted_densities.values())
    assert isinstance(detector.terms["outputs"].method, GENMethod)


@pytest.mark.parametrize(("classes", "largest"), [(2, 10), (3, 10), (100, 10), (250, 25)])
def test_of_many_classes_a_tenth_is_looked_at(classes: int, largest: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, classes, bias=False))
    x = torch.randn(600, 8)
    method = LatentDensity(net, task="classification").fit(x.split(200)).terms["outputs"].method
    assert isinstance(method, GENMethod) and method.largest == largest


def test_layers_weigh_as_far_as_they_know_the_classes(model: nn.Sequential, detector: LatentDensity) -> None:
    weights = detector.weights
    assert list(weights) == LAYERS and weights["outputs"] == 1 and weights["0"] < weights["6"] <= 1


def test_it_detects_what_the_outputs_are_sure_of(detector: LatentDensity) -> None:
    known = detector(draw(1000, 3)[0])
    far = detector(8 * torch.randn(500, 8, generator=torch.Generator().manual_seed(4)))
    outputs = area(known.layers["outputs"].epistemic, far.layers["outputs"].epistemic)
    assert area(known.epistemic, far.epistemic) > 0.99 > outputs


def test_parts_add_up_and_say_why(detector: LatentDensity) -> None:
    u = detector(torch.cat([draw(20, 3)[0], 30 * torch.ones(1, 8)]))
    parts = torch.stack([u.layers[name].part for name in LAYERS])
    torch.testing.assert_close(parts.sum(0), u.epistemic)
    assert u.why() == [LAYERS[i] for i in parts.argmax(0).tolist()]
    assert len(u[:3].why()) == 3 and len(Uncertainty.cat([u, u]).why()) == 42
    alone = LatentDensity(detector.model, "4", task="classification").fit(draw(300, 1)[0].split(100))
    with pytest.raises(RuntimeError, match="LatentDensity\\(model\\)"):
        alone(draw(3, 3)[0]).why()


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_false_alarms_are_as_asked_for(model: nn.Sequential, rate: float) -> None:
    train, alarms, tries = draw(600, 1)[0].split(300), 0, 0
    for seed in range(12):  # the promise is on average over calibration sets
        fitted = LatentDensity(model).fit(train, calibration=draw(450, 100 + seed)[0].split(450))
        fitted.threshold(rate)
        found = fitted(draw(400, 200 + seed)[0]).surprising
        alarms, tries = alarms + int(found.sum()), tries + len(found)
    # The calibration sets vary, which adds about 400 / 300 of the binomial variance.
    deviation = (tries * rate * (1 - rate) * (1 + 400 / 300)) ** 0.5
    assert abs(alarms - rate * tries) < 3 * deviation


def test_order_and_batches_change_nothing(model: nn.Sequential, detector: LatentDensity) -> None:
    x, unseen = draw(2000, 1)[0], draw(1500, 2)[0]
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    other = LatentDensity(model).fit(x[order].split(130), calibration=unseen.flip(0).split(77))
    new = draw(200, 3)[0]
    torch.testing.assert_close(other(new).epistemic, detector(new).epistemic, rtol=1e-3, atol=1e-3)
    assert other.weights == pytest.approx(detector.weights, abs=1e-2)


def test_unseen_data_are_split_by_content(detector: LatentDensity) -> None:
    fitted = detector._fitted()
    assert fitted.head.combination.unseen
    kept = len(fitted.head.calibration.scores)
    assert 850 < kept < 1150  # two thirds of 1,500
    features = detector.extract(draw(1500, 2)[0].split(500))
    part, order = features.keys() < 1 / 3, features.prediction.argsort()
    assert torch.equal(features[order].keys() < 1 / 3, part[order])
    assert int((~part).sum()) == kept


def test_without_unseen_data_it_learns_from_training_data(
    model: nn.Sequential, caplog: pytest.LogCaptureFixture
) -> None:
    x = draw(1000, 1)[0].split(250)
    plain = LatentDensity(model).fit(x)
    assert not plain._fitted().head.combination.unseen and plain(x[0]).p_value is None
    with caplog.at_level(logging.INFO, "hidden_uncertainty"):
        few = LatentDensity(model).fit(x, calibration=[draw(120, 2)[0]])
    assert not few._fitted().head.combination.unseen and "120 unseen inputs are too few" in caplog.text
    assert len(few._fitted().head.calibration.scores) == 120


def test_a_head_by_the_name_of_the_outputs(detector: LatentDensity, model: nn.Sequential, tmp_path: Path) -> None:
    names = [*map(str, range(len(model) - 1)), "outputs"]
    same = nn.Sequential(OrderedDict(zip(names, model, strict=True)))
    found = LatentDensity(same).fit(draw(2000, 1)[0].split(500), calibration=draw(1500, 2)[0].split(500))
    assert found.layers == ["0", "2", "layer outputs", "outputs"]
    new = draw(50, 3)[0]
    assert found(new).epistemic.equal(detector(new).epistemic)
    found.save(tmp_path / "file")
    assert LatentDensity.load(tmp_path / "file", same)(new).epistemic.equal(found(new).epistemic)


def test_files(detector: LatentDensity, tmp_path: Path) -> None:
    detector.save(tmp_path / "auto.safetensors")
    again = LatentDensity.load(tmp_path / "auto.safetensors", detector.model)
    new = draw(50, 3)[0]
    one, other = detector(new), again(new)
    assert torch.equal(one.epistemic, other.epistemic) and torch.equal(one.p_value, other.p_value)
    assert (
        one.why() == other.why() and again.weights == detector.weights and torch.equal(one.surprising, other.surprising)
    )
    again.fit(draw(600, 1)[0].split(300))  # the same layers
    assert again.layers == LAYERS


def test_features(detector: LatentDensity, model: nn.Sequential) -> None:
    train, unseen, new = (draw(n, seed)[0] for n, seed in ((2000, 1), (1500, 2), (40, 3)))
    fresh = LatentDensity(model)
    features = fresh.extract(train.split(500))
    fresh.fit_features(features, calibration=fresh.extract(unseen.split(500)))
    torch.testing.assert_close(fresh(new).epistemic, detector(new).epistemic, rtol=1e-4, atol=1e-4)


def test_a_generator_is_read_once(model: nn.Sequential, detector: LatentDensity) -> None:
    once = LatentDensity(model).fit(iter(draw(2000, 1)[0].split(500)), calibration=iter(draw(1500, 2)[0].split(500)))
    new = draw(20, 3)[0]
    torch.testing.assert_close(once(new).epistemic, detector(new).epistemic, rtol=1e-4, atol=1e-4)


def test_numbers_are_read_where_the_head_reads() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(600, 2)
    found = LatentDensity(network, task="regression").fit(x.split(200))
    named = LatentDensity(network, {"4": Reduce(read="input")}, task="regression").fit(x.split(200))
    assert found.layers == ["4"] and found.combine == "last"
    torch.testing.assert_close(found(x[:5]).epistemic, named(x[:5]).epistemic)


def test_maps_keep_twice_as_many_numbers_as_they_have_channels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 30, 3), nn.Tanh(), nn.Conv2d(30, 40, 3), nn.Tanh(), nn.Flatten(1, 3))
    model.extend([nn.Linear(640, 40), nn.Tanh(), nn.Linear(40, 3)])
    loader = torch.randn(300, 1, 8, 8).split(100)
    detector = LatentDensity(model.eval(), max_dim=40).fit(batch for batch in loader)  # read once: nothing is dropped
    assert [detector.head.terms[name].reduction.kept for name in ("0", "2", "7")] == [None] * 3
    with pytest.raises(TypeError, match="the loader is a generator, which can be read only once, but 2 passes"):
        LatentDensity(model, max_dim=39).fit(batch for batch in loader)


def test_many_classes_share_one_covariance() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 120))
    fitted = LatentDensity(network).fit(torch.randn(2000, 4).split(500))
    assert fitted.fitted_densities["2"].covariance == "pooled"


def test_a_fit_that_fails_leaves_what_there_was(model: nn.Sequential) -> None:
    fitted = LatentDensity(model).fit(draw(600, 1)[0].split(300))
    new = draw(5, 3)[0]
    before = fitted(new).epistemic
    with pytest.raises(ValueError, match="NaN"):
        fitted.fit([draw(300, 1)[0], torch.full((300, 8), torch.nan)])
    assert torch.equal(fitted(new).epistemic, before)
    empty = LatentDensity(model)
    with pytest.raises(RuntimeError, match="not fitted"):
        empty(new)


def test_what_does_not_go_with_it(model: nn.Sequential) -> None:
    with pytest.raises(ValueError, match="with pixels=, name a layer"):
        LatentDensity(model, pixels=Pixels())
    with pytest.raises(ValueError, match="leave reduce= out"):
        LatentDensity(model, reduce="channels")
    with pytest.raises(TypeError, match="takes one density"):
        LatentDensity(model, density={"0": GaussianMixture()})
    with pytest.raises(RuntimeError, match="combine='fisher'"):
        _ = LatentDensity(model, "4", task="classification").fit(draw(300, 1)[0].split(100)).weights


def test_probabilities_are_those_of_labelled_unseen_data(model: nn.Sequential) -> None:
    sure = nn.Sequential(*copy.deepcopy(model), nn.Linear(3, 3, bias=False)).eval()
    sure[-1].weight.data = 5 * torch.eye(3)  # five times too sure
    sure.requires_grad_(False)

    def pairs(n: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        x, y = draw(n, seed)
        y = torch.where(torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.9, y, y.flip(0))
        return list(zip(x.split(500), y.split(500), strict=True))

    fitted = LatentDensity(sure).fit(pairs(2000, 1), calibration=pairs(2000, 2))
    new = draw(1500, 3)[0]
    label = torch.cat([y for _, y in pairs(1500, 3)])
    u = fitted(new)
    assert u.probabilities.shape == (1500, 3) and u[:4].probabilities.shape == (4, 3)
    torch.testing.assert_close(u.probabilities.sum(1), torch.ones(1500))

    def loss(temperature: float) -> float:
        return float(nn.functional.cross_entropy(sure(new) / temperature, label))

    best = minimize_scalar(loss, bounds=(0.1, 50), method="bounded")
    found = float(nn.functional.nll_loss(u.probabilities.log(), label))
    assert found < best.fun + 0.02 < loss(1.0) - 0.5
    torch.testing.assert_close(u.aleatoric, torch.special.entr(sure(new).softmax(1)).sum(1), rtol=1e-3, atol=1e-5)
    plain = LatentDensity(sure).fit(pairs(1000, 1), calibration=draw(900, 2)[0].split(300))  # without labels
    torch.testing.assert_close(plain(new).probabilities, sure(new).softmax(1))


@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_inputs_that_are_too_large_are_seen_however_few_layers_there_are(hidden: int) -> None:
    torch.manual_seed(0)
    layers = [part for i in range(hidden) for part in (nn.Linear(16 if i else 8, 16), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Linear(16 if hidden else 8, 3)).eval()
    x = draw(1600, 1)[0]
    fitted = LatentDensity(network).fit(x[:1000].split(250), calibration=x[1000:].split(300))
    fitted.threshold(0.05)
    assert fitted(10 * draw(200, 2)[0]).surprising.float().mean() > 0.95
