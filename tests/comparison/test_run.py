"""`compare` on methods whose answers are known."""

import io

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels, Uncertainty, metrics, progress
from hidden_uncertainty.baselines import Mahalanobis, NearestNeighbours
from hidden_uncertainty.comparison import FORWARD, compare


class Norm:
    """Scores an input by its length and predicts class 0; counts what is asked of it."""

    def __init__(self, aleatoric: bool = True) -> None:
        self.aleatoric, self.fits, self.predicts, self.progress = aleatoric, [], 0, None

    def fit(self, loader, calibration=None):
        self.fits.append((sum(len(x) for x, _ in loader), calibration))
        return self

    def predict(self, loader):
        self.predicts += 1
        x = torch.cat([batch[0] if isinstance(batch, tuple | list) else batch for batch in loader])
        norm = x.norm(dim=1)
        classes, aleatoric = torch.zeros(len(x), dtype=torch.long), -norm if self.aleatoric else None
        return Uncertainty(prediction=classes, epistemic=norm, aleatoric=aleatoric)


class By:
    """Scores inputs by a function of them."""

    def __init__(self, function, pixels=None):
        self.function, self.pixels = function, pixels

    def predict(self, loader):
        return Uncertainty(**self.function(torch.cat([x for x, _ in loader])))


def pairs(n: int, seed: int = 0, scale: float = 1.0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x, y = scale * torch.randn(n, 3, generator=generator), torch.randint(2, (n,), generator=generator)
    return list(zip(x.split(40), y.split(40), strict=True))


def test_metrics_are_those_of_the_metrics_module():
    known, near, far = pairs(100), pairs(60, 1, 1.5), pairs(70, 2, 4.0)
    found = compare({"norm": Norm()}, known, {"near": near, "far": far}, rounds=1)
    inside = Norm().predict(known)
    correct = inside.prediction == torch.cat([y for _, y in known])
    for ood, loader in {"near": near, "far": far}.items():
        scores = {"negative": inside.epistemic, "positive": Norm().predict(loader).epistemic}
        assert found.value("norm", "auroc", ood) == metrics.auroc(**scores)
        assert found.value("norm", "average precision", ood) == metrics.average_precision(**scores)
        assert found.value("norm", "fpr95", ood) == metrics.fpr_at_tpr(**scores)
    assert found.value("norm", "accuracy") == pytest.approx(correct.double().mean().item())
    assert found.value("norm", "aurc epistemic") == metrics.aurc(inside.epistemic, correct)
    assert found.value("norm", "aurc aleatoric") == metrics.aurc(-inside.epistemic, correct)
    assert found.about["inputs"] == {"in_distribution": 100, "near": 60, "far": 70}
    assert found.methods == ["norm"] and found.ood == ["near", "far"]


def test_methods_of_the_library_are_fitted_and_scored_as_by_hand(trained, data):
    def made():
        return {
            "density": LatentDensity(trained, "hidden", GaussianMixture(components=1), task="classification"),
            "neighbours": NearestNeighbours(trained, "hidden", k=3, task="classification"),
            "mahalanobis": Mahalanobis(trained, "hidden", task="classification"),
        }

    before = {name: value.clone() for name, value in trained.state_dict().items()}
    far = [x + 3 for x, _ in data["test"]]
    found = compare(made(), data["test"], far, train=data["train"], rounds=2)
    for name, method in made().items():
        method.fit(data["train"])
        inside, outside = method.predict(data["test"]), method.predict(far)
        area = metrics.auroc(negative=inside.epistemic, positive=outside.epistemic)
        assert found.value(name, "auroc", "ood") == pytest.approx(area)
        assert found.value(name, "fit seconds") > 0 and found.value(name, "ms per input") > 0
        ratio = found.value(name, "ms per input") / found.value(FORWARD, "ms per input")
        assert found.value(name, "times forward") == pytest.approx(ratio)
    assert found.value(FORWARD, "times forward") == 1.0 and found.value(FORWARD, "accuracy") is None
    assert found.methods == [FORWARD, "density", "neighbours", "mahalanobis"]
    assert trained.training and all(torch.equal(before[name], value) for name, value in trained.state_dict().items())


def test_numbers_have_errors_of_their_own():
    half = By(lambda x: {"prediction": 0.5 * x[:, 0], "epistemic": x.norm(dim=1), "aleatoric": x.abs().sum(1)})
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    loader = [(x, x[:, :1])]  # labels as (n, 1), predictions as (n,)
    found = compare({"half": half}, loader, {"far": [(9 * x, x[:, :1])]}, rounds=1)
    error = 0.5 * x[:, 0]
    assert found.value("half", "rmse") == pytest.approx(metrics.rmse(0.5 * x[:, 0], x[:, 0]))
    for name, score in {"epistemic": x.norm(dim=1), "aleatoric": x.abs().sum(1)}.items():
        area = metrics.ause(uncertainty=score, error=error)
        assert found.value("half", f"ause {name}") == pytest.approx(area)
    assert found.value("half", "accuracy") is None


def test_maps_of_numbers_have_one_error_per_pixel():
    scaled = By(lambda x: {"prediction": 0.5 * x[:, 0], "epistemic": x[:, 1], "aleatoric": x[:, 2]})
    x = torch.rand(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    found = compare({"scaled": scaled}, [(x, x[:, 0])], {"far": [(9 * x, x[:, 0])]}, rounds=1)
    for name, score in {"epistemic": x[:, 1], "aleatoric": x[:, 2]}.items():
        area = metrics.ause(uncertainty=score, error=0.5 * x[:, 0])
        assert found.value("scaled", f"ause {name}") == pytest.approx(area)


def test_pixels_to_ignore_are_no_errors():
    method = By(lambda x: {"prediction": (x[:, 0] > 0).long(), "epistemic": x[:, 1]}, Pixels(ignore=255))
    x = torch.randn(4, 2, 5, 6, generator=torch.Generator().manual_seed(0))
    truth = (x[:, 0] > 0.5).long()
    label = truth.clone()
    label[:, :2] = 255
    found = compare({"network": method}, [(x, label)], {"far": [(9 * x, label)]}, rounds=1)
    correct = ((x[:, 0] > 0) == truth)[:, 2:]
    assert found.value("network", "accuracy") == pytest.approx(float(correct.double().mean()))
    assert found.value("network", "aurc epistemic") == pytest.approx(metrics.aurc(x[:, 1, 2:], correct))


def test_a_loader_may_shuffle(data):
    x, y = (torch.cat(parts) for parts in zip(*data["test"], strict=True))
    # Its prediction is the label, found by position in space.
    right = By(lambda z: {"prediction": y[torch.cdist(z, x).argmin(1)], "epistemic": z[:, 0]})
    shuffled = DataLoader(TensorDataset(x, y), 64, shuffle=True, generator=torch.Generator().manual_seed(0))
    found = compare({"a": right, "b": right}, shuffled, [(x + 9, y)], rounds=1)
    assert found.value("a", "accuracy") == found.value("b", "accuracy") == 1.0
    assert found.about["timed inputs"] == 400 and found.about["batch"] == 64


def test_fitting_calibration_and_timing_are_asked_of_each():
    method, plain = Norm(), Norm(aleatoric=False)
    plain.fit = lambda loader: None
    unseen = pairs(30)
    found = compare(
        {"norm": method, "plain": plain}, pairs(90), pairs(20, 1), train=pairs(80), calibration=unseen, rounds=3
    )
    assert method.fits == [(80, unseen)]
    assert method.predicts == 2 + 1 + 3  # both sets, a call to warm up, and rounds
    assert method.progress is None
    assert found.value("plain", "aurc aleatoric") is None and found.value("plain", "aurc epistemic") is not None
    assert found.about["rounds"] == 3 and found.about["threads"] == torch.get_num_threads()


def test_fitted_methods_and_unlabelled_data():
    method = Norm()
    found = compare({"norm": method}, [x for x, _ in pairs(90)], pairs(20, 1), rounds=1)
    assert method.fits == [] and found.value("norm", "fit seconds") is None
    assert {row["metric"] for row in found.rows} == {"auroc", "average precision", "fpr95", "ms per input"}


def test_bars_are_drawn_only_when_asked_for(monkeypatch):
    file = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_console", Console(file=file, force_terminal=True, width=100))
    for asked in (False, True):
        compare({"norm": Norm()}, pairs(40), pairs(20), rounds=1, progress=asked)
        assert ("comparing" in file.getvalue()) == asked


def test_only_as_much_is_timed_as_needed():
    found = compare({"norm": Norm()}, pairs(2000), pairs(20), rounds=1)
    assert found.about["timed inputs"] == 520 and found.about["inputs"]["in_distribution"] == 2000


def test_the_model_and_unpack_can_be_given():
    network = nn.Linear(3, 2)

    class Keyed(Norm):
        def predict(self, loader):
            return super().predict([item["image"] for item in loader])

    loader = [{"image": x, "class": y} for x, y in pairs(80)]
    found = compare(
        {"norm": Keyed()}, loader, loader, model=network, rounds=1, unpack=lambda item: (item["image"], item["class"])
    )
    assert found.value(FORWARD, "ms per input") > 0
    assert found.value("norm", "accuracy") is not None and found.value("norm", "auroc", "ood") == 0.5


def failing(error: Exception):
    class Failing(Norm):
        def predict(self, loader):
            raise error

    return Failing()


class Tensors(Norm):
    def predict(self, loader):
        return super().predict(loader).epistemic


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"methods": {}}, ValueError, "nothing to compare: give at least one method"),
        ({"out_of_distribution": {}}, ValueError, "one out_of_distribution loader"),
        ({"methods": [Norm()]}, TypeError, "methods must be a mapping from names to methods.* not list"),
        ({"methods": {"a": 3}}, TypeError, r"method 'a' is of type int: expected an object with predict\(loader\)"),
        ({"methods": {"a": Norm}}, TypeError, "method 'a' is the class Norm: expected an object"),
        (
            {"methods": {"a": nn.Linear(1, 1)}, "train": pairs(9)},
            TypeError,
            r"method 'a' is of type Linear: expected an object with fit\(loader\) and predict\(loader\)",
        ),
        ({"methods": {FORWARD: Norm()}}, ValueError, "'forward pass' is the name of the network's own row"),
        ({"calibration": pairs(9)}, ValueError, "train is None: pass both, or neither"),
        ({"rounds": 0}, ValueError, "rounds must be at least 1, not 0"),
        ({"in_distribution": []}, ValueError, "in_distribution: the loader gave no batches"),
        ({"out_of_distribution": {"letters": []}}, ValueError, "out_of_distribution 'letters': the loader gave no"),
        ({"train": iter(pairs(9))}, TypeError, "train: .*can be read only once"),
        ({"in_distribution": torch.zeros(3, 3)}, TypeError, "in_distribution: a loader gives batches"),
        (
            {"methods": {"good": Norm(), "bad": failing(OSError("no disk"))}},
            RuntimeError,
            "method 'bad' failed: OSError: no disk",
        ),
        ({"methods": {"a": Tensors()}}, RuntimeError, "failed: TypeError: predict gave an object of type Tensor"),
        (
            {"in_distribution": [*pairs(80), torch.zeros(2, 3)]},
            RuntimeError,
            "method 'norm' failed: ValueError: only 2 of 3 batches have labels",
        ),
        (
            {"in_distribution": [(torch.zeros(4, 3), torch.zeros(4, 2))]},
            RuntimeError,
            r"predictions are of shape \(4,\) and torch.int64, labels of \(4, 2\) and torch.float32",
        ),
    ],
)
def test_errors(change, error, text):
    arguments = {
        "methods": {"norm": Norm()},
        "in_distribution": pairs(80),
        "out_of_distribution": pairs(40),
        "rounds": 1,
    }
    with pytest.raises(error, match=text):
        compare(**{**arguments, **change})
