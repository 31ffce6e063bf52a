"""The README: its quick start runs and does what it claims, its first screen is as agreed, its commands exist."""

import re
import tomllib

import pytest
from typer.testing import CliRunner

from hidden_uncertainty.cli.app import app
from pages import ROOT, examples, run, same

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_quick_start_runs_and_detects(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example, found in run(README):
        assert same(found, example.prints, about=example.about), f"line {example.line} printed:\n{found}"
    shown = examples(TEXT)[0].prints
    caught, false_alarms = map(int, re.findall(r"(\d+)%", shown))
    assert caught > 60 and false_alarms < 12


def test_first_screen_is_a_sentence_a_picture_ten_lines_and_a_table():
    screen = TEXT.split("\n## ")[0]
    title, sentence, picture, *_ = screen.split("\n\n")
    assert title == "# hidden-uncertainty" and sentence.count(". ") == 0 and picture.startswith("![")
    code = [line for line in examples(screen)[0].code.splitlines() if line.strip()]
    assert len(code) <= 12  # ten, and a loop's two
    assert re.search(r"^<!-- results:one-score/short -->\n(.*\n)*<!-- /results -->$", screen, re.MULTILINE)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_commands_of_make_exist(target):
    assert f"make {target}" in TEXT
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"(?:^|`)hidden-uncertainty (\w+)", TEXT, re.MULTILINE))))
def test_commands_of_the_package_exist(command):
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_versions_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert f"Python {', '.join(versions[:-1])} or {versions[-1]}" in TEXT
    torch = next(d for d in project["dependencies"] if d.startswith("torch"))
    assert f"torch {torch.removeprefix('torch>=')} or later" in TEXT
