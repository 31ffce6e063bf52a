"""The command line, as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hidden_uncertainty import __version__
from hidden_uncertainty.cli.app import app
from hidden_uncertainty.demo import show as demo_module


def test_demo_gives_the_same_each_time(tmp_path: Path) -> None:
    printed = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        result = CliRunner().invoke(app, ["demo", "--quick", "--out", str(folder)])
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.stdout
        assert str(folder / "demo.png") in result.stdout
        assert [path.name for path in folder.iterdir()] == ["demo.png"]
        printed.append(result.stdout.partition("written:")[0])
    assert printed[0] == printed[1]
    assert (tmp_path / "one" / "demo.png").read_bytes() == (tmp_path / "two" / "demo.png").read_bytes()


def test_the_seed_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(demo_module, "run", lambda out, **options: calls.append((out, options)))
    assert CliRunner().invoke(app, ["demo", "--seed", "7", "--out", str(tmp_path)]).exit_code == 0
    assert calls == [(tmp_path, {"seed": 7, "quick": False})]


def test_help_and_version() -> None:
    runner = CliRunner()
    assert "demo" in runner.invoke(app, ["--help"]).stdout
    assert "--out" in runner.invoke(app, ["demo", "--help"], env={"COLUMNS": "100"}).stdout
    assert runner.invoke(app, ["--version"]).stdout == f"hidden-uncertainty {__version__}\n"
    assert "Usage" in runner.invoke(app, []).output


def test_a_folder_that_cannot_be_made_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file" / "folder")])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot write to")
    assert "Choose another folder with --out." in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["demo", "--seed", "-1"], "seed"),
        (["demo", "--seed", str(10**30)], "9223372036854775807"),
        (["demo", "--out", "~no such user/x"], "there is no home directory for '~no such user/x'"),
        (["demo", "--speed"], "--speed"),
        (["dmo"], "dmo"),
    ],
)
def test_mistyped_commands(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert expected in " ".join(result.output.replace("│", " ").split())


def test_a_home_directory_that_the_shell_left_to_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(demo_module, "run", lambda out, **_: calls.append(out))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CliRunner().invoke(app, ["demo", "--out", "~/x"]).exit_code == 0
    assert calls == [tmp_path / "x"]


def test_windows_that_cannot_be_opened_do_not_matter() -> None:
    drawing = "import hidden_uncertainty.cli.app as cli; cli.prepare(); import hidden_uncertainty.plots"
    command = [sys.executable, "-c", drawing]
    assert subprocess.run(command, env={**os.environ, "MPLBACKEND": "no such thing"}, check=False).returncode == 0


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "is a file" in " ".join(result.output.replace("│", " ").split())
