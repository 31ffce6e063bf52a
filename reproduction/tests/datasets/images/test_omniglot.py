"""OMNIGLOT from a small tree of pictures, with and without the archive beside it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest

from reproduction.datasets.images import omniglot, sources, verify

image = pytest.importorskip("PIL.Image")
Write = Callable[[str, bytes], Path]
NAMES = [
    f"{alphabet}/character{k:02}/{number:04}_{i:02}.png"
    for number, (alphabet, k) in enumerate([("Angelic", 1), ("Angelic", 2), ("Tengwar", 1)])
    for i in (1, 2)
]
INK = np.random.default_rng(0).random((len(NAMES), 105, 105)) < 0.1


def png(ink: np.ndarray) -> bytes:
    file = io.BytesIO()
    image.fromarray(np.where(ink, 0, 255).astype(np.uint8)).convert("1").save(file, "PNG")
    return file.getvalue()


CONTENTS = {f"images_evaluation/{name}": png(ink) for name, ink in zip(NAMES, INK, strict=True)}


@pytest.fixture
def tree(write: Write, tmp_path: Path) -> Path:
    for name, content in reversed(CONTENTS.items()):
        write(f"omniglot-py/{name}", content)
    return tmp_path / "omniglot-py/images_evaluation"


@pytest.fixture
def archive(write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive of the tree, published."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as content:
        content.mkdir("images_evaluation")
        for name, picture in CONTENTS.items():
            content.writestr(name, picture)
    source = sources.SOURCES["omniglot"]
    background, evaluation = source.downloads
    published = replace(evaluation, md5=md5(file.getvalue()).hexdigest())
    monkeypatch.setitem(sources.SOURCES, "omniglot", replace(source, downloads=(background, published)))
    return write("omniglot-py/images_evaluation.zip", file.getvalue())


def states(root: Path) -> list[str]:
    return [check.state for check in verify("omniglot", root)][2:]


def test_pictures_in_order(tree: Path, tmp_path: Path, noted: list[str]) -> None:
    (tree / "Angelic/character01/._0000_01.png").write_bytes(b"what a Mac leaves behind")
    read = omniglot(root=tmp_path)
    assert np.array_equal(read.images[:, 0] == 0, INK)
    assert read.images.unique().tolist() == [0, 255]
    assert read.labels is not None and read.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert not read.official and len(noted) == 1 and "images_evaluation.zip is not beside it" in noted[0]
    assert states(tmp_path) == ["missing", "unknown"]


def test_the_archive_beside_them_vouches_for_pictures(
    tree: Path, archive: Path, tmp_path: Path, noted: list[str]
) -> None:
    assert omniglot(root=tmp_path).official and noted == []
    assert states(tmp_path) == ["official", "official"]


@pytest.mark.parametrize("change", ["replaced", "removed", "added"])
def test_a_changed_picture_is_named(change: str, tree: Path, archive: Path, tmp_path: Path, noted: list[str]) -> None:
    name = "Angelic/character02/0009_01.png" if change == "added" else NAMES[2]
    if change == "removed":
        (tree / name).unlink()
    else:
        (tree / name).write_bytes(png(~INK[0]))
    assert not omniglot(root=tmp_path).official
    assert f"copy: images_evaluation/{name}. It is read" in noted[0]
    assert states(tmp_path) == ["official", "different"]


def test_another_archive_vouches_for_nothing(tree: Path, archive: Path, tmp_path: Path, noted: list[str]) -> None:
    archive.write_bytes(archive.read_bytes()[:-1])
    assert not omniglot(root=tmp_path).official
    assert "images_evaluation.zip is not the published one" in noted[0]
    assert states(tmp_path) == ["different", "unknown"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENTS[f"images_evaluation/{NAMES[0]}"][:60], "cut short or not a PNG"),
        (CONTENTS[f"images_evaluation/{NAMES[0]}"][:-30], "cut short or not a PNG"),
        (b"GIF89a", "cut short or not a PNG"),
        (b"", "cut short or not a PNG"),
        (png(INK[0][:100]), r"has \(100, 105\) pixels, OMNIGLOT has 105×105"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_pictures(content: bytes, message: str, tree: Path, tmp_path: Path) -> None:
    (tree / NAMES[4]).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{NAMES[4]}' .*{message}|{NAMES[4]}' {message}"):
        omniglot(root=tmp_path)


def test_missing_folder_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"omniglot-py/images_background'.*data fetch omniglot$"):
        omniglot("background", root=tmp_path)
    (tmp_path / "omniglot-py/images_background").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"no pictures ALPHABET/CHARACTER/\*\.png in"):
        omniglot("background", root=tmp_path)
