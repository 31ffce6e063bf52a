"""The regularisation study on small drawn data, and the rule by which a weight is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from hidden_uncertainty import GaussianMixture
from hidden_uncertainty.metrics.regression import psnr
from reproduction.render import render
from reproduction.studies.regularisation import study as regularisation
from reproduction.studies.regularisation.picture import draw_steps, draw_weights
from reproduction.studies.regularisation.rows import build_rows, choose, quality
from reproduction.studies.table_1 import scores as table_1_scores
from reproduction.training.lane import Recipe


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small perceptrons, and one Gaussian per class."""
    monkeypatch.setattr(regularisation, "UNITS", 12)
    monkeypatch.setattr(
        table_1_scores, "GaussianMixture", lambda **o: GaussianMixture(**{**o, "components": 1, "shrinkage": "oas"})
    )


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ({0.0: [0.9], 1.0: [0.9], 10.0: [0.89]}, 1.0),
        ({0.0: [0.90, 0.92], 1.0: [0.905], 10.0: [0.88]}, 1.0),  # the deviation is 0.014
        ({0.0: [0.90, 0.92], 1.0: [0.8], 10.0: [0.91]}, 10.0),
        ({0.0: [0.9], 1.0: [0.8]}, 0.0),
    ],
)
def test_the_largest_weight_that_costs_no_accuracy(accuracies: dict[float, list[float]], expected: float) -> None:
    assert choose(accuracies) == expected


def test_mnist_roughly(grey_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regularisation, "Recipe", lambda **options: Recipe(epochs=20, learning_rate=0.01))
    study = regularisation.run(quick=True, sets=["MNIST"], folder=tmp_path / "work")
    rows = {(row["method"], row["metric"], row["ood"]): row for row in study.rows}
    weights = ["weight 0", "weight 1", "weight 100"]
    assert list(dict.fromkeys(row["method"] for row in study.rows)) == weights
    for weight in weights:
        turned = [f"rotated {step}°" for step in range(0, 181, 20)]
        assert [ood for m, metric, ood in rows if (m, metric) == (weight, "accuracy")] == [None, *turned]
        areas = {ood: row["mean"] for (m, metric, ood), row in rows.items() if (m, metric) == (weight, "auroc")}
        assert set(areas) == {"FashionMNIST", *turned[1:]}
        mean = sum(areas[step] for step in turned[1:]) / 9
        assert rows[weight, "mean auroc over steps", "rotation"]["mean"] == pytest.approx(mean, abs=1e-4)
        assert rows[weight, "accuracy", turned[0]]["mean"] == rows[weight, "accuracy", None]["mean"]
        assert 0 <= rows[weight, "validation accuracy", None]["mean"] <= 1
    assert ("weight 0", "psnr", None) not in rows
    assert rows["weight 100", "psnr", None]["mean"] > rows["weight 1", "psnr", None]["mean"]
    assert all(row["paper_mean"] is None and row["variant"] == "default" for row in study.rows)
    assert study.settings["chosen"].keys() == {"MNIST"} and set(study.pictures) == {"", "perturbed"}
    assert len(list((tmp_path / "work").iterdir())) == 3
    again = regularisation.run(quick=True, sets=["MNIST"], folder=tmp_path / "work")  # found
    assert again.rows == study.rows
    text = render(json.loads(study.write(tmp_path, "make it").read_text(encoding="utf-8")))
    assert "| MNIST, weight | accuracy | validation accuracy | PSNR (dB) | AUROC, FashionMNIST |" in text
    assert text.count("**") == 2 and (tmp_path / "regularisation-perturbed.png").stat().st_size > 10_000


def test_svhn_roughly(colour_data: Path, tmp_path: Path) -> None:
    study = regularisation.run(quick=True, sets=["SVHN"], folder=tmp_path / "work")
    rows = {(row["method"], row["metric"], row["ood"]) for row in study.rows}
    assert {"weight 0", "weight 10"} == {method for method, _, _ in rows}
    assert {("weight 10", "auroc", "STL10"), ("weight 10", "accuracy", "noise 0"), ("weight 10", "psnr", None)} <= rows
    assert {ood for _, metric, ood in rows if metric == "auroc"} == {
        "STL10",
        *(f"noise {n}" for n in range(10, 81, 10)),
    }
    files = sorted(path.name for path in (tmp_path / "work").iterdir())
    assert files == ["resnet-svhn-0.safetensors", "resnet-svhn-regularised-weight-10.0-0.safetensors"]
    assert set(study.data) == {"SVHN train", "SVHN test", "STL10 test"}


def test_quality_is_that_of_the_decoder() -> None:
    network = regularisation._perceptron(1.0, seed=0).eval()
    images = torch.rand(7, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = psnr(images, network.decoder(nn.Sequential(*list(network.network)[:11])(images)))
    assert quality(network, images, batch=3) == pytest.approx(expected, abs=1e-4)


def test_decoders_are_as_deep_as_what_they_undo() -> None:
    perceptron, residual = regularisation._perceptron(1.0, 3), regularisation._residual((4, 8, 16), 1.0, 3)
    assert len(perceptron.decoder.linear) == 4 and perceptron.seed == residual.seed == 3
    assert residual.decoder.stacks == 1 and residual.layer == "19"
    assert residual(torch.rand(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("sets", [[], ["CIFAR10"]])
def test_unknown_sets_are_refused(sets: list[str]) -> None:
    with pytest.raises(ValueError, match="some of"):
        regularisation.run(sets=sets)


def test_pictures_of_both_sets() -> None:
    asked = [(None, "accuracy"), ("rotated 0°", "accuracy"), ("FashionMNIST", "auroc"), ("rotated 20°", "auroc")]
    found = {
        "MNIST": {(weight, *each): [0.5, 0.6] for weight in (0.0, 1.0, 10.0) for each in asked},
        "SVHN": {(weight, *each): [0.5] for weight in (0.0, 1.0) for each in [(None, "psnr"), ("noise 10", "auroc")]},
    }
    rows = [row for train, values in found.items() for row in build_rows(train, values)]
    chosen = {"MNIST": 1.0, "SVHN": 0.0}
    swept = draw_weights(rows, chosen)
    assert [ax.get_title() for ax in swept.axes][2::3] == ["MNIST: detection of FashionMNIST", "SVHN: detection"]
    assert [label.get_text() for label in swept.axes[0].get_xticklabels()] == ["1", "10"]
    legends = [ax.get_legend() for ax in draw_steps(rows, chosen).axes]
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends if legend] == [
        ["0", "1", "10"],
        ["0", "1"],
    ]
    assert legends[1] is not None and "dashed" in legends[1].get_title().get_text()
