"""Cityscapes from a small tree in its own layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reproduction.datasets.dense import CLASSES, cityscapes

pytest.importorskip("PIL.Image")
Draw = Callable[..., Path]
NAMES = ["aachen/aachen_000000_000019", "aachen/aachen_000001_000019", "ulm/ulm_000000_000019"]
# The published table of ids, written out anew: id and trainId.
PUBLISHED = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12, 26: 13}
PUBLISHED |= {27: 14, 28: 15, 31: 16, 32: 17, 33: 18}


def plant(draw: Draw, kind: str, labels: np.ndarray, *, folder: str = "cityscapes", suffix: str = "png") -> None:
    for i, name in enumerate(reversed(NAMES)):
        draw(f"{folder}/leftImg8bit/train/{name}_leftImg8bit.{suffix}", np.full((4, 10, 3), 10 * i, np.uint8))
        draw(f"{folder}/gtFine/train/{name}_gtFine_{kind}.png", labels, palette=kind == "labelTrainIds")
        draw(f"{folder}/gtFine/train/{name}_gtFine_color.png", np.zeros((4, 10, 3), np.uint8))


@pytest.mark.parametrize("folder", ["cityscapes", "cityscapes_small"])
@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_train_ids(folder: str, suffix: str, draw: Draw, tmp_path: Path) -> None:
    labels = np.array([*range(19), 255] * 2, np.uint8).reshape(4, 10)
    plant(draw, "labelTrainIds", labels, folder=folder, suffix=suffix)
    files = cityscapes("train", root=tmp_path)
    assert [image.parent.name for image, _ in files.pairs] == ["aachen", "aachen", "ulm"]
    whole = files.load()
    assert whole.images[:, 0, 0, 0].tolist() == [20, 10, 0]
    assert np.array_equal(whole.targets[1], labels)
    assert len(CLASSES) == 19


def test_ids_are_mapped(draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(40, dtype=np.uint8).reshape(4, 10) % 34
    plant(draw, "labelIds", labels)
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_DATA", str(tmp_path))
    expected = np.vectorize(lambda i: PUBLISHED.get(int(i), 255))(labels)
    assert np.array_equal(cityscapes("train")[0][1], expected)


def test_train_ids_come_first(draw: Draw, tmp_path: Path) -> None:
    plant(draw, "labelIds", np.full((4, 10), 7, np.uint8))
    plant(draw, "labelTrainIds", np.full((4, 10), 5, np.uint8))
    assert cityscapes("train", root=tmp_path)[0][1].unique().tolist() == [5]


@pytest.mark.parametrize(
    ("kind", "label", "message"),
    [
        ("labelTrainIds", np.full((4, 10), 19, np.uint8), "holds the class 19, expected some of 0 … 18, 255"),
        ("labelIds", np.arange(40, dtype=np.uint8).reshape(4, 10), "holds the class 34 and 5 more, expected some of 0"),
        ("labelIds", np.zeros((4, 10, 3), np.uint8), "kind 'RGB', expected one number per pixel"),
        ("labelIds", np.zeros((4, 10), np.uint16), "kind 'I;16'"),
    ],
)
def test_wrong_labels(kind: str, label: np.ndarray, message: str, draw: Draw, tmp_path: Path) -> None:
    plant(draw, "labelIds", np.zeros((4, 10), np.uint8))
    draw(f"cityscapes/gtFine/train/{NAMES[1]}_gtFine_{kind}.png", label)
    with pytest.raises(ValueError, match=rf"{NAMES[1]}_gtFine_{kind}\.png' .*{message}"):
        cityscapes("train", root=tmp_path).load()


def test_missing(draw: Draw, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is not known: .*cityscapes-dataset\.com"):
        cityscapes("train")
    with pytest.raises(FileNotFoundError, match=r"cityscapes/leftImg8bit/train'.*'cityscapes_small/.* is accepted"):
        cityscapes("train", root=tmp_path)
    with pytest.raises(ValueError, match="part must be 'train' or 'val', got 'test'"):
        cityscapes("test", root=tmp_path)  # type: ignore[arg-type]
    plant(draw, "labelIds", np.zeros((4, 10), np.uint8))
    (tmp_path / f"cityscapes/gtFine/train/{NAMES[2]}_gtFine_labelIds.png").unlink()
    with pytest.raises(FileNotFoundError, match=rf"neither .*{NAMES[2]}_gtFine_labelTrainIds.png' nor"):
        cityscapes("train", root=tmp_path)
    (tmp_path / "cityscapes/leftImg8bit/val/munich").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="there are no images CITY"):
        cityscapes("val", root=tmp_path)
