"""The UCI study on small tables of the same layout, written here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from reproduction.datasets import Points, Table, uci
from reproduction.studies.uci import methods
from reproduction.studies.uci.picture import PANELS, draw
from reproduction.studies.uci.study import _measure, _row, run

LATENT = ("latent-prediction", "latent-label", "outputs-label")
BOTH = (*LATENT, "ensemble", "mc-dropout")
SLOW = ("flow-label", "gaussian-process")

pytestmark = pytest.mark.filterwarnings("ignore:.*training did not converge in max_epochs=20")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A yacht and an energy of 200 rows, with noise that grows with the second of three features; two splits each."""
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_DATA", str(tmp_path))
    for seed, name in enumerate(("yacht", "energy")):
        random = np.random.default_rng(seed)
        x = random.uniform(-1, 1, size=(200, 3))
        y = 10 + 1e-3 * (x[:, 0] + np.exp(x[:, 1] - 1) * random.normal(size=200))
        folder = tmp_path / "UCI_Datasets" / name / "data"
        folder.mkdir(parents=True)
        np.savetxt(folder / "data.txt", np.column_stack([x, y]), fmt="%.9f")
        np.savetxt(folder / "index_features.txt", [0, 1, 2], fmt="%d")
        np.savetxt(folder / "index_target.txt", [3], fmt="%d")
        for split in range(2):
            order = random.permutation(200)
            np.savetxt(folder / f"index_train_{split}.txt", order[:160], fmt="%d")
            np.savetxt(folder / f"index_test_{split}.txt", order[160:], fmt="%d")


@pytest.fixture
def parts(tables: None) -> methods.Parts:
    return methods.Parts.of(uci("yacht", 1))


@pytest.mark.usefixtures("tables")
def test_a_quick_run_has_every_number_and_can_be_written(tmp_path: Path) -> None:
    study = run(quick=True)
    found = {(row["table"], row["method"], row["metric"]): row["mean"] for row in study.rows}
    assert len(found) == len(study.rows)
    assert all(row["n"] == 1 for row in study.rows)
    for table in ("yacht", "energy"):
        for method in (*BOTH, *SLOW, "network", "plain"):
            own = {metric: value for (t, m, metric), value in found.items() if (t, m) == (table, method)}
            kinds = {kind for kind in ("aleatoric", "epistemic") if f"ause of {kind}" in own}
            assert (
                kinds == {"aleatoric", "epistemic"}
                if method in (*BOTH, "flow-label")
                else len(kinds) == (method != "plain")
            )
            assert all(-1 <= own[f"rank correlation of {kind} with error"] <= 1 for kind in kinds)
            assert 0.6 < own["coverage"] <= 1
            assert own["width relative to plain"] == pytest.approx(own["width"] / found[table, "plain", "width"], 2e-3)
            assert 1e-4 < own["rmse"] < 2e-3  # in the units of the table, whose targets deviate by 0.0007
        assert len({found[table, method, "rmse"] for method in (*LATENT, "flow-label", "network")}) == 1
    assert study.data == {f"{name}, split 0": uci(name, 0).digest for name in ("yacht", "energy")}
    path = study.write(tmp_path / "results", "a command")
    assert json.loads(path.read_text())["rows"] == study.rows
    assert path.with_suffix(".png").stat().st_size > 10_000


@pytest.mark.usefixtures("tables")
def test_splits_are_repetitions_and_large_tables_have_no_slow_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "MOST_ROWS", 100)
    monkeypatch.setattr("reproduction.studies.uci.study.EPOCHS", 3)
    study = run(seeds=[1, 0], tables=["energy"])
    assert list(study.seeds) == [1, 0]
    assert {row["n"] for row in study.rows} == {2}
    assert {row["method"] for row in study.rows} == {*BOTH, "network", "plain"}
    assert next(row for row in study.rows if row["metric"] == "rmse")["std"] > 0
    assert run(seeds=[1, 0], tables=["energy"]).rows == study.rows


@pytest.mark.usefixtures("tables")
def test_parts_are_apart_and_standardised_by_the_rows_to_fit() -> None:
    table = uci("yacht", 1)
    parts = methods.Parts.of(table)
    assert [len(part) for part in parts[:4]] == [112, 16, 32, 40]
    assert parts.fit.x.double().mean(0).abs().max() < 1e-5
    assert parts.fit.y.double().var(correction=0) == pytest.approx(1, abs=1e-4)
    mine = torch.cat([part.y for part in parts[:3]])
    own = (mine.double() - mine.double().mean()) * parts.unit
    raw = table.scale_y.undo(table.train.y.double())
    torch.testing.assert_close(own.sort().values, (raw - raw.mean()).sort().values, atol=1e-8, rtol=0)
    assert torch.cat([part.x[:, 0] for part in parts[:4]]).unique().numel() == 200


@pytest.mark.usefixtures("tables")
def test_rows_to_calibrate_or_test_with_do_not_move_the_rows_to_fit() -> None:
    table = uci("yacht", 0)
    unseen, _ = table.train.divide(0.2, seed=0)
    moved = torch.where(torch.isin(table.train.y, unseen.y), table.train.y + 100, table.train.y)
    other = Table(
        table.name,
        table.split,
        Points(table.train.x, moved),
        Points(table.test.x, table.test.y - 50),
        table.scale_x,
        table.scale_y,
        table.digest,
    )
    before, after = methods.Parts.of(table), methods.Parts.of(other)
    assert torch.equal(before.fit.y, after.fit.y)
    assert torch.equal(before.validation.y, after.validation.y)
    assert before.unit == after.unit
    assert (after.calibration.y - before.calibration.y).min() > 50


def test_no_method_looks_at_targets_of_the_test_part(parts: methods.Parts) -> None:
    networks = methods.train([parts], [1], epochs=2)[0]
    blind = parts._replace(test=Points(parts.test.x, torch.zeros_like(parts.test.y)))
    before, after = (methods.score(given, networks, 1, quick=True) for given in (parts, blind))
    for name, scores in before.items():
        for mine, other in zip(scores, after[name], strict=True):
            assert mine is None and other is None if mine is None else torch.equal(mine, other)


def test_networks_of_a_split_differ_and_are_those_of_the_split_alone(tables: None) -> None:
    splits = [methods.Parts.of(uci("yacht", split)) for split in range(2)]
    both = methods.train(splits, [0, 1], epochs=2)
    alone = methods.train(splits[1:], [1], epochs=2)[0]
    assert len(both[1].members) == 5
    for mine, other in zip((*both[1].members, both[1].dropped), (*alone.members, alone.dropped), strict=True):
        torch.testing.assert_close(mine(splits[1].test.x), other(splits[1].test.x), atol=1e-5, rtol=1e-4)
    said = torch.stack([member(splits[0].test.x)[:, 0] for networks in both for member in networks.members])
    assert torch.pdist(said.detach()).min() > 1e-3


def test_intervals_are_split_conformal(parts: methods.Parts) -> None:
    random = torch.Generator().manual_seed(0)
    unseen, test = torch.randn(32, generator=random), torch.randn(40, generator=random)
    scales = [1 + torch.rand(n, generator=random) for n in (32, 40)]
    low, high = methods._interval(unseen, test, scales, parts)
    errors = np.sort(np.abs(parts.calibration.y.numpy() - unseen.numpy()) / scales[0].numpy())
    half = float(errors[int(np.ceil(33 * 0.9)) - 1]) * scales[1]
    torch.testing.assert_close(high - test, half)
    torch.testing.assert_close(test - low, half)


def test_numbers_are_in_the_units_of_the_table_and_rank_as_scipy_does(parts: methods.Parts) -> None:
    random = torch.Generator().manual_seed(0)
    y = parts.test.y
    said, doubt = (torch.randn(40, generator=random) for _ in range(2))
    half = torch.rand(40, generator=random)
    found: dict[tuple[str, str], list[float]] = {}
    scored = {
        "one": methods.Scored(said, said - half, said + half, epistemic=doubt),
        "plain": methods.Scored(said, said - 2, said + 2),
    }
    _measure(scored, parts, found)
    error = (said - y).abs()
    assert found["one", "rmse"] == [pytest.approx(float((error * parts.unit).square().mean().sqrt()))]
    assert found["one", "width"] == [pytest.approx(float(2 * half.mean() * parts.unit))]
    assert found["one", "width relative to plain"] == [pytest.approx(float(half.mean() / 2))]
    assert found["one", "coverage"] == [pytest.approx(float((error <= half).float().mean()))]
    for name, score in (("epistemic", doubt), ("width", (said + half) - (said - half))):
        expected = spearmanr(score, error).statistic
        assert found["one", f"rank correlation of {name} with error"] == [pytest.approx(expected)]
    assert not any("aleatoric" in metric for _, metric in found)
    _measure(scored | {"one": scored["one"]._replace(epistemic=torch.ones(40))}, parts, found)
    assert found["one", "rank correlation of epistemic with error"][1] == 0


def test_small_numbers_keep_their_digits() -> None:
    row = _row([0.00031237, 0.00031239], table="naval", metric="rmse")
    assert row == {"table": "naval", "metric": "rmse", "mean": 0.0003124, "std": 1.414e-08, "n": 2}


def test_the_picture_shows_each_method_in_its_place() -> None:
    rows = [
        {"table": table, "method": method, "metric": metric, "mean": 0.1 * i, "std": 0.01, "n": 5}
        for table in ("a", "b")
        for i, method in enumerate(("latent-label", "ensemble", "plain"))
        for metric in PANELS
        if (method, metric) != ("ensemble", "width relative to plain")
    ]
    rows.append(
        {"table": "b", "method": "ensemble", "metric": "width relative to plain", "mean": 9.5, "std": 1, "n": 5}
    )
    figure = draw(rows)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["latent-label", "ensemble"]
    marks = [[bars.lines[0].get_xydata().tolist() for bars in ax.containers] for ax in figure.axes]
    assert marks[0] == [[[0.0, -0.2], [0.0, 0.8]], [[0.1, 0.2], [0.1, 1.2]]]
    assert [len(panel) for panel in marks] == [2, 2, 1]
    assert [text.get_text() for text in figure.axes[2].texts] == ["9.5 →"]  # too far to be drawn
