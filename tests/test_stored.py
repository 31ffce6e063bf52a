"""What a file holds is checked before it is used; what was fitted passes all checks."""

import json
import os

import numpy as np
import pytest
import torch
from torch import nn

from hidden_uncertainty import ConditionalFlow, Density, GaussianMixture, JointMixture, LatentDensity, Reduce, io
from hidden_uncertainty.baselines import Mahalanobis, NearestNeighbours
from hidden_uncertainty.detector import Detector
from hidden_uncertainty.marginal import BetaPrime, Gaussian, Histogram, Uniform
from hidden_uncertainty.stored import Unallocated

X = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))


def _network(outputs):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs, bias=False), nn.Softplus())


def _classes(density, layers="0", **options):
    return LatentDensity(_network(2), layers, density, task="classification", **options)


def _numbers(density, outputs=1, **options):
    return LatentDensity(_network(outputs), "0", density, task="regression", **options)


def _baseline(kind, **options):
    return kind(_network(2), "0", task="classification", **options)


def _flow(**options):
    return ConditionalFlow(blocks=3, hidden=(4,), condition_hidden=(3,), max_epochs=2, **options)


DETECTORS = {
    "full": lambda: _classes(GaussianMixture(2), ["0", "1"], max_dim=5, combine="mean"),
    "tied": lambda: _classes(GaussianMixture(2, covariance="tied")),
    "diag": lambda: _classes(GaussianMixture(2, covariance="diag"), {"0": Reduce(max_dim=3, residual=True)}),
    "spherical": lambda: _classes(GaussianMixture(2, covariance="spherical")),
    "flow": lambda: _classes(_flow()),
    "joint": lambda: _numbers(JointMixture(2), marginal=Gaussian()),
    "joint diag": lambda: _numbers(JointMixture(2, covariance="diag"), marginal=Histogram()),
    "joint tied": lambda: _numbers(JointMixture(2, covariance="tied"), marginal=Uniform()),
    "beta prime": lambda: _numbers(JointMixture(2), marginal=BetaPrime()),
    "vectors": lambda: _numbers(_flow(form="realnvp"), 2, marginal=Gaussian()),
    "Mahalanobis": lambda: _baseline(Mahalanobis),
    "neighbours": lambda: _baseline(NearestNeighbours),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Files need not be on disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Of a detector by its name: its network, a file, and its header and tensors to change."""
    known = {}

    def give(name):
        if name not in known:
            detector, path = DETECTORS[name](), tmp_path_factory.mktemp("saved") / "detector"
            detector.fit([X], calibration=[X[:50] + 0.1]).threshold(0.1)
            detector.save(path)
            known[name] = detector.model, path, *io.read(path)
        network, path, header, tensors = known[name]
        return network, path, json.loads(json.dumps(header)), {key: value.clone() for key, value in tensors.items()}

    return give


@pytest.mark.filterwarnings("ignore:.*training did not converge")
@pytest.mark.parametrize("name", DETECTORS)
def test_what_was_fitted_passes_and_nothing_else_does(saved, name, tmp_path):
    network, path, header, tensors = saved(name)
    Detector.load(path, network)
    changed = tmp_path / "changed"
    for key in [*tensors][:: max(1, len(tensors) // 5)]:
        tensor = tensors[key]
        if key == "weights" or tensor.numel() == 0:
            continue
        other = torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor.reshape(-1)[1:]
        io.write(changed, header, {**tensors, key: other})
        with pytest.raises(ValueError, match="is damaged: its content does not fit together"):
            Detector.load(changed, network)
    for key in (next(iter(tensors)), "combined.scores"):
        if key in tensors:
            io.write(changed, header, {**tensors, key: tensors[key].bfloat16()})
            with pytest.raises(ValueError, match=f"by its header, '{key}' is .*, and it holds .* of torch.bfloat16"):
                Detector.load(changed, network)
    for others in ({"more": X}, None):
        some = {**tensors, **others} if others else dict(list(tensors.items())[1:])
        io.write(changed, header, some)
        with pytest.raises(ValueError, match=r"is damaged: .* is missing|holds missing|there is no"):
            Detector.load(changed, network)


def _set(place, value):
    def change(tensor):
        tensor[place] = value
        return tensor

    return change


@pytest.mark.filterwarnings("ignore:.*training did not converge")
@pytest.mark.parametrize(
    ("name", "end", "change", "text"),
    [
        ("full", ".calibration.scores", lambda x: x.flip(0), "do not ascend"),
        ("full", "0.calibration.scores", _set(3, torch.nan), "do not ascend"),
        ("full", "combined.scores", lambda x: x.flip(0), "do not ascend"),
        ("full", "density.classes", lambda x: x.flip(0), "classes do not ascend"),
        ("full", "density.log_weight", lambda x: x + 0.1, "do not sum to one"),
        ("full", "density.factor", lambda x: x.mT, "not triangular"),
        ("full", "density.factor", lambda x: -x, "not positive"),
        ("full", "density.log_scale", lambda x: x + 1, "log_scale is not that of its factor"),
        ("full", "density.bias", lambda x: x + 1, "bias is not that of its mean"),
        ("full", "density.mean", lambda x: x + 1, "bias is not that of its mean"),
        ("full", "density.center", lambda x: x + 1, "bias is not that of its mean"),
        ("full", "reduction.basis", lambda x: 2 * x, "length one"),
        ("full", "marginal.log_prob", lambda x: x + 1, "do not sum to one|not those of the classes"),
        ("full", "marginal.support", lambda x: x.flip(0), "not the classes that occurred"),
        ("full", "marginal.log_weight", lambda x: x - 1, "not those of the classes"),
        ("tied", "density.factor", lambda x: x.mT, "not triangular"),
        ("diag", "density.factor", lambda x: -x, "not positive"),
        ("diag", "reduction.floor", lambda x: x - 1, "floor is negative"),
        ("spherical", "density.factor", lambda x: -x, "not positive"),
        ("flow", "flow.order", _set((0, 0), 1), "no permutation"),
        ("flow", "flow.order", _set((0, 0), 99), "no permutation"),
        ("flow", "density.classes", lambda x: x.flip(0), "classes do not ascend"),
        ("joint", "directions.deviation", lambda x: -x, "not positive"),
        ("joint", "directions.basis", lambda x: 2 * x, "length one"),
        ("joint", "directions.log_scale", lambda x: x + 1, "not that of the deviations"),
        ("joint", "conditional.y_factor", lambda x: -x, "not positive"),
        ("joint", "conditional.y_scale", lambda x: x + 1, "do not sum to one"),
        ("joint", "conditional.across", lambda x: x.mT, "not triangular"),
        ("joint", "density.y_deviation", lambda x: -x, "not positive"),
        ("joint", "marginal.factor", lambda x: 2 * x, "not that of its factor"),
        ("joint diag", "marginal.mass", lambda x: 2 * x, "not one"),
        ("joint diag", "marginal.bounds", lambda x: x.flip(0), "do not ascend"),
        ("joint tied", "marginal.bounds", lambda x: x.flip(0), "do not ascend"),
        ("beta prime", "marginal.shape", lambda x: -x, "not positive"),
        ("vectors", "density.y_deviation", lambda x: -x, "not positive"),
        ("Mahalanobis", "classes.factor", lambda x: x.mT, "not triangular"),
    ],
)
def test_content_that_no_fit_gives(saved, name, end, change, text, tmp_path):
    network, _, header, tensors = saved(name)
    key = next(key for key in tensors if key.endswith(end))
    tensors[key] = change(tensors[key])
    io.write(tmp_path / "changed", header, tensors)
    with pytest.raises(ValueError, match=f"is damaged: its content does not fit together: .*({text})"):
        Detector.load(tmp_path / "changed", network)


def _standard(header):
    return header["head"]["combination"]["standard"]


def _reduction(header):
    return header["head"]["terms"][0]["reduction"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda header: header.pop("terms"), "there is no 'terms'"),
        (lambda header: header.update(threshold="high"), "a seed or a threshold is not"),
        (lambda header: header.update(threshold=-(10**60)), "or too large"),
        (lambda header: _standard(header).update({"0": [[], 1.0]}), "what is known of scores is not a number"),
        (lambda header: header["terms"][0].update(layer="1"), "term '0' was fitted to another layer"),
        (lambda header: _reduction(header)["reduce"].update(read="input"), "or to another part of it"),
        (lambda header: header.update(seed=None), "a seed or a threshold is not"),
        (lambda header: header["thresholds"].update(other=1.0), "threshold for a term that it does not have"),
        (lambda header: header.update(calibrated="perhaps"), "calibrated='perhaps' is not known"),
        (lambda header: header.update(combine="last"), "it combines terms in two ways"),
        (lambda header: _standard(header).update({"0": [0.0, 0.0]}), "is not positive"),
        (lambda header: header["head"]["combination"].update(standard={}), "how scores are combined"),
        (lambda header: header["terms"].reverse(), "terms were fitted that it does not have"),
        (lambda header: header.update(condition="weather"), "condition must be 'prediction' or 'label'"),
        (lambda header: header.update(head=None), "'NoneType' object is not subscriptable"),
    ],
)
def test_headers_that_contradict_themselves(saved, change, text, tmp_path):
    network, _, header, tensors = saved("full")
    change(header)
    io.write(tmp_path / "changed", header, tensors)
    with pytest.raises(ValueError, match=f"is damaged: its content does not fit together: .*{text}"):
        Detector.load(tmp_path / "changed", network)


def test_what_is_not_the_files_fault(saved, tmp_path):
    network, path, header, tensors = saved("full")
    with pytest.raises(ValueError, match="holds LatentDensity, not Mahalanobis: use LatentDensity"):
        Mahalanobis.load(path, network)
    with pytest.raises(ValueError, match="was fitted for another model"):
        LatentDensity.load(path, nn.Sequential(nn.Linear(4, 6), nn.ReLU()))
    with pytest.raises(RuntimeError, match="nowhere"):
        LatentDensity.load(path, network, device="nowhere")
    header["head"]["terms"][0]["method"]["kind"] = "Mine"
    io.write(tmp_path / "changed", header, tensors)
    with pytest.raises(ValueError, match=r"^the file holds a method of kind 'Mine'; this version knows"):
        LatentDensity.load(tmp_path / "changed", network)
    header["version"] = 3
    io.write(tmp_path / "changed", header, tensors)
    with pytest.raises(ValueError, match=r"^the file's header is of version 3"):
        LatentDensity.load(tmp_path / "changed", network)


def test_modules_without_end_are_refused():
    shapes = {"directions.basis": ["float32", 4, 4], "classes": ["int64", 3]}
    with pytest.raises(ValueError, match="more tensors than it holds"), Unallocated(limit=10):
        _flow().from_config({**_flow().config(), "blocks": 10**12, "fitted": shapes})


def test_options_of_numpy_are_saved(tmp_path):
    path, seed = tmp_path / "detector", np.int64(3)
    density = GaussianMixture(np.int64(1), ridge=np.float32(1e-6), max_iter=np.int64(9))
    reduce = Reduce(max_dim=np.int32(3), token=np.int64(0))
    detector = LatentDensity(
        _network(2),
        {"0": reduce, "1": Reduce()},
        density,
        combine={"1": np.float32(0.5)},
        seed=seed,
        task="classification",
    )
    detector.fit([X]).save(path)
    loaded = LatentDensity.load(path, detector.model)
    assert type(loaded.seed) is int
    assert torch.equal(loaded(X).epistemic, detector(X).epistemic)
    for other in [
        _baseline(NearestNeighbours, k=np.int64(5)),
        _numbers(JointMixture(2), marginal=Histogram(np.int64(9), points=np.int64(99))),
    ]:
        other.fit([X]).save(path)
        assert torch.equal(Detector.load(path, other.model)(X).epistemic, other(X).epistemic)


class OneForAll(Density):
    """A density of a user's own: its arguments are attributes, and what it fits is a buffer."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("middle", None)

    def _fit(self, z, y):
        self.middle = z.mean(0)
        return self

    def log_prob(self, z, support):
        return -((z - self.middle) / self.width).square().sum(1, keepdim=True).expand(-1, len(support))


def test_a_density_of_ones_own_needs_no_description(tmp_path):
    detector = LatentDensity(_network(2), "0", OneForAll(0.5), task="classification").fit([X])
    detector.save(tmp_path / "detector")
    loaded = LatentDensity.load(tmp_path / "detector", detector.model)
    assert loaded.fitted_densities["0"].width == 0.5
    assert torch.equal(loaded(X).epistemic, detector(X).epistemic)


def test_only_buffers_are_taken_from_a_header():
    with pytest.raises(ValueError, match="OneForAll has no buffer 'log_prob'"):
        OneForAll.from_config({"fitted": {"log_prob": ["float32", 2]}})


def test_arguments_that_are_no_attributes_are_named():
    class Forgetful(OneForAll):
        def __init__(self, height: float = 1.0) -> None:
            super().__init__()

    with pytest.raises(NotImplementedError, match="Forgetful cannot be saved: it needs an attribute 'height'"):
        Forgetful().config()


@pytest.mark.parametrize("way", ["options", "late"])
def test_what_could_not_be_loaded_is_not_saved(way, tmp_path):
    class Odd(OneForAll):
        def __init__(self, **options) -> None:
            super().__init__()
            self.options = options

        def _fit(self, z, y):
            if way == "late":
                self.register_buffer("found", z.mean(0))
            return super()._fit(z, y)

    odd = Odd(height=2) if way == "options" else Odd()
    detector = LatentDensity(_network(2), "0", odd, task="classification").fit([X])
    with pytest.raises(ValueError, match=r"could not be loaded: (Odd has no buffer 'found'|an argument of a class)"):
        detector.save(tmp_path / "detector")
    assert not any(tmp_path.iterdir())
