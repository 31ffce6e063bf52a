"""`python -m reproduction`, as it is called from the root of a clone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reproduction.__main__ import app
from reproduction.render import render
from reproduction.results import Study
from reproduction.studies import NAMES
from reproduction.studies.digits import study as digits

ROOT = Path(__file__).parents[2]


def test_a_study_writes_a_result(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["digits", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0 and "digits.json" in result.output
    content = json.loads((tmp_path / "digits.json").read_text(encoding="utf-8"))
    assert content["command"] == "python -m reproduction digits --quick" and content["seeds"] == [0]
    found = {(row["method"], row["metric"]): row for row in content["rows"] if "mean" in row}
    assert found["network", "accuracy"]["mean"] > 0.5 and found["mixture-default", "auroc"]["n"] == 1
    assert all(0 <= row["mean"] <= 1 for (_, metric), row in found.items() if metric == "auroc")
    assert render(content).count("mixture") == 2


def test_it_runs_from_a_clone_that_is_not_installed() -> None:
    # -S leaves out what editable installs add; the packages themselves come by their path.
    packages = os.pathsep.join(["src", *(path for path in sys.path if path.endswith("-packages"))])
    command = [sys.executable, "-S", "-m", "reproduction", "--help"]
    environment = {**os.environ, "PYTHONPATH": packages}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "python -m reproduction" in result.stdout and all(name in result.stdout for name in NAMES)


def test_an_unknown_study_gets_the_names_of_all() -> None:
    result = CliRunner().invoke(app, ["nothing"])
    assert result.exit_code == 1 and "error: there is no study 'nothing'; there are: digits" in result.stderr


def test_a_rough_result_does_not_replace_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(digits, "run", lambda **options: asked.append(options) or Study("digits", [], [0], {}, 1.0))
    for arguments in (["--seeds", "2"], ["--quick"]):
        result = CliRunner().invoke(app, ["digits", *arguments])
        assert result.exit_code == 0, result.output
    assert asked == [{"seeds": range(2), "quick": False}, {"quick": True}]
    assert "digits --seeds 2" in (tmp_path / "results" / "digits.json").read_text(encoding="utf-8")
    assert (tmp_path / "results" / "quick" / "digits.json").is_file()


def test_data_sets_are_listed_and_checked(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["data", "list", "--data", str(tmp_path)])
    assert listed.exit_code == 0 and listed.stdout.startswith("mnist        -")
    checked = runner.invoke(app, ["data", "verify", "mnist", "--data", str(tmp_path)])
    assert checked.exit_code == 1 and checked.stdout.count("missing") == 4
    unknown = runner.invoke(app, ["data", "verify", "imagenet", "--data", str(tmp_path)])
    assert unknown.exit_code == 1 and "imagenet" in unknown.stderr


def test_a_study_without_its_data_says_where_it_looked(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["uci", "--quick", "--data", str(tmp_path), "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "UCI_Datasets" in result.stderr and "HIDDEN_UNCERTAINTY_DATA" in result.stderr


@pytest.mark.parametrize("wrong", ["cut short", "a folder"])
def test_a_study_with_wrong_data_says_which_file(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.parent.mkdir(parents=True)
    if wrong == "a folder":
        path.mkdir()
    else:
        path.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 9]))
    arguments = ["table-1-fcnet", "--quick", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ") and str(path) in result.stderr and "--out" not in result.stderr


def test_a_study_is_not_run_when_its_result_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "run", lambda **options: pytest.fail("ran"))
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["digits", "--out", str(tmp_path / "file" / "folder")])
    assert result.exit_code == 1 and result.stderr.startswith("error: cannot write to")
    assert "Choose another folder with --out." in result.stderr
