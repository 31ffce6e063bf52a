"""The depth figures: measures against independent references, and both halves on small drawn data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity
from hidden_uncertainty.baselines import DeepEnsemble, SoftmaxEntropy
from reproduction.nets.fcnet import FCNet
from reproduction.render import render
from reproduction.studies.layer_depth import scores as layer_depth_scores
from reproduction.studies.layer_depth import study as layer_depth
from reproduction.studies.layer_depth.data import SHIFTS, Shift
from reproduction.studies.layer_depth.measures import measure
from reproduction.studies.layer_depth.scores import Scores, read_layers, read_outputs
from reproduction.studies.ridge import as_share
from reproduction.studies.table_1 import scores as table_1_scores
from reproduction.studies.table_1.cells import Asked
from reproduction.studies.table_1.rows import DEFAULT
from reproduction.studies.table_1_fcnet import study as table_1_fcnet

STEPS, IMAGES = 4, 230
SHIFT = Shift("rotation", (0, 20, 40, 60))


def drawn(seed: int, strength: float) -> Scores:
    """Scores that rise from step to step, and answers that get worse."""
    random = torch.Generator().manual_seed(seed)
    step = torch.arange(STEPS)[:, None]
    epistemic = torch.randn(STEPS, IMAGES, generator=random) + strength * step
    aleatoric = torch.randn(IMAGES, generator=random).round(decimals=1)  # some are equal
    right = torch.rand(STEPS, IMAGES, generator=random) < 0.95 - 0.2 * step
    right[0] &= aleatoric < 1.5
    return Scores(epistemic, right, aleatoric)


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, list[Scores]], dict[tuple, dict[str, Any]], dict[str, Any]]:
    found = {"layer-1": [drawn(0, 1.0), drawn(1, 1.1)], "layer-4": [drawn(2, 0.3), drawn(3, 0.4)]}
    found["layer-4"] = [Scores(b.epistemic, a.right, b.aleatoric) for a, b in zip(*found.values(), strict=True)]
    found["softmax"] = [Scores(s.epistemic[:1], s.right[:1], s.aleatoric + 0.1) for s in found["layer-1"]]
    found |= {"mc-dropout": [drawn(4, 0.5), drawn(5, 0.6)], "ensemble": [drawn(6, 0.7)]}
    rows, curves = measure("MNIST", SHIFT, found)
    by = {(row["ood"], row["method"], row["metric"]): row for row in rows}
    assert len(by) == len(rows)
    return found, by, curves


def test_steps_are_the_papers() -> None:
    assert SHIFTS["MNIST"].names == [f"rotated {angle}°" for angle in (0, 20, 40, 60, 80, 100, 120, 140, 160, 180)]
    assert SHIFTS["SVHN"].names == [f"noise {level}" for level in (0, 10, 20, 30, 40, 50, 60, 70, 80)]
    images = torch.rand(50, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    inputs = SHIFTS["SVHN"].inputs(images, torch.zeros(50))
    assert inputs.known is images and [key[0] for key in inputs.unknown] == SHIFTS["SVHN"].names[1:]
    for level in (10, 80):
        noise = inputs.unknown[f"noise {level}", DEFAULT] - images
        assert float(noise.std()) == pytest.approx(level / 255, rel=0.02)
    turned = SHIFTS["MNIST"].inputs(images, torch.zeros(50)).unknown["rotated 180°", DEFAULT]
    assert torch.equal(turned, images.flip(2, 3))


def test_every_step_is_measured(measured: Any) -> None:
    found, rows, curves = measured
    for method, each in found.items():
        if method == "softmax":
            continue
        for step, name in enumerate(SHIFT.names):
            doubts = [float(scores.epistemic[step].double().mean()) for scores in each]
            row = rows[name, method, "mean epistemic"]
            assert row["mean"] == pytest.approx(np.mean(doubts), abs=1e-4) and row["n"] == len(each)
            areas = [_auroc(scores.epistemic[0], scores.epistemic[step]) for scores in each]
            assert curves["auroc"][method]["mean"][step] == pytest.approx(np.mean(areas), abs=1e-5)
            if step:
                row = rows[name, method, "auroc"]
                assert row["mean"] == pytest.approx(np.mean(areas), abs=1e-4)
                assert row["std"] == pytest.approx(np.std(areas, ddof=1) if len(areas) > 1 else 0, abs=1e-4)
                assert row["paper_mean"] is None and row["variant"] == DEFAULT
    assert ("rotated 0°", "layer-1", "auroc") not in rows and curves["auroc"]["layer-1"]["mean"][0] == 0.5
    for name, method in (("network", "layer-4"), ("mc-dropout", "mc-dropout"), ("ensemble", "ensemble")):
        for step, ood in enumerate(SHIFT.names):
            expected = np.mean([float(scores.right[step].float().mean()) for scores in found[method]])
            assert rows[ood, name, "accuracy"]["mean"] == pytest.approx(expected, abs=1e-4)
    assert {key[1] for key in rows if key[2] == "accuracy"} == {"network", "mc-dropout", "ensemble"}


def test_measures_over_all_steps(measured: Any) -> None:
    found, rows, _ = measured
    areas = {
        method: np.array([[_auroc(s.epistemic[0], step) for step in s.epistemic[1:]] for s in each])
        for method, each in found.items()
        if method != "softmax"
    }
    for method, each in found.items():
        if method == "softmax":
            assert not any(key[0] == "rotation" and key[1] == method for key in rows)
            continue
        assert rows["rotation", method, "mean auroc over steps"]["mean"] == pytest.approx(
            areas[method].mean(), abs=1e-4
        )
        ranks = [stats.spearmanr(s.epistemic.mean(1), s.right.float().mean(1)).statistic for s in each]
        row = rows["rotation", method, "rank correlation of uncertainty with accuracy"]
        assert row["mean"] == pytest.approx(np.mean(ranks), abs=1e-4)
        pooled = [_raulc(s.epistemic.flatten().numpy(), s.right.flatten().numpy()) for s in each]
        assert rows["rotation", method, "raulc"]["mean"] == pytest.approx(np.mean(pooled), abs=1e-4)
        for other in ("mc-dropout", "ensemble"):
            if method == other:
                assert ("rotation", method, f"distance of curve to {other}") not in rows
                continue
            mean = areas[other].mean(0)
            alike = np.mean([np.corrcoef(curve, mean)[0, 1] for curve in areas[method]])
            assert rows["rotation", method, f"correlation of curve with {other}"]["mean"] == pytest.approx(
                alike, abs=1e-4
            )
            apart = np.abs(areas[method] - mean).mean()
            assert rows["rotation", method, f"distance of curve to {other}"]["mean"] == pytest.approx(apart, abs=1e-4)


def test_rejection_by_aleatoric_uncertainty(measured: Any) -> None:
    found, rows, curves = measured
    assert curves["percentiles"] == list(range(1, 101))
    for method, each in found.items():
        kept = np.array([[_kept(s, share) for share in range(1, 101)] for s in each])
        np.testing.assert_allclose(curves["rejection"][method]["mean"], kept.mean(0), atol=1e-5)
        half = rows[None, method, "accuracy of the most certain half"]["mean"]
        assert half == pytest.approx(kept[:, 49].mean(), abs=1e-4)
        assert rows[None, method, "area under accuracy-rejection"]["mean"] == pytest.approx(kept.mean(), abs=0.01)
    # The same order as the softmax's, of the same networks; another's differs.
    assert rows[None, "layer-1", "distance of rejection curve to softmax"]["mean"] == 0
    assert rows[None, "layer-4", "distance of rejection curve to softmax"]["mean"] > 0.005
    assert (None, "softmax", "distance of rejection curve to softmax") not in rows


def test_what_is_not_defined_has_no_row() -> None:
    scores = drawn(0, 0.5)
    perfect = [scores._replace(right=torch.ones_like(scores.right))]
    constant = [perfect[0]._replace(epistemic=torch.zeros_like(scores.epistemic))]
    found = {"layer-1": perfect, "softmax": perfect, "mc-dropout": constant, "ensemble": perfect}
    rows, _ = measure("MNIST", SHIFT, found)
    metrics = {(row["method"], row["metric"]) for row in rows}
    assert ("layer-1", "raulc") not in metrics and ("layer-1", "mean auroc over steps") in metrics
    assert ("layer-1", "rank correlation of uncertainty with accuracy") not in metrics
    assert ("layer-1", "correlation of curve with mc-dropout") not in metrics
    assert ("layer-1", "correlation of curve with ensemble") in metrics


def test_layers_are_scored_as_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    # One Gaussian has one optimum, whatever the start; a ridge keeps rounding small where units never vary.
    options: dict[str, Any] = {"components": 1, "shrinkage": None, "ridge": 1e-3}
    monkeypatch.setattr(layer_depth_scores, "DENSITY", options)
    random = torch.Generator().manual_seed(0)
    networks = [FCNet(16, 5, 3, seed=seed, initialisation="glorot").eval() for seed in range(2)]
    train, test = torch.randn(1500, 1, 4, 4, generator=random), torch.randn(200, 1, 4, 4, generator=random)
    labels = torch.randint(3, (200,), generator=random)
    inputs = SHIFT.inputs(test, labels)
    found, _ = read_layers(
        networks, Asked("MNIST", train, torch.arange(1500), inputs, {"1": "layer-1", "4": "layer-4"})
    )
    assert list(found) == ["layer-1", "layer-4", "softmax"]
    for i, network in enumerate(networks):
        features = LatentDensity(network, ["1", "4"], task="classification").extract(train.split(500))
        shares = {name: as_share(options["ridge"], z, features.prediction) for name, z in features.z.items()}
        densities = {name: GaussianMixture(**{**options, "ridge": share}) for name, share in shares.items()}
        alone = LatentDensity(network, ["1", "4"], densities, task="classification").fit(train.split(500))
        for step, images in enumerate((test, *inputs.unknown.values())):
            expected = alone(images)
            for name in ("1", "4"):
                scores = found[f"layer-{name}"][i]
                torch.testing.assert_close(
                    scores.epistemic[step], expected.layers[name].epistemic, rtol=1e-3, atol=1e-3
                )
                assert torch.equal(scores.right[step], expected.prediction == labels)
                if step == 0:
                    log_aleatoric = expected.layers[name].log_aleatoric
                    torch.testing.assert_close(scores.aleatoric, log_aleatoric, rtol=1e-2, atol=1e-2)
        softmax = found["softmax"][i]
        assert softmax.epistemic.shape == (1, 200)
        torch.testing.assert_close(softmax.aleatoric, SoftmaxEntropy(network)(test).log_aleatoric)


def test_batches_do_not_change_what_outputs_say() -> None:
    random = torch.Generator().manual_seed(0)
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(16, 3)) for _ in range(3)]
    test, labels = torch.randn(50, 1, 4, 4, generator=random), torch.randint(3, (50,), generator=random)
    ensemble = DeepEnsemble(networks, task="classification")
    inputs = SHIFT.inputs(test, labels)
    scores = read_outputs(ensemble, inputs, 20)
    for step, images in enumerate((test, *inputs.unknown.values())):
        expected = ensemble(images)
        torch.testing.assert_close(scores.epistemic[step], expected.epistemic)
        assert torch.equal(scores.right[step], expected.prediction == labels)
    torch.testing.assert_close(scores.aleatoric.exp(), ensemble(test).aleatoric)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks, and mixtures of one component."""
    monkeypatch.setattr(table_1_fcnet, "FCNet", Small)
    monkeypatch.setattr(layer_depth, "FCNet", Small)
    options = {"components": 1, "shrinkage": "oas", "max_iter": 2}
    monkeypatch.setattr(table_1_scores, "GaussianMixture", lambda **o: GaussianMixture(**{**o, **options}))


class Small(FCNet):
    """Twelve units per layer, for little data and time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(hidden=12, **options)


def test_the_rough_version_has_every_row(
    grey_data: Path, colour_data: Path, tmp_path: Path, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = layer_depth.run(quick=True, folder=tmp_path / "work")
    methods = {
        "MNIST": ["layer-1", "layer-4", "layer-7", "layer-10", "mc-dropout", "ensemble"],
        "SVHN": ["layer-1", "layer-9", "layer-19", "layer-34", "mc-dropout", "ensemble"],
    }
    rows = {(row["train"], row["ood"], row["method"], row["metric"]): row for row in study.rows}
    assert len(rows) == len(study.rows)
    for train, names in methods.items():
        for method in names:
            for ood in SHIFTS[train].names[1:]:
                assert 0 <= rows[train, ood, method, "auroc"]["mean"] <= 1
            assert (train, SHIFTS[train].kind, method, "mean auroc over steps") in rows
            assert (train, None, method, "distance of rejection curve to softmax") in rows
        assert (train, None, "softmax", "area under accuracy-rejection") in rows
        assert (train, SHIFTS[train].names[0], "network", "accuracy") in rows
    assert rows["MNIST", "rotated 0°", "network", "accuracy"]["mean"] > 0.8
    assert (
        rows["MNIST", "rotated 0°", "ensemble", "accuracy"]["mean"]
        > (rows["MNIST", "rotated 100°", "ensemble", "accuracy"]["mean"])
    )
    assert set(study.data) == {f"{name} {part}" for name in methods for part in ("train", "test")}
    assert study.settings["repetitions"]["SVHN"]["ensemble"] == 1 and set(study.pictures) == {"", "aleatoric"}
    files = {path.name for path in (tmp_path / "work").iterdir()}
    assert files == {
        *(f"fcnet-mnist-default-{seed}.safetensors" for seed in range(3)),
        *(f"resnet-svhn-{seed}.safetensors" for seed in range(2)),
        "fcnet-mnist-dropout-0.2-0.safetensors",
        "resnet-svhn-dropout-0.2-0.safetensors",
    }

    # Networks of table 1 are the same; one half is the same alone, and its file is rendered.
    table_1_fcnet.run(quick=True, folder=tmp_path / "work")
    assert len(list((tmp_path / "work").glob("fcnet-mnist-default-*"))) == 3
    half = layer_depth.run(quick=True, sets=["MNIST"], folder=tmp_path / "work")
    assert half.rows == [row for row in study.rows if row["train"] == "MNIST"]
    path = study.write(tmp_path / "results", "made so")
    text = render(json.loads(path.read_text(encoding="utf-8")))
    assert "| MNIST | layer-10 |" in text and "| SVHN, mean of | method | noise 0 |" in text and "`made so`" in text
    assert {file.name for file in path.parent.iterdir()} == {
        "layer-depth.json",
        "layer-depth.png",
        "layer-depth-aleatoric.png",
    }


def test_sets_are_checked() -> None:
    with pytest.raises(ValueError, match=r"some of \('MNIST', 'SVHN'\), got \('CIFAR10',\)"):
        layer_depth.run(sets=["CIFAR10"])
    with pytest.raises(ValueError, match=r"got \(\)"):
        layer_depth.run(sets=[])


def _auroc(known: Tensor, other: Tensor) -> float:
    return float(roc_auc_score(np.r_[np.zeros(len(known)), np.ones(len(other))], np.r_[known, other]))


def _raulc(scores: np.ndarray, right: np.ndarray) -> float:
    """Straight from the definition; no two scores are equal."""

    def area(order: np.ndarray) -> float:
        lift = right[order].cumsum() / np.arange(1, len(order) + 1) / right.mean()
        return float(lift.mean() - 1)

    return area(np.argsort(scores)) / area(np.argsort(~right, kind="stable"))


def _kept(scores: Scores, share: int) -> float:
    """Accuracy of a share of the images, averaged over many orders of those that are equally uncertain."""
    aleatoric, right = scores.aleatoric.numpy(), scores.right[0].numpy()
    count = int(np.ceil(share * len(aleatoric) / 100))
    cut = np.sort(aleatoric)[count - 1]
    below, at = aleatoric < cut, aleatoric == cut
    return float((right[below].sum() + (count - below.sum()) * right[at].mean()) / count)
