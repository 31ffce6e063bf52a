"""Both halves of table 1: the paper's numbers, agreement, and the grey half on small drawn data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity
from hidden_uncertainty.metrics import auroc
from reproduction.nets.fcnet import FCNet
from reproduction.studies.table_1 import scores as table_1_scores
from reproduction.studies.table_1.paper import FCNET, RESNET
from reproduction.studies.table_1.rows import DEFAULT, agrees, build_rows, margin, outside
from reproduction.studies.table_1.scores import Densities, Inputs, ensemble_areas
from reproduction.studies.table_1_fcnet import data as grey
from reproduction.studies.table_1_fcnet import study as table_1_fcnet
from reproduction.training.lane import Recipe


@pytest.mark.parametrize(("cells", "total"), [(FCNET, 53.542), (RESNET, 42.849)])
def test_the_papers_numbers_are_all_there(cells: dict, total: float) -> None:
    assert len(cells) == 60 and len({key[:2] for key in cells}) == 12
    assert all(0 <= number.mean <= 1 and 0 <= number.std < 0.06 for number in cells.values())
    assert math.fsum(number.mean for number in cells.values()) == pytest.approx(total)


def test_some_of_them_as_printed() -> None:
    assert FCNET["MNIST", "FashionMNIST", "layer-10"] == (0.811, 0.035)
    assert FCNET["FashionMNIST", "vflip", "ensemble"] == (0.845, 0.014)
    assert RESNET["CIFAR10", "SVHN", "layer-34"] == (0.736, 0.055)
    assert RESNET["SVHN", "rotated", "layer-19"] == (0.689, 0.024)


def test_a_cell_agrees_within_the_larger_of_both_margins() -> None:
    assert margin(0.0, 0.01) == 0.03 and margin(0.03, 0.04) == pytest.approx(0.1)
    row = {"mean": 0.8, "std": 0.03, "paper_mean": 0.89, "paper_std": 0.04}
    assert agrees(row) and not agrees(row | {"std": 0.0})


def test_a_variants_table_is_the_defaults_but_for_its_own_cells() -> None:
    found = {(DEFAULT, *key): [number.mean] for key, number in FCNET.items()}
    found[DEFAULT, "MNIST", "noise", "layer-4"] = [0.5]
    found["other", "MNIST", "noise", "layer-4"] = [0.972]
    found["other", "MNIST", "noise", "layer-1"] = [0.9]
    rows = build_rows(found, FCNET)
    counts = {row["variant"]: row["mean"] for row in rows if row["metric"] == "cells within margin"}
    assert counts == {DEFAULT: 59, "other": 59}
    assert len(outside(rows)) == 1 and "MNIST → noise, layer-4: 0.500" in outside(rows)[0]


def draw(n: int, seed: int, shift: float = 0.0) -> Tensor:
    return torch.randn(n, 1, 2, 3, generator=torch.Generator().manual_seed(seed)) + shift


def test_densities_fitted_together_are_those_fitted_apart() -> None:
    networks = [FCNet(6, 5, 3, seed=seed, initialisation="glorot").eval() for seed in range(2)]
    train = draw(1500, 0)
    asked = Inputs(draw(200, 1), torch.zeros(200, dtype=torch.long), {("far", DEFAULT): draw(150, 2, 0.7)})
    options: dict[str, Any] = {"components": 1, "shrinkage": None}  # one Gaussian has one optimum, whatever the start
    together = Densities(networks, {"1": "layer-1", "4": "layer-4"}, train, asked).areas(options)
    rows = torch.arange(0, 1500, 2)
    some = Densities(networks, {"1": "layer-1", "4": "layer-4"}, train, asked).areas(options, rows)
    for i, network in enumerate(networks):
        for images, found in ((train, together), (train[rows], some)):
            alone = LatentDensity(network, ["1", "4"], GaussianMixture(**options), task="classification")
            alone.fit(images.split(500))
            known, far = alone(asked.known), alone(asked.unknown["far", DEFAULT])
            for layer in ("1", "4"):
                expected = auroc(negative=known.layers[layer].epistemic, positive=far.layers[layer].epistemic)
                assert found[i]["far", DEFAULT][f"layer-{layer}"] == pytest.approx(expected, abs=1e-3)


def test_ensembles_are_asked_the_same() -> None:
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(6, 3)) for _ in range(3)]
    asked = Inputs(draw(50, 1), torch.zeros(50), {("a", DEFAULT): draw(50, 1), ("a", "other"): draw(50, 2, 9.0)})
    areas = ensemble_areas(networks, asked)
    assert areas["a", DEFAULT]["ensemble"] == 0.5 and set(areas) == {("a", DEFAULT), ("a", "other")}
    assert set(asked.of(DEFAULT).unknown) == {("a", DEFAULT)}


def test_scales_and_splits() -> None:
    images = draw(50, 3)
    assert torch.equal(grey.Scale("unit", images)(images), images)
    standard = grey.Scale("standard", images)(images)
    assert abs(float(standard.mean())) < 1e-6 and abs(float(standard.std()) - 1) < 1e-5
    rows, held = grey.split(images)
    assert len(held) == 10 and torch.equal(torch.cat([rows, held]).sort().values, torch.arange(50))
    assert torch.equal(grey.split(images)[1], held)


def test_what_is_unknown_has_the_papers_rows_and_noise_is_of_the_deviation_asked(grey_data: Path) -> None:
    data = grey.read()
    assert set(data.characters) == set(grey.OMNIGLOT) - {"omniglot background"}  # which is not there
    for train in grey.SETS:
        asked = grey.inputs(train, data, grey.Scale("unit", data.train[train][0]))
        assert {ood for ood, _ in asked.unknown} == {ood for name, ood, _ in FCNET if name == train}
        noise = {variant: asked.unknown["noise", variant] - asked.known for variant in grey.NOISE}
        deviation = float(data.train[train][0].std())
        assert float(noise[DEFAULT].std()) == pytest.approx(2 * deviation, rel=0.02)
        assert float(noise["noise 0.5"].std()) == pytest.approx(0.5, rel=0.02)
        assert float(asked.unknown["noise", "noise of 2 deviations, clipped"].min()) == 0


def test_the_rough_version_has_every_cell(grey_data: Path, tmp_path: Path, hasty: None) -> None:
    study = table_1_fcnet.run(quick=True, folder=tmp_path / "work")
    cells = {
        (row["train"], row["ood"], row["method"]): row
        for row in study.rows
        if row["metric"] == "auroc" and row["variant"] == DEFAULT
    }
    assert set(cells) == set(FCNET)
    assert all(row["paper_mean"] == FCNET[key].mean and 0 <= row["mean"] <= 1 for key, row in cells.items())
    assert cells["MNIST", "noise", "layer-1"]["mean"] > 0.9
    counts = [row for row in study.rows if row["metric"] == "cells within margin"]
    assert {row["variant"] for row in counts} >= {DEFAULT, "noise 0.5", "omniglot antialiased"}
    accuracies = {(r["train"], r["method"]): r["mean"] for r in study.rows if r["metric"] == "accuracy"}
    assert accuracies["MNIST", "network"] > 0.8 and len(accuracies) == 4
    again = table_1_fcnet.run(quick=True, folder=tmp_path / "work")  # networks are found
    assert again.rows == study.rows and len(list((tmp_path / "work").iterdir())) == 6


def test_rough_and_full_versions_keep_their_networks_apart(
    grey_data: Path, tmp_path: Path, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_WORK", str(tmp_path / "work"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "fcnet-mnist-default-0.safetensors").write_bytes(b"of a full version")
    table_1_fcnet.run(quick=True)
    assert len(list((tmp_path / "work" / "quick").iterdir())) == 6


def test_variants_change_one_thing_each(grey_data: Path, hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_1_fcnet, "MEMBERS", 2)
    monkeypatch.setattr(table_1_fcnet, "Recipe", _short)
    study = table_1_fcnet.run(seeds=[0, 1])
    rows = {(r["variant"], r["train"], r["ood"], r["method"]): r for r in study.rows if r["metric"] == "auroc"}
    for name in [*table_1_fcnet.TRAININGS, *table_1_fcnet.READINGS]:
        assert rows[name, "MNIST", "hflip", "layer-4"]["n"] == 2
    assert ("ridge 1e-4", "MNIST", "hflip", "ensemble") not in rows
    assert rows["weights of the best epoch", "MNIST", "hflip", "ensemble"]["n"] == 2
    assert rows["decay decoupled", "MNIST", "hflip", "ensemble"]["n"] == 1
    assert rows["noise 0.5", "MNIST", "noise", "layer-4"]["n"] == 2
    assert ("noise 0.5", "MNIST", "hflip", "layer-4") not in rows


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks, and mixtures that take two steps."""
    monkeypatch.setattr(table_1_fcnet, "FCNet", Small)
    monkeypatch.setattr(
        table_1_scores, "GaussianMixture", lambda **o: GaussianMixture(**{**o, "components": 2, "max_iter": 2})
    )


class Small(FCNet):
    """Twelve units per layer, for little data and time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(hidden=12, **options)


def _short(**options: Any) -> Any:
    return Recipe(epochs=3, **options)
