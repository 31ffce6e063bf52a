"""The study of rivals on small drawn data: it resumes, and is rendered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from typer.testing import CliRunner

from reproduction.__main__ import app
from reproduction.render import render
from reproduction.results import Study
from reproduction.studies.rivals import sanity, study
from reproduction.studies.rivals.records import Records
from reproduction.studies.rivals.rows import build_sanity

NAMES = ["plain", "reconstruction 100", "VIB", "DUQ", "SNGP", "DDU", "distance"]


def test_the_study_roughly(grey_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    found = study.run(
        quick=True, sets=["MNIST"], only=[*NAMES, "check DUQ two moons", "check DDU ambiguous"], folder=work
    )
    rows = {(row["method"], row["metric"], row["ood"]): row for row in found.rows if row["train"] == "MNIST"}
    methods = {method for method, metric, _ in rows if metric == "mean auroc"}
    assert {"library's default", "latent density, layer 1", "VIB", "DUQ", "SNGP", "DDU", "distance"} < methods
    oods = {ood for method, metric, ood in rows if (method, metric) == ("DUQ", "auroc")}
    assert oods == {"FashionMNIST", "OMNIGLOT", "noise", "rotated", "hflip", "vflip"}
    areas = [rows["DUQ", "auroc", ood]["mean"] for ood in oods]
    assert rows["DUQ", "mean auroc", None]["mean"] == pytest.approx(sum(areas) / 6, abs=1e-4)
    assert {("SNGP", "raulc", "rotation"), ("DDU", "training seconds", None), ("DDU", "passes", None)} <= set(rows)
    assert set(found.pictures) == {"", "moons", "ambiguous"}
    kept = sorted(path.name for path in work.iterdir())
    assert len(kept) == 2 * len(NAMES) + 2 and "rivals-mnist-duq-0.safetensors" in kept
    text = render(json.loads(found.write(tmp_path, "make it").read_text(encoding="utf-8")))
    assert (
        "| method | trained on | accuracy | mean AUROC |" in text and "Missing: plain on FashionMNIST, seed 0" in text
    )
    assert "| density of layer 10, by reconstruction | MNIST |" in text

    written = tmp_path / "rivals.json"
    other = study.run(quick=True, sets=["MNIST"], only=["DDU"], earlier=[written], folder=tmp_path / "other")
    assert [each["rival"] for each in other.settings["records"]] == NAMES
    assert set(other.pictures) == {"", "moons", "ambiguous"}
    assert other.settings["sanity"] == found.settings["sanity"] and other.curves.keys() == found.curves.keys()
    exact = [row for row in found.rows if "seconds" not in row["metric"] and row["metric"] != "passes"]
    assert all(row in other.rows for row in exact)  # of what is measured again too, as it is the same

    monkeypatch.setattr(study, "commit", lambda: None)  # as where a tree was copied without its history
    second = study.run(quick=True, seeds=[1], sets=["MNIST"], only=["DDU"]).write(tmp_path / "second", "make it")
    monkeypatch.setattr(study, "train", None)  # nothing is trained or measured again
    monkeypatch.setattr(study, "measure", None)
    again = study.run(quick=True, sets=["MNIST"], only=[*NAMES, "check DUQ two moons"], folder=work)
    assert again.rows[: len(rows)] == found.rows[: len(rows)]

    both = study.run(quick=True, only=[], earlier=[written, second])
    networks = [(each["seed"], each["rival"]) for each in both.settings["records"]]
    assert networks == [*((0, name) for name in NAMES), (1, "DDU")] and both.seeds == [0, 1]
    assert set(both.pictures) == set(found.pictures) and both.settings["sanity"] == found.settings["sanity"]
    (row,) = [row for row in both.rows if (row["method"], row["metric"]) == ("DDU", "mean auroc")]
    values = [json.loads(path.read_text(encoding="utf-8"))["rows"] for path in (written, second)]
    means = [r["mean"] for rows in values for r in rows if (r["method"], r["metric"]) == ("DDU", "mean auroc")]
    assert row["n"] == 2 and row["mean"] == pytest.approx(sum(means) / 2, abs=1e-4)
    assert "DDU at no commit" in render(
        json.loads(both.write(tmp_path / "both", "make it").read_text(encoding="utf-8"))
    )


def test_the_command_line_puts_results_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(study, "run", lambda **options: asked.append(options) or Study("rivals", [], [0], {}, 1.0))
    (tmp_path / "other.json").touch()
    out, other = ["rivals", "--out", str(tmp_path)], ["--earlier", str(tmp_path / "other.json")]
    for more in ([], ["--only", "DDU", "--only", "check VIB"], ["--only", "", *other]):
        assert CliRunner().invoke(app, [*out, *more]).exit_code == 0
    own = tmp_path / "rivals.json"
    assert asked == [
        {"earlier": [], "quick": False},
        {"only": ["DDU", "check VIB"], "earlier": [own], "quick": False},
        {"only": [], "earlier": [own, tmp_path / "other.json"], "quick": False},
    ]


def test_unknown_rivals_are_refused(grey_data: Path) -> None:
    with pytest.raises(ValueError, match="no 'dropout'; there are: 'plain'"):
        study.run(quick=True, only=["dropout"])


def test_records_are_taken_only_with_equal_settings(tmp_path: Path) -> None:
    first = Records(tmp_path, {"data": "a"})
    assert first.find("x", lambda: {"value": 1}) == {"value": 1}
    assert first.find("x", lambda: {"value": 2}) == {"value": 1}
    assert first.of(epochs=3).find("x", lambda: {"value": 2}) == {"value": 2}
    assert Records(None, {}).find("x", lambda: {"value": 3}) == {"value": 3}
    network, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert first.train("n", network, lambda: 5.0) == 5.0
    assert first.train("n", other, lambda: 7.0) == 5.0 and torch.equal(network.weight, other.weight)
    assert first.of(epochs=3).train("n", other, lambda: 7.0) == 7.0


def test_published_results_stand_beside_ours() -> None:
    record = {"check": "DUQ CNN", "results": {"DUQ": {"auroc MNIST": 0.9}}}
    (row,) = build_sanity([record])
    assert (row["mean"], row["paper_mean"]) == (0.9, 0.955)


def test_moons_and_blends() -> None:
    x, y = sanity.moons(4000, seed=0, noise=0.0)
    assert torch.allclose(x[y == 0].norm(dim=1), torch.ones(2000))
    assert torch.allclose((x[y == 1] - torch.tensor([1.0, 0.5])).norm(dim=1), torch.ones(2000))
    assert sanity.plane(5)[:2].tolist() == [[-2.5, -3.0], [-1.0, -3.0]]
    images, labels = torch.arange(50.0)[:, None], torch.arange(50) % 2
    mixed, either = sanity.blend(images, labels, seed=0)
    assert 0 < len(mixed) < 50 and {0, 1} == set(either.tolist())
    assert bool(((2 * mixed) % 2 == 1).all())  # an odd and an even number each


def _earlier(path: Path, records: list[dict[str, Any]], sanity: list[dict[str, Any]]) -> Path:
    curves = {f"{each['train']}, {each['rival']}, seed {each['seed']}": {} for each in records}
    settings = {"records": records, "sanity": sanity, "checks": {each["check"]: "long" for each in sanity}}
    (machine,) = {each["hardware"] for each in [*records, *sanity]}
    made = {"hardware": machine, "versions": {"torch": f"that of {machine}"}}
    whole = {"settings": settings, "data": {}, **made} | ({"curves": curves} if curves else {})
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def _check(name: str, seed: int, effort: str) -> dict[str, Any]:
    about = {"check": name, "seed": seed, "effort": effort, "hardware": f"a machine with a {effort}"}
    return {**about, "results": {name: {"accuracy": 0.9}}, "seconds": 1.0}


def _network(seed: int, effort: str) -> dict[str, Any]:
    about = {"train": "MNIST", "rival": "plain", "seed": seed, "effort": effort, "commit": "0" * 40}
    of_all = {"accuracy": 0.9, "held accuracy": 0.9, "training seconds": 1.0, "seconds": 1.0, "scores": {"x": {}}}
    return {**about, **of_all, "hardware": f"a machine with a {effort}"}


def test_networks_of_a_processor_and_of_a_gpu_are_not_put_together(tmp_path: Path) -> None:
    paths = [_earlier(tmp_path / effort, [_network(0, effort)], []) for effort in ("CPU", "GPU")]
    paths[1].write_text(
        paths[1].read_text(encoding="utf-8").replace('seed": 0', 'seed": 1').replace("seed 0", "seed 1")
    )
    with pytest.raises(ValueError, match="hold networks that were trained on a CPU"):
        study.run(only=[], earlier=paths)


def test_seeds_of_one_check_have_one_effort(tmp_path: Path) -> None:
    paths = [
        _earlier(tmp_path / effort, [], [_check("VIB", seed, effort)]) for seed, effort in enumerate(("CPU", "GPU"))
    ]
    found = study.run(only=[], earlier=paths[1:])
    assert found.settings["trained on"].startswith("80 % of 60,000") and found.settings["checks"]["VIB"] == "long"
    with pytest.raises(ValueError, match="seeds of the check 'VIB' that were trained on a CPU"):
        study.run(only=[], earlier=paths)


def test_a_check_of_a_processor_stands_beside_networks_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "build_rows", lambda records: [])
    monkeypatch.setattr(study, "draw_steps", lambda records: Figure())
    on_gpu = _earlier(tmp_path / "GPU", [_network(0, "GPU")], [_check("VIB", 0, "GPU")])
    on_cpu = _earlier(tmp_path / "CPU", [], [_check("DUQ CNN", 0, "CPU")])
    found = study.run(only=[], earlier=[on_gpu, on_cpu])
    assert found.settings["trained on"].startswith("80 % of 60,000") and found.hardware == "a machine with a GPU"
    assert [(each["check"], each["effort"]) for each in found.settings["sanity"]] == [
        ("VIB", "GPU"),
        ("DUQ CNN", "CPU"),
    ]
    result = json.loads(found.write(tmp_path, "make it").read_text(encoding="utf-8"))
    assert result["versions"] == {"torch": "that of a machine with a GPU"}
    assert set(result["settings"]["versions"]) == {"a machine with a GPU", "a machine with a CPU"}
    text = render(result)
    assert " On a machine with a CPU: check 'DUQ CNN'." in text and "(3 s on a machine with a GPU)" in text
