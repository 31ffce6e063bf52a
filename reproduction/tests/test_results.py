import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from reproduction import results
from reproduction.render import fill
from reproduction.results import Study, compact, digest, summarise

ROOT = Path(__file__).parents[2]


def test_a_result_says_how_it_was_made(tmp_path):
    rows = [summarise([0.5, 0.7, 0.9], method="m", metric="auroc", train="a", ood="b")]
    path = Study("toy", rows, range(3), {"set": "abc"}, 1.25, {"layer": "x"}).write(tmp_path / "new", "a command")
    result = json.loads(path.read_text())
    assert result["rows"] == [
        {"method": "m", "metric": "auroc", "train": "a", "ood": "b", "mean": 0.7, "std": 0.2, "n": 3}
    ]
    assert result["command"] == "a command" and result["seeds"] == [0, 1, 2] and result["seconds"] == 1.2
    assert result["versions"]["torch"] and result["hardware"] and result["data"] == {"set": "abc"}
    assert [file.name for file in path.parent.iterdir()] == ["toy.json"]


def test_the_commit_is_that_of_the_packages_own_tree(tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    git = tree / ".git"
    for folder in (git / "refs" / "heads", tmp_path / ".git"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(results, "__file__", str(tree / "reproduction" / "results.py"))
    (tmp_path / ".git" / "HEAD").write_text("another project's\n")
    assert results.commit() is None
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert results.commit() is None
    (git / "packed-refs").write_text("# pack-refs\nabc refs/heads/other-main\ndef refs/heads/main\n")
    assert results.commit() == "def"
    (git / "refs" / "heads" / "main").write_text("123\n")
    assert results.commit() == "123"
    (git / "HEAD").write_text("456\n")
    assert results.commit() == "456"


def test_the_commit_of_a_worktree_is_its_own(tmp_path, monkeypatch):
    def git(*words, folder="first"):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *who, *words], cwd=tmp_path / folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    (tmp_path / "first").mkdir()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    git("worktree", "add", "-q", "-b", "other", "../second")
    git("commit", "-q", "--allow-empty", "-m", "two", folder="second")
    for folder in ("first", "second"):
        monkeypatch.setattr(results, "__file__", str(tmp_path / folder / "reproduction" / "results.py"))
        assert results.commit() == git("rev-parse", "HEAD", folder=folder)
    assert git("rev-parse", "HEAD") != git("rev-parse", "HEAD", folder="second")


def test_digests_tell_data_apart():
    assert digest(torch.arange(4)) != digest(torch.arange(5)) and len(digest(torch.arange(4))) == 64


def test_documents_are_filled_from_results(tmp_path):
    rows = [{"train": "a", "ood": "b", "method": "m", "metric": "auroc", "mean": 0.9, "std": 0.0, "n": 1}]
    Study("digits", rows, [0], {}, 1.0).write(
        tmp_path, "hidden-uncertainty reproduce digits --quick"
    )  # as older files have it
    before = "text\n<!-- results:digits -->\nstale\n<!-- /results -->\nmore"
    after = fill(before, tmp_path)
    assert "| a | b | m | 0.900 ± 0.000 | 1 |" in after and "stale" not in after
    assert "\n`python -m reproduction digits --quick` (1 s on " in after
    assert after.startswith("text\n") and after.endswith("more") and fill(after, tmp_path) == after
    with pytest.raises(FileNotFoundError, match="python -m reproduction other"):
        fill("<!-- results:other -->\n<!-- /results -->", tmp_path)


PAGES = [ROOT / "README.md", ROOT / "results/README.md", *sorted((ROOT / "docs").glob("*.md"))]
RENDERED = [page for page in PAGES if "<!-- results:" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", RENDERED, ids=lambda page: page.stem)
def test_documents_show_the_committed_results(page):
    document = page.read_text(encoding="utf-8")
    assert fill(document, ROOT / "results") == document, "run python -m reproduction.render"


def test_large_pictures_get_fewer_colours(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (500, 600, 3), dtype=np.uint8)
    pixels[:3, :3] = (255, 0, 0)
    for name, some in (("small", pixels[:50]), ("large", pixels)):
        path = tmp_path / f"{name}.png"
        Image.fromarray(some).save(path)
        before = path.read_bytes()
        compact(path)
        with Image.open(path) as after:
            after.load()
        assert after.size == (600, len(some)) and (path.read_bytes() == before) == (name == "small")
    assert len(after.getcolors()) <= 256 and path.stat().st_size < len(before) / 2
    assert np.abs(np.asarray(after.convert("RGB"), dtype=int)[:3, :3] - (255, 0, 0)).max() < 40  # rare colours stay


@pytest.mark.parametrize("picture", sorted((ROOT / "results").glob("*.png")), ids=lambda picture: picture.stem)
def test_committed_pictures_are_small(picture):
    assert picture.stat().st_size < 500_000


def test_curves_take_a_line_each_and_pictures_go_beside(tmp_path):
    figure = Figure()
    curves = {"x": [0.0, -0.5, 1e-05], "y": [1.0, 2.0, 3.0]}
    path = Study("toy", [], [0], {}, 1.0, curves=curves, pictures={"": figure, "fit": figure}).write(tmp_path, "c")
    text = path.read_text(encoding="utf-8")
    assert json.loads(text)["curves"] == curves and '"y": [1.0, 2.0, 3.0]' in text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["toy-fit.png", "toy.json", "toy.png"]
