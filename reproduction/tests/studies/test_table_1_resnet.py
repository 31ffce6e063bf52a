"""The colour half of table 1 on small drawn data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hidden_uncertainty import GaussianMixture
from reproduction.datasets.images import unit
from reproduction.studies.table_1 import scores as table_1_scores
from reproduction.studies.table_1.paper import RESNET
from reproduction.studies.table_1.rows import DEFAULT
from reproduction.studies.table_1_resnet import data as colour
from reproduction.studies.table_1_resnet import study as table_1_resnet


def test_what_is_unknown_has_the_papers_rows(colour_data: Path) -> None:
    data = colour.read()
    for train in colour.SETS:
        asked = colour.inputs(train, data)
        assert {ood for ood, _ in asked.unknown} == {ood for name, ood, _ in RESNET if name == train}
        assert torch.equal(asked.unknown["hflip", colour.UNFLIPPED], asked.known)
        noise = asked.unknown["noise", DEFAULT] - asked.known
        assert float(noise.std()) == pytest.approx(2 * float(unit(data.train[train][0]).std()), rel=0.02)
    assert data.photographs[DEFAULT].shape == (20, 3, 32, 32)
    assert not torch.equal(data.photographs[DEFAULT], data.photographs["stl10 antialiased"])


def test_the_rough_version_has_every_cell(colour_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        table_1_scores, "GaussianMixture", lambda **o: GaussianMixture(**{**o, "components": 1, "shrinkage": "oas"})
    )
    study = table_1_resnet.run(quick=True, folder=tmp_path / "work")
    rows = {
        (row["variant"], row["train"], row["ood"], row["method"]): row for row in study.rows if row["metric"] == "auroc"
    }
    assert {key[1:] for key in rows if key[0] == DEFAULT} == set(RESNET)
    assert {key[0] for key in rows} == {
        *table_1_resnet.READINGS,
        *colour.NOISE,
        *colour.STL10,
        colour.UNFLIPPED,
        "layer 34 at the logits",
    }
    assert all(row["paper_mean"] == RESNET[key[1:]].mean and 0 <= row["mean"] <= 1 for key, row in rows.items())
    assert rows[colour.UNFLIPPED, "SVHN", "hflip", "layer-9"]["mean"] == 0.5
    logits = {key[3] for key in rows if key[0] == "layer 34 at the logits"}
    assert logits == {"layer-34"} and rows[DEFAULT, "SVHN", "noise", "layer-1"]["n"] == 2
    assert {"method": "ensemble", "metric": "accuracy"}.items() <= study.rows[-1].items()
    assert len(list((tmp_path / "work").iterdir())) == 4
