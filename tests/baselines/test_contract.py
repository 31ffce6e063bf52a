"""What every method keeps to, as the table of abilities says. A new one is added with a line in BUILD."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels, baselines
from hidden_uncertainty.abilities import ABILITIES
from hidden_uncertainty.detector import Detector
from hidden_uncertainty.scoring.bayes import DensityMethod
from hidden_uncertainty.scoring.outputs import EnergyMethod, EntropyMethod
from hidden_uncertainty.scoring.terms import Term
from ties import near_ties

FIELDS = ("epistemic", "aleatoric", "log_aleatoric", "p_value")


class Kind(NamedTuple):
    build: Callable[..., Detector]  # of (model, layers="hidden", **options)
    layers: bool = True  # reads layers
    fits: bool = True  # needs fit; methods on outputs alone do not
    far: bool = True  # inputs far from all data score higher; else at least those between classes do
    random: bool = False  # a result depends on an input's place in its batch
    single: bool = False  # takes one tensor, no keywords


def on(method, **settings):
    """A method on layers."""
    return lambda model, layers="hidden", **options: method(model, layers, **settings, **options)


def whole(method):
    """A method that looks at no layer."""
    return lambda model, layers="", **options: method(model, **options)


def terms(model, layers="hidden", **options):
    """A density per layer, and the energy of the outputs."""
    names = [layers] if isinstance(layers, str) else layers
    some = [Term(DensityMethod(GaussianMixture(1)), name) for name in names]
    return Detector(model, [*some, Term(EnergyMethod())], **{"combine": "mean", **options})


def outputs(model, **options):
    """Two terms that have nothing to fit but what makes them comparable."""
    return Detector(model, [Term(EnergyMethod(), name="a"), Term(EntropyMethod(), name="b")], combine="mean", **options)


def ensemble(model, **options):
    """Three members: the model, and two in which another half of the hidden units counts double."""
    members = [model, copy.deepcopy(model), copy.deepcopy(model)]
    with torch.no_grad():
        for half, member in enumerate(members[1:]):
            member.out.weight[:, half::2] *= 2
    return baselines.DeepEnsemble(members, **options)


class Nearest:
    """A detector as those of pytorch-ood: the distance to the nearest class mean."""

    def fit_features(self, z, y):
        self.means = torch.stack([z[y == c].mean(0) for c in y.unique()])

    def predict_features(self, z):
        return (z[:, None] - self.means).norm(dim=2).amin(1)


# Outputs alone say nothing of distance: far from all data a network is as sure as it can be.
OUTPUTS = {"layers": False, "fits": False, "far": False}
BUILD: dict[str, Kind] = {
    "Detector": Kind(terms),
    "Detector, outputs alone": Kind(whole(outputs), layers=False, far=False),
    "LatentDensity": Kind(on(LatentDensity, density=GaussianMixture(1))),
    "Mahalanobis": Kind(on(baselines.Mahalanobis)),
    "RelativeMahalanobis": Kind(on(baselines.RelativeMahalanobis), far=False),
    "NearestNeighbours": Kind(on(baselines.NearestNeighbours, k=5, normalise=False)),
    "NearestNeighbours, normalised": Kind(on(baselines.NearestNeighbours, k=5), far=False),
    "SoftmaxEntropy": Kind(whole(baselines.SoftmaxEntropy), **OUTPUTS),
    "MaxProbability": Kind(whole(baselines.MaxProbability), **OUTPUTS),
    "Energy": Kind(whole(partial(baselines.Energy, temperature=2.0)), **OUTPUTS),
    "GEN": Kind(whole(baselines.GEN), **OUTPUTS),
    "DeepEnsemble": Kind(whole(ensemble), **OUTPUTS),
    "MCDropout": Kind(whole(baselines.MCDropout), random=True, **OUTPUTS),
    "PytorchOOD": Kind(whole(partial(baselines.PytorchOOD, lambda x: x.abs().amax(1))), False, fits=False, single=True),
    "PytorchOODFeatures": Kind(on(partial(baselines.PytorchOODFeatures, Nearest()), condition="prediction")),
}


@pytest.fixture(params=BUILD, scope="module")
def name(request):
    return request.param


@pytest.fixture(scope="module")
def kind(name):
    return BUILD[name]


@pytest.fixture
def able(name):
    return ABILITIES[name.partition(",")[0]]


@pytest.fixture
def fitted(fitted_once):
    """A fitted method, with a model of its own; a copy for each test."""
    return copy.deepcopy(fitted_once)


@pytest.fixture(scope="module")
def fitted_once(kind, trained_once, data_once):
    model, data = copy.deepcopy((trained_once, data_once))
    return kind.build(model).fit(data["train"], calibration=data["unseen"])


def close(one, other, rtol=0.0, atol=0.0, heads=()):
    """All alike; p-values may differ by as many ranks as there are known scores that such scores nearly tie with."""
    torch.testing.assert_close(one.prediction, other.prediction, rtol=rtol, atol=atol)
    assert list(one.layers) == list(other.layers)
    known = [[head.calibration, *(head.terms[name].calibration for name in one.layers)] for head in heads]
    for i, (a, b) in enumerate([(one, other), *((one.layers[name], other.layers[name]) for name in one.layers)]):
        assert a.threshold == b.threshold
        for field in FIELDS:
            if field == "p_value" and known:
                near = sum(near_ties(b.epistemic, each[i], rtol, atol) for each in known)
                ranks = (a.p_value - b.p_value).abs() * (len(known[0][i].scores) + 1)
                assert (ranks <= near + 1e-6).all()
            else:
                torch.testing.assert_close(getattr(a, field), getattr(b, field), rtol=rtol, atol=atol)


def reach(known, calibration):
    """Up to where a new score ties with each known one."""
    usual = known.abs().median() or known.abs().max()
    return known + calibration.margin * known.abs().maximum(usual)


def p_values(known, scores, calibration):
    exact = 1 + (known >= scores[:, None]).sum(1)
    counted = 1 + (reach(known, calibration) >= scores[:, None]).sum(1)
    assert (counted - exact).max() <= 0.02 * len(known)  # ties reach not far
    return counted.double() / (len(known) + 1)


def snapshot(models):
    found = []
    for model in models:
        modules = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
        parameters = [(p.requires_grad, None if p.grad is None else p.grad.tolist()) for p in model.parameters()]
        found.append(({key: value.tolist() for key, value in model.state_dict().items()}, modules, parameters))
    return found


def test_every_method_is_in_the_table_and_here():
    assert {name.partition(",")[0] for name in BUILD} == set(ABILITIES)
    exported = [kind for kind in map(vars(baselines).get, baselines.__all__) if isinstance(kind, type)]
    assert {kind.__name__ for kind in exported if issubclass(kind, Detector)} <= set(ABILITIES)


def test_scores(kind, fitted, data):
    assert repr(fitted).startswith(f"{type(fitted).__name__}(") and "calibrated: unseen" in repr(fitted) and fitted.unit
    u = fitted.predict([*data["test"], data["far"], 1e20 * data["far"]])
    assert list(u.layers) == fitted.layers
    for scores in (u, *u.layers.values()):
        assert scores.p_value is not None
        for values in (getattr(scores, field) for field in FIELDS if getattr(scores, field) is not None):
            assert values.shape == (410,) and values.device.type == "cpu" and values.dtype.itemsize >= 4
            assert values.isfinite().all() and not values.requires_grad
    assert not u.prediction.is_floating_point()
    assert u.epistemic.max() > u.epistemic.min()
    x, y = data["test"][0]
    close(fitted.predict([(x, y)]), fitted(x))
    close(fitted.predict([x]), fitted(x))
    with pytest.raises(TypeError, match="one tensor") if kind.single else nullcontext():
        close(fitted(x=x), fitted(x))


def test_uncertain_inputs_score_higher(kind, fitted, data):
    usual = fitted.predict(data["test"]).epistemic
    if kind.far:
        assert fitted(data["far"]).epistemic.min() > usual.quantile(0.95)
    else:
        between = torch.tensor([[0.0, -1.0], [1.0, 0.5], [-1.0, 0.5]])  # half way from class to class
        assert fitted(between).epistemic.mean() > usual.mean()


def test_batch_by_batch_as_together(kind, fitted, data):
    x = data["test"][0][0][:60]
    for size in (60,) if kind.random else (1, 7):
        close(fitted.predict(x.split(size)), fitted(x), rtol=1e-4, atol=1e-5, heads=[fitted.head])


def test_labels_are_not_needed_and_all_is_the_same_again(kind, fitted, trained, data):
    state = torch.get_rng_state()
    loaders = [[x for x, _ in data[part]] for part in ("train", "unseen")]
    close(kind.build(trained).fit(*loaders).predict(data["test"]), fitted.predict(data["test"]))
    assert torch.equal(torch.get_rng_state(), state)


def test_p_values_and_thresholds(name, kind, fitted, data):
    with pytest.raises(RuntimeError, match="no threshold was set"):
        _ = fitted(data["far"]).surprising
    threshold = fitted.threshold(false_alarm=0.1)
    known, u = fitted.predict(data["unseen"]), fitted.predict(data["test"])
    assert u.threshold == threshold
    head = fitted.head
    parts = [(known.layers[key], u.layers[key], head.terms[key].calibration) for key in u.layers]
    for some, scores, calibration in [(known, u, head.calibration), *parts]:
        assert 1e-6 <= calibration.margin < 1e-3
        assert torch.equal(scores.p_value, p_values(some.epistemic, scores.epistemic, calibration))
        assert torch.equal(scores.surprising, scores.p_value <= 0.1)
        assert scores.surprising.float().mean() < 0.16
        assert scores.surprising.float().mean() > 0.05
    again = fitted.calibrate(data["test"]).predict(data["test"])
    assert fitted.calibrated == "unseen" and again.threshold is None
    assert torch.equal(again.p_value, p_values(again.epistemic, again.epistemic, fitted.head.calibration))
    assert torch.equal(again.epistemic, u.epistemic)


def test_holdout(kind, trained, data):
    method = kind.build(trained)
    with pytest.warns(UserWarning, match="come without their guarantee") as caught:
        method.fit(data["train"], holdout=0.3)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert method.calibrated == "holdout" and 140 < len(method.head.calibration.scores) < 220
    method.threshold(0.05)
    before = method.predict(data["test"])
    for wrong, text in ((1e-12, "nothing to calibrate with"), (0.0, "between 0 and 1"), (1.5, "between 0 and 1")):
        with pytest.raises(ValueError, match=text):
            method.fit(data["train"], holdout=wrong)
    with pytest.raises(ValueError, match="calibration or holdout, not both"):
        method.fit(data["train"], data["unseen"], holdout=0.3)
    close(method.predict(data["test"]), before)  # what failed has changed nothing


@pytest.mark.parametrize("training", [True, False])
def test_models_and_inputs_are_what_they_were(kind, training, trained, data):
    trained.train(training)
    trained.hidden.weight.requires_grad_(False)
    trained.out.weight.grad = torch.ones_like(trained.out.weight)
    method = kind.build(trained)
    models = getattr(method, "models", [trained])
    before, inputs = snapshot(models), [x.clone() for x, _ in data["test"]]
    method.fit(data["train"], calibration=data["unseen"]).calibrate(data["test"]).threshold(0.1)
    method.predict(data["test"])
    method(data["far"])
    assert snapshot(models) == before
    assert all(torch.equal(x, copied) for (x, _), copied in zip(data["test"], inputs, strict=True))
    with pytest.raises((RuntimeError, ValueError), match="mat1 and mat2 shapes"):
        method(torch.zeros(3, 5))
    assert snapshot(models) == before


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-4), (torch.bfloat16, 0.5)])
def test_models_of_other_precisions(kind, dtype, rtol, fitted, trained, data):
    train, unseen, test = ([(x.to(dtype), y) for x, y in data[part]] for part in ("train", "unseen", "test"))
    expected = fitted.predict(data["test"]).epistemic
    u = kind.build(copy.deepcopy(trained).to(dtype)).fit(train, unseen).predict(test)
    assert u.epistemic.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert u.epistemic.isfinite().all()
    if kind.random:  # masks differ with the precision
        assert 0.5 < (u.epistemic.mean() / expected.mean()).item() < 2
    else:
        scale = expected.std().item() + expected.abs().mean().item()
        torch.testing.assert_close(u.epistemic.double(), expected.double(), rtol=rtol, atol=rtol * scale)


def test_unfitted(able, kind, trained, data):
    method = kind.build(trained)
    if kind.fits:
        assert "not fitted" in repr(method)
        for call in [method, method.predict, method.calibrate, method.threshold, *[method.save] * able.save]:
            with pytest.raises(RuntimeError, match=rf"this {type(method).__name__} is not fitted: call fit\("):
                call(data["test"])
    else:
        fitted = kind.build(trained).fit(data["train"])
        close(method.predict(data["test"]), fitted.predict(data["test"]))
        with pytest.raises(RuntimeError, match="nothing to choose a threshold from"):
            fitted.threshold(0.1)
        assert method.calibrate(data["unseen"]).predict(data["test"]).p_value is not None


def test_files(able, fitted, trained, data, tmp_path):
    path, own = tmp_path / "detector.safetensors", type(fitted)
    fitted.threshold(0.1)
    if not able.save:
        with pytest.raises(NotImplementedError, match=f"{own.__name__} cannot be saved"):
            fitted.save(path)
        return
    fitted.save(path)
    expected = fitted.predict(data["test"])
    for again in (Detector.load(path, trained), own.load(path, trained)):
        assert type(again) is own and repr(again) == repr(fitted) and again.unit == fitted.unit
        close(again.predict(data["test"]), expected, rtol=1e-6, atol=1e-6)
    again.fit(data["train"], calibration=data["unseen"]).threshold(0.1)
    close(again.predict(data["test"]), expected, rtol=1e-6, atol=1e-6)
    other = baselines.Energy if own is LatentDensity else LatentDensity
    with pytest.raises(ValueError, match=rf"holds {own.__name__}, not {other.__name__}: use {own.__name__}\.load"):
        other.load(path, trained)


def test_several_labels(able, kind, trained, data, tmp_path):
    """The three outputs as logits of labels."""
    net = copy.deepcopy(trained).eval()
    loaders = [[(x, (net(x) > 0).float()) for x, _ in data[part]] for part in ("train", "unseen", "test")]
    if not able.labels:
        with pytest.raises(NotImplementedError, match=r"^\w+ is not for several labels per input: use LatentDensity"):
            kind.build(trained, task="multi-label").fit(*loaders[:2])
        return
    method = kind.build(trained, task="multi-label").fit(*loaders[:2])
    method.threshold(0.1)
    u = method.predict(loaders[2])
    assert torch.equal(u.prediction, torch.cat([label.long() for _, label in loaders[2]]))
    assert u.epistemic.shape == (400,) and u.epistemic.isfinite().all() and 0.02 < u.surprising.float().mean() < 0.18
    if able.save:
        method.save(tmp_path / "detector")
        close(type(method).load(tmp_path / "detector", trained).predict(loaders[2]), u, rtol=1e-6, atol=1e-6)
    if able.features:
        again = kind.build(trained, task="multi-label")
        again.fit_features(again.extract(loaders[0]), again.extract(loaders[1]))
        found = again.predict_features(again.extract(loaders[2]))
        expected = method.calibrate(loaders[1]).predict(loaders[2])
        close(found, expected, rtol=1e-4, atol=1e-5, heads=[method.head, again.head])


def test_features(able, kind, fitted, trained, data):
    method = kind.build(trained)
    if not able.features:
        for call in (method.extract, method.fit_features, method.predict_features):
            with pytest.raises(NotImplementedError, match=f"{type(method).__name__} scores inputs, not features"):
                call(data["train"])
        return
    train, unseen, test = (method.extract(data[part]) for part in ("train", "unseen", "test"))
    expected = fitted.predict(data["test"])
    found = method.fit_features(train, calibration=unseen).predict_features(test)
    # Ties are measured on rows of the features, not on the network.
    close(found, expected, rtol=1e-4, atol=1e-5, heads=[method.head, fitted.head])
    close(method.predict(data["test"]), expected, rtol=1e-4, atol=1e-5, heads=[method.head, fitted.head])
    with pytest.raises(ValueError, match="the features have no layer"):
        baselines.Mahalanobis(trained, "out").fit_features(train)


class Segments(nn.Module):
    """A class for every pixel, from half of the resolution."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1, stride=2)
        self.drop, self.out = nn.Dropout(0.3), nn.Conv2d(6, 3, 1)

    def forward(self, x):
        maps = self.out(self.drop(torch.tanh(self.second(torch.tanh(self.first(x))))))
        return nn.functional.interpolate(maps, x.shape[2:], mode="bilinear")


@pytest.fixture(scope="module")
def segments():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(30)  # all classes are predicted
        return Segments()


def images(n, seed):
    """Images with labels, of which a stripe is to be ignored."""
    x = 2 * torch.randn(n, 1, 6, 8, generator=torch.Generator().manual_seed(seed))
    y = (x[:, 0] > 0).long()
    y[:, :, :2] = 255
    return list(zip(x.split(10), y.split(10), strict=True))


def test_pixels(name, able, kind, segments, tmp_path):
    pixels, train, unseen, new = Pixels(share=0.05), images(20, 0), images(19, 1), images(10, 2)
    if not able.pixels:
        text = f"{name}.*(whole inputs, not pixels|argument 'pixels')"
        with pytest.raises((NotImplementedError, TypeError, ValueError), match=text):
            kind.build(segments, pixels=pixels)
        return
    method = kind.build(segments, layers="second", pixels=pixels).fit(train, calibration=unseen)
    known = method.predict(unseen)
    assert known.epistemic.shape == known.prediction.shape == (19, 6, 8)
    close(method(unseen[0][0]), known[:10])
    # The rule, for each image by itself: of its pixels that count, at most a share lies above its score.
    scores = torch.stack([pixels.image_score(maps[:, 2:].flatten()) for maps in known.epistemic]).sort().values
    known_to = reach(scores, method.head.calibration)
    assert method.threshold(0.2) == known_to[15].item()  # the 16th of 19: (19 + 1) (1 - 0.2)
    u = method.predict(new)
    assert u.surprising.shape == (10, 6, 8) and 0 < u.surprising.float().mean() < 0.2
    assert all(scores.surprising.shape == scores.p_value.shape == (10, 6, 8) for scores in u.layers.values())
    if able.features:
        again = kind.build(segments, layers="second", pixels=pixels)
        close(again.fit_features(again.extract(train)).calibrate(unseen).predict(unseen), known)
        with pytest.raises(ValueError, match="over whole images"):
            again.fit_features(again.extract(train), again.extract(unseen))
    if able.save:
        method.save(tmp_path / "pixels.safetensors")
        close(Detector.load(tmp_path / "pixels.safetensors", segments).predict(new), u, rtol=1e-6)
    with pytest.warns(UserWarning, match="come without their guarantee"):
        assert method.fit(train, holdout=0.4).calibrated == "holdout"
    if not kind.layers:
        with pytest.raises(ValueError, match="resolution='latent' is the grid of a layer"):
            kind.build(segments, pixels=Pixels(resolution="latent"))


@pytest.mark.parametrize("name", [name for name, kind in BUILD.items() if kind.layers])
@pytest.mark.parametrize("combine", ["last", "mean", {"hidden": 0.5, "body.0": 2.0}, {"body.0": 1.0}])
def test_layers_are_combined_as_asked(name, combine, trained, data):
    build = BUILD[name].build
    method = build(trained, layers=["body.0", "hidden"], combine=combine)
    u = method.fit(data["train"], calibration=data["unseen"]).predict(data["test"])
    layers = {name: scores.epistemic for name, scores in u.layers.items()}
    if combine == "mean":
        standard = method.head.combination.learnt
        expected = torch.stack([(layers[n] - mean) / scale for n, (mean, scale) in standard.items()]).mean(0)
    else:
        weights = {method.layers[-1]: 1.0} if combine == "last" else combine
        expected = sum(weight * layers[name] for name, weight in weights.items())
    torch.testing.assert_close(u.epistemic, expected)
    expected = p_values(method.predict(data["unseen"]).epistemic, u.epistemic, method.head.calibration)
    assert torch.equal(u.p_value, expected)
    if combine == {"body.0": 1.0}:
        with pytest.warns(DeprecationWarning, match=r"combine='body.0', a layer's name, is deprecated") as caught:
            old = build(trained, layers=["body.0", "hidden"], combine="body.0")
        assert len(caught) == 1
        close(old.fit(data["train"], data["unseen"]).predict(data["test"]), u)


def test_abstains(fitted, kind, data):
    """With labels, every method leaves inputs unanswered, by the scores that it has."""
    u = fitted(data["test"][0][0])
    refused = fitted.abstain(u, 0.1)
    assert refused.shape == (len(u),) and not refused.all()
    if kind.far:
        assert fitted.abstain(fitted(data["far"]), 0.1).all()
