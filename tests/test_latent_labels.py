"""Networks that predict several labels per input, or one of two classes by a single logit."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import bernoulli, multivariate_normal
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from hidden_uncertainty import (
    Classification,
    Features,
    GaussianMixture,
    LatentDensity,
    MultiLabel,
    Pixels,
    Uncertainty,
    compare,
    suggest,
)
from hidden_uncertainty.baselines import GEN, Energy, MaxProbability, NearestNeighbours, SoftmaxEntropy

LABELS, WIDTH = 5, 12
DIRECTIONS = 2 * torch.randn(LABELS, WIDTH, generator=torch.Generator().manual_seed(9))
Loader = list[tuple[Tensor, Tensor]]


class Tagger(nn.Module):
    """A network with one logit per label; `columns` of them are returned, as probabilities where it `ends` so."""

    def __init__(self, labels: int = LABELS, *, ends: bool = False, flat: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(WIDTH, 24), nn.Linear(24, 16), nn.Linear(16, labels)
        self.ends, self.flat = ends, flat

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(self.second(self.first(x).relu()).relu())
        logits = logits.sigmoid() if self.ends else logits
        return logits[:, 0] if self.flat else logits


def draw(n: int, seed: int, directions: Tensor = DIRECTIONS, noise: float = 2.0) -> tuple[Tensor, Tensor]:
    """Inputs that are sums of what each of their labels adds; labels come together, and differ in frequency."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(n, 1, generator=generator)
    label = (torch.randn(n, LABELS, generator=generator) + shared > torch.linspace(-0.5, 1.5, LABELS)).float()
    return label @ directions + noise * torch.randn(n, WIDTH, generator=generator), label


def batches(x: Tensor, label: Tensor) -> Loader:
    return list(zip(x.split(100), label.split(100), strict=True))


def trained(net: nn.Module, x: Tensor, label: Tensor) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for part in net.children():
            part.reset_parameters()
        optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(120):
            optimiser.zero_grad()
            binary_cross_entropy_with_logits(net(x), label).backward()
            optimiser.step()
        optimiser.zero_grad()
    return net.eval()


@pytest.fixture(scope="module")
def net() -> Tagger:
    return trained(Tagger(), *draw(2000, 1))


@pytest.fixture(scope="module")
def loaders() -> dict[str, Loader]:
    return {
        name: batches(*draw(n, seed)) for name, n, seed in (("train", 2000, 1), ("unseen", 1500, 2), ("test", 800, 3))
    }


@pytest.fixture(scope="module")
def unfamiliar() -> Tensor:
    """Inputs made of what no label of the training data adds."""
    return draw(400, 4, 2 * torch.randn(LABELS, WIDTH, generator=torch.Generator().manual_seed(8)))[0]


@pytest.fixture(scope="module")
def default(net, loaders) -> LatentDensity:
    detector = LatentDensity(net, task="multi-label").fit(loaders["train"], calibration=loaders["unseen"])
    detector.threshold(0.05)
    return detector


@pytest.mark.parametrize("condition", ["prediction", "label"])
def test_scores_are_sums_over_sets_of_labels(net, loaders, condition) -> None:
    """p(z) = Σ p(z|g) p(g) and p(y_l|z) = Σ p(g|z) f_gl, written out, with groups found by comparing all rows."""
    density = GaussianMixture(covariance="pooled", shrinkage=None, ridge=0.0)
    detector = LatentDensity(net, "second", density, task="multi-label", condition=condition).fit(loaders["train"])
    u = detector.predict(loaders["test"])
    with torch.no_grad():
        z, new = (
            net.second(net.first(torch.cat([x for x, _ in loaders[part]])).relu()).double().numpy()
            for part in ("train", "test")
        )
        predicted = torch.cat([net(x) > 0 for x, _ in loaders["train"]])
    y = (predicted if condition == "prediction" else torch.cat([label for _, label in loaders["train"]])).long().numpy()
    sets, counts = np.unique(y, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    kept = sets[order[counts[order] >= 5]]
    assert 10 < len(kept) < len(sets) or condition == "prediction"
    group = np.array([np.abs(kept - row).sum(1).argmin() for row in y])  # the first of the nearest
    means = np.stack([z[group == g].mean(0) for g in range(len(kept))])
    covariance = np.cov((z - means[group]).T, bias=True)
    log_joint = np.stack(
        [
            multivariate_normal(means[g], covariance).logpdf(new) + math.log((group == g).mean())
            for g in range(len(kept))
        ],
        axis=1,
    )
    evidence = np.logaddexp.reduce(log_joint, axis=1)
    posterior = np.exp(log_joint - evidence[:, None])
    share = np.stack([y[group == g].mean(0) for g in range(len(kept))])
    np.testing.assert_allclose(u.epistemic, -evidence, rtol=2e-3)
    np.testing.assert_allclose(u.aleatoric, -(posterior * np.log(posterior + 1e-300)).sum(1), rtol=0.02, atol=1e-3)
    np.testing.assert_allclose(u.probabilities, posterior @ share, atol=2e-3)
    assert u.probabilities.shape == u.prediction.shape == (800, LABELS)
    np.testing.assert_allclose(u.aleatoric_per_label, bernoulli(u.probabilities.double()).entropy(), atol=1e-5)
    assert torch.equal(u.probabilities, u.layers["second"].probabilities)


def test_given_labels_probabilities_are_those_of_labels(net, loaders) -> None:
    """Of inputs with a probability near p, a share of about p has the label; where labels are noisy, they say so."""
    generator = torch.Generator().manual_seed(5)

    def noisy(loader: Loader) -> Loader:
        """A third of the first label's values are drawn anew."""
        kept = []
        for x, label in loader:
            label = label.clone()
            anew = torch.rand(len(x), generator=generator) < 1 / 3
            label[anew, 0] = torch.rand(int(anew.sum()), generator=generator).round()
            kept.append((x, label))
        return kept

    train, test = noisy(loaders["train"]), noisy(loaders["test"])
    detector = LatentDensity(net, "second", task="multi-label", condition="label").fit(train)
    u, label = detector.predict(test), torch.cat([label for _, label in test])
    for low, high in ((0.0, 0.25), (0.25, 0.75), (0.75, 1.0)):
        inside = (u.probabilities >= low) & (u.probabilities <= high)
        assert float(label[inside].mean()) == pytest.approx(float(u.probabilities[inside].mean()), abs=0.06)
    per_label = u.aleatoric_per_label.mean(0)
    assert per_label[0] > per_label[1:].max() + 0.1  # the others have no noise but what hides them


def test_with_nothing_to_choose(default, net, loaders, unfamiliar) -> None:
    u, test = default.predict(loaders["test"]), torch.cat([label for _, label in loaders["test"]])
    assert default.layers == ["first", "head", "outputs"] and str(default.task) == str(MultiLabel())
    assert isinstance(u.prediction, Tensor) and u.prediction.shape == (800, LABELS)
    assert (u.prediction == test).float().mean() > 0.9
    negative, positive = u.epistemic, default(unfamiliar).epistemic
    truth = np.repeat([0, 1], [len(negative), len(positive)])
    assert roc_auc_score(truth, torch.cat([negative, positive])) > 0.85
    temperature = default.head.terms["outputs"].method.temperature
    assert temperature != 1  # learnt from labelled unseen data, floating as these are
    with torch.no_grad():
        expected = (torch.cat([net(x) for x, _ in loaders["test"]]) / temperature).sigmoid()
    torch.testing.assert_close(u.probabilities, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(u.aleatoric, u.aleatoric_per_label.sum(1), rtol=1e-4, atol=1e-5)
    assert default.weights["outputs"] == 1 and all(0.3 < weight <= 1 for weight in default.weights.values())
    assert set(u.why()) <= set(default.layers)


def test_false_alarms_are_as_asked_for(net, loaders) -> None:
    """Over calibration sets: P(p ≤ α) ≤ α, and not far below."""
    features = LatentDensity(net, "second", task="multi-label")
    train = features.extract(loaders["train"])
    detector = LatentDensity(net, "second", task="multi-label").fit_features(train)
    alarms = []
    for seed in range(40):
        x, _ = draw(400, 100 + seed)
        detector.calibrate(x[:200].split(100))
        alarms.append((detector(x[200:]).p_value <= 0.1).double().mean())
    rate, error = float(torch.stack(alarms).mean()), float(torch.stack(alarms).std()) / math.sqrt(40)
    assert 0.1 - 20 / 201 * 0.1 - 4 * error < rate < 0.1 + 3 * error


def test_results_as_tables_and_files(default, net, loaders, tmp_path) -> None:
    x = loaders["test"][0][0]
    u = default(x)
    default.save(tmp_path / "detector")
    again = LatentDensity.load(tmp_path / "detector", net)
    assert again.task.config() == default.task.config() and repr(again) == repr(default)
    for name, values in again(x).numpy().items():
        np.testing.assert_array_equal(values, u.numpy()[name])
    assert torch.equal(again.fitted_marginal.sets, default.fitted_marginal.sets)
    rows = json.loads(u.to_json())
    assert len(rows) == 100 and rows[3]["prediction.1"] == int(u.prediction[3, 1]) and "probabilities.4" in rows[0]
    assert list(u.to_pandas().filter(like="prediction.")) == [f"prediction.{label}" for label in range(LABELS)]
    assert torch.equal(Uncertainty.cat([u[:40], u[40:]]).probabilities, u.probabilities)
    assert u[3].prediction.shape == (1, LABELS) and "epistemic" in repr(u[u.surprising])
    with pytest.raises(RuntimeError, match="aleatoric uncertainty per label where a LatentDensity has task='multi"):
        _ = NearestNeighbours(net, "second", task="multi-label").fit([x])(x).aleatoric_per_label
    assert torch.allclose(GEN(net, task="multi-label")(x).probabilities, net(x).sigmoid())


def test_probabilities_as_outputs(default, net, loaders) -> None:
    """A network that ends in a sigmoid scores as it would without, as far as its outputs have digits."""
    ends = Tagger(ends=True)
    ends.load_state_dict(net.state_dict())
    x = loaders["test"][0][0]
    for kind in (GEN, Energy, MaxProbability, SoftmaxEntropy):
        expected, task = kind(net, task="multi-label")(x), MultiLabel(logits=False)
        torch.testing.assert_close(kind(ends, task=task)(x).epistemic, expected.epistemic, rtol=5e-3, atol=1e-3)
    assert torch.equal(GEN(ends, task="multi-label", logits=False)(x).epistemic, GEN(ends, task=task)(x).epistemic)
    detector = LatentDensity(ends, task=task).fit(loaders["train"], calibration=loaders["unseen"])
    expected = default(x)
    # Another third of the unseen inputs may teach the temperature and the tails.
    torch.testing.assert_close(detector(x).probabilities, expected.probabilities, rtol=0.0, atol=0.02)
    assert np.corrcoef(detector(x).epistemic, expected.epistemic)[0, 1] > 0.99
    with pytest.warns(UserWarning, match=r"task=MultiLabel\(logits=False\)"):
        GEN(ends, task="multi-label")(x)


def test_a_threshold_decides_what_is_predicted(net, loaders) -> None:
    x = torch.cat([x for x, _ in loaders["test"]])
    eager = LatentDensity(net, "second", task=MultiLabel(threshold=0.1)).fit(loaders["train"])
    usual = LatentDensity(net, "second", task="multi-label").fit(loaders["train"])
    with torch.no_grad():
        assert torch.equal(eager(x).prediction, (net(x).sigmoid() > 0.1).long())
    p, q = (detector.fitted_marginal for detector in (eager, usual))
    assert (p.log_weight.exp() @ p.share > q.log_weight.exp() @ q.share).all()  # and what densities are given


def test_nan_is_surprising_and_has_no_probabilities(default, loaders) -> None:
    x = loaders["test"][0][0].clone()
    x[2, 0] = math.nan
    with pytest.warns(UserWarning, match="NaN or infinity for 1 of 100 inputs"):
        u = default(x)
    assert u.epistemic[2] == math.inf and u.surprising[2] and u.probabilities[2].isnan().all()
    assert u.probabilities[[0, 1, 3]].isfinite().all() and u.aleatoric[2].isnan()


def test_features_from_arrays() -> None:
    x, label = draw(1000, 1)
    features = Features.from_arrays(x.numpy(), label.numpy().astype(bool))
    assert isinstance(features.task, MultiLabel) and features.prediction.dtype == torch.int64
    detector = LatentDensity(None, "z").fit_features(features[:700], features[700:])
    u = detector.predict_features(features[:5])
    assert u.probabilities.shape == (5, LABELS) and u.p_value.shape == (5,)
    with pytest.raises(ValueError, match=r"whole-numbered zeros and ones \(n, L\)"):
        Features.from_arrays(x, label.long() + 1)


def test_what_is_refused(net, loaders) -> None:
    with pytest.raises(ValueError, match="task='multi-label' is for whole inputs, not for pixels: leave pixels= out"):
        LatentDensity(nn.Conv2d(3, 4, 1), "", task="multi-label", pixels=Pixels()).fit([torch.randn(4, 3, 8, 8)])
    with pytest.raises(ValueError, match="may have several labels, pass task='multi-label'"):
        LatentDensity(net, task="classification").fit(loaders["train"])
    alike = loaders["train"][0][0][:1] + 1e-5 * torch.arange(100)[:, None]
    with pytest.raises(ValueError, match="all 100 inputs have the same labels, "):
        LatentDensity(net, "second", task="multi-label").fit([alike])
    with pytest.raises(ValueError, match=r"labels of the predictions' shape, \(2000, 5\), in the loader, but got none"):
        LatentDensity(net, "second", task="multi-label", condition="label").fit([x for x, _ in loaders["train"]])
    thirds = [(x, label + 1) for x, label in loaders["train"]]
    with pytest.raises(ValueError, match="expected zeros and ones"):
        LatentDensity(net, "second", task="multi-label", condition="label").fit(thirds)


def test_methods_are_compared_by_whole_sets_of_labels(net, loaders, unfamiliar) -> None:
    methods = {
        "density": LatentDensity(net, "second", task="multi-label"),
        "neighbours": NearestNeighbours(net, "second", task="multi-label"),
    }
    table = compare(methods, loaders["test"], {"unfamiliar": unfamiliar.split(100)}, train=loaders["train"], rounds=1)
    u, label = methods["density"].predict(loaders["test"]), torch.cat([label for _, label in loaders["test"]])
    right = (u.prediction == label).all(1).double().mean()
    rows = [row for row in table.rows if row["metric"] == "accuracy"]
    assert len(rows) == 2 and all(row["value"] == pytest.approx(float(right)) for row in rows)


@pytest.fixture(scope="module")
def binary() -> dict[str, Loader]:
    """Whether the first label holds: one class or the other."""
    drawn = {"train": draw(1500, 1, noise=3), "unseen": draw(900, 2, noise=3), "test": draw(600, 3, noise=3)}
    return {part: batches(x, label[:, :1]) for part, (x, label) in drawn.items()}


@pytest.fixture(scope="module")
def single(binary) -> nn.Module:
    return trained(Tagger(1), *(torch.cat(part) for part in zip(*binary["train"], strict=True)))


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("condition", ["prediction", "label"])
def test_a_single_logit_with_nothing_to_choose(flat, ends, condition, single, binary, unfamiliar, tmp_path) -> None:
    """Logits or probabilities, (n,) or (n, 1), with labels as binary cross-entropy takes them."""
    net = Tagger(1, ends=ends, flat=flat)
    net.load_state_dict(single.state_dict())
    shaped = {part: [(x, y[:, 0] if flat else y) for x, y in loader] for part, loader in binary.items()}
    detector = LatentDensity(net, task=Classification(logits=not ends), condition=condition)
    detector.fit(shaped["train"], calibration=shaped["unseen"]).threshold(0.05)
    u, label = detector.predict(shaped["test"]), torch.cat([y[:, 0] for _, y in binary["test"]])
    assert u.probabilities.shape == (600, 2) and torch.equal(u.probabilities.argmax(1), u.prediction)
    assert (u.prediction == label).float().mean() > 0.85
    temperature = detector.head.terms["outputs"].method.temperature
    with torch.no_grad():
        logit = torch.cat([single(x)[:, 0] for x, _ in binary["test"]])
        unseen = torch.cat([single(x)[:, 0] for x, _ in binary["unseen"]])
    seen = torch.cat([y[:, 0] for _, y in binary["unseen"]])
    losses = [float(binary_cross_entropy_with_logits(unseen / t, seen)) for t in (1.0, temperature)]
    assert temperature != 1 and losses[1] < losses[0]  # learnt from a third of them, better for all
    torch.testing.assert_close(u.probabilities[:, 1], (logit / temperature).sigmoid(), rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(u.aleatoric, bernoulli(logit.sigmoid().double()).entropy(), rtol=1e-3, atol=1e-6)
    truth = np.repeat([0, 1], [600, 400])
    assert roc_auc_score(truth, torch.cat([u.epistemic, detector(2 * unfamiliar).epistemic])) > 0.85
    detector.save(tmp_path / "detector")
    again = LatentDensity.load(tmp_path / "detector", net).predict(shaped["test"])
    assert torch.equal(again.epistemic, u.epistemic) and torch.equal(again.surprising, u.surprising)
    assert [choice.layer for choice in suggest(net, shaped["train"])] == ["first", "head"]


def test_a_single_logit_by_its_outputs(single, binary) -> None:
    ends = Tagger(1, ends=True)
    ends.load_state_dict(single.state_dict())
    for kind in (GEN, MaxProbability, SoftmaxEntropy, Energy):
        method = kind(single).fit(binary["train"], calibration=binary["unseen"])
        method.threshold(0.1)
        u = method.predict(binary["test"])
        assert 0.05 < u.surprising.float().mean() < 0.16
        if kind is not Energy:
            found = kind(ends, logits=False).predict(binary["test"])
            torch.testing.assert_close(found.epistemic, u.epistemic, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("label", [None, torch.int64, torch.float32])
def test_one_column_does_not_say_what_it_is(single, binary, label) -> None:
    loader = [x if label is None else (x, y[:, 0].to(label)) for x, y in binary["train"]]
    for layers in ("auto", "second"):
        with pytest.raises(ValueError, match=r"one logit for two classes, pass task='classification'.*'regression'"):
            LatentDensity(single, layers).fit(loader)
