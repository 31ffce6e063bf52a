"""The command line, as a user calls it."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hidden_uncertainty import demo as demo_module
from hidden_uncertainty.cli import app


def test_demo_writes_the_same_numbers_each_time(tmp_path: Path) -> None:
    found = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        result = CliRunner().invoke(app, ["demo", "--quick", "--out", str(folder)])
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.stdout
        assert str(folder / "demo.png") in result.stdout
        numbers = json.loads((folder / "demo.json").read_text(encoding="utf-8"))
        assert numbers.pop("seconds")["total"] > 0
        found.append(numbers)
    assert found[0] == found[1]
    assert (tmp_path / "one" / "demo.png").read_bytes() == (tmp_path / "two" / "demo.png").read_bytes()
    for change in (*found[0]["rotation"], *found[0]["noise"], *found[0]["flip"], found[0]["left_out"]):
        for kind in ("surprising", "mean_p_value", "auroc"):
            assert set(change[kind]) == {"conv1", "conv2", "conv3", "hidden", "output", "softmax entropy"}
            assert all(0 <= value <= 1 for value in change[kind].values())
        assert 0 <= change["accuracy"] <= 1


def test_the_seed_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(demo_module, "run", lambda out, settings: calls.append((out, settings)))
    assert CliRunner().invoke(app, ["demo", "--seed", "7", "--out", str(tmp_path)]).exit_code == 0
    assert calls == [(tmp_path, demo_module.Settings(seed=7))]


def test_help_and_version() -> None:
    runner = CliRunner()
    assert "demo" in runner.invoke(app, ["--help"]).stdout
    assert "--out" in runner.invoke(app, ["demo", "--help"], env={"COLUMNS": "100"}).stdout
    assert runner.invoke(app, ["--version"]).stdout == f"hidden-uncertainty {version('hidden-uncertainty')}\n"
    assert "Usage" in runner.invoke(app, []).output


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file" / "folder")])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot write to")
    assert "Choose another folder with --out." in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["demo", "--seed", "-1"], "seed"), (["demo", "--speed"], "--speed"), (["dmo"], "dmo")],
)
def test_mistyped_commands(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert expected in result.output


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "is a file" in " ".join(result.output.replace("│", " ").split())


def test_reproduce_writes_a_result(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "digits", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0 and "digits.json" in result.output
    content = json.loads((tmp_path / "digits.json").read_text(encoding="utf-8"))
    assert content["command"] == "hidden-uncertainty reproduce digits --quick" and content["seeds"] == [0]


def test_reproduce_names_the_studies_there_are():
    result = CliRunner().invoke(app, ["reproduce", "nothing"])
    assert result.exit_code == 1 and "there is no study 'nothing'; there are: digits" in result.output


def test_compare_writes_and_prints_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hidden_uncertainty.studies import Study, compare_digits

    about = {"train": "digits 0-7", "ood": "digits 8-9"}
    rows = [{**about, "method": "energy", "metric": "auroc", "mean": 0.9, "std": 0.1, "n": 2}]
    asked = []

    def run(**options: object) -> Study:
        asked.append(options)
        about = {
            "inputs": {"in_distribution": 9},
            "timed inputs": 9,
            "batch": 9,
            "rounds": 1,
            "threads": 1,
            "device": "cpu",
        }
        return Study("compare-digits", rows, [0, 1], {}, 1.0, {"run": about})

    monkeypatch.setattr(compare_digits, "run", run)
    result = CliRunner().invoke(app, ["compare", "--seeds", "2", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert asked == [{"seeds": range(2), "quick": True}]
    written = json.loads((tmp_path / "compare-digits.json").read_text(encoding="utf-8"))
    assert written["command"] == "hidden-uncertainty reproduce compare-digits --seeds 2 --quick"
    assert "energy" in result.stdout and "0.9" in result.stdout


def test_a_rough_result_does_not_replace_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hidden_uncertainty.studies import digits
    from hidden_uncertainty.studies.results import Study

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(digits, "run", lambda **options: Study("digits", [], [0], {}, 1.0, {}))
    for arguments in ([], ["--quick"]):
        result = CliRunner().invoke(app, ["reproduce", "digits", *arguments])
        assert result.exit_code == 0, result.output
    assert (tmp_path / "results" / "digits.json").is_file()
    assert (tmp_path / "results" / "quick" / "digits.json").is_file()


def test_data_sets_are_listed_and_checked(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["data", "list", "--root", str(tmp_path)])
    assert listed.exit_code == 0 and listed.stdout.startswith("mnist        -")
    checked = runner.invoke(app, ["data", "verify", "mnist", "--root", str(tmp_path)])
    assert checked.exit_code == 1 and checked.stdout.count("missing") == 4
    unknown = runner.invoke(app, ["data", "verify", "imagenet", "--root", str(tmp_path)])
    assert unknown.exit_code == 1 and "imagenet" in unknown.stderr


def test_a_study_without_its_data_says_where_it_looked(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "uci", "--quick", "--data", str(tmp_path), "--out", str(tmp_path)])
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
    arguments = ["reproduce", "table-1-fcnet", "--quick", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ") and str(path) in result.stderr and "--out" not in result.stderr


def test_a_study_is_not_run_when_its_result_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hidden_uncertainty.studies import digits

    monkeypatch.setattr(digits, "run", lambda **options: pytest.fail("ran"))
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["reproduce", "digits", "--out", str(tmp_path / "file" / "folder")])
    assert result.exit_code == 1 and result.stderr.startswith("error: cannot write to")
    assert "Choose another folder with --out." in result.stderr
