"""STL10 from small files, with and without labels, whole and damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduction.datasets.images import stl10

Write = Callable[[str, bytes], Path]
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3, 96, 96), dtype=np.uint8)
LABELS = np.array([1, 10, 5, 2], dtype=np.uint8)


def columns(images: np.ndarray) -> bytes:
    """Image after image, channel after channel, column after column."""
    return b"".join(channel[:, x].tobytes() for image in images for channel in image for x in range(96))


@pytest.mark.parametrize("part", ["train", "test"])
def test_with_labels(part: Any, write: Write, publish: Callable[..., None], tmp_path: Path, noted: list[str]) -> None:
    contents = {f"{part}_X.bin": columns(IMAGES), f"{part}_y.bin": LABELS.tobytes()}
    publish("stl10", contents)
    for name, content in contents.items():
        write(f"stl10_binary/{name}", content)
    read = stl10(part, root=tmp_path)
    assert np.array_equal(read.images, IMAGES)
    assert read.labels is not None and read.labels.tolist() == [0, 9, 4, 1]
    assert read.official and noted == []


def test_without_labels_it_is_read_and_noted(
    write: Write, publish: Callable[..., None], tmp_path: Path, noted: list[str]
) -> None:
    publish("stl10", {"test_X.bin": columns(IMAGES)})
    write("stl10_binary/test_X.bin", columns(IMAGES))
    read = stl10("test", root=tmp_path)
    assert read.labels is None and not read.official and len(read) == 4
    assert len(noted) == 1 and "test_y.bin is missing, so there are no labels" in noted[0] and "X.bin" not in noted[0]


def test_unlabeled_images_have_no_labels_to_miss(
    write: Write, publish: Callable[..., None], tmp_path: Path, noted: list[str]
) -> None:
    publish("stl10", {"unlabeled_X.bin": columns(IMAGES[:1])})
    write("stl10_binary/unlabeled_X.bin", columns(IMAGES[:1]))
    read = stl10("unlabeled", root=tmp_path)
    assert read.labels is None and read.official and noted == []


def test_another_copy_is_read_and_noted_once(write: Write, tmp_path: Path, noted: list[str]) -> None:
    write("stl10_binary/test_X.bin", columns(IMAGES))
    write("stl10_binary/test_y.bin", LABELS.tobytes())
    assert not stl10("test", root=tmp_path).official
    assert not stl10("test", root=tmp_path).official
    assert len(noted) == 1 and "test_X.bin, test_y.bin" in noted[0]


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (
            columns(IMAGES)[:-1],
            LABELS,
            r"test_X.bin' is cut short or damaged: its 110,591 bytes are 4\.00 images of 27,648",
        ),
        (columns(IMAGES)[:50_000], LABELS, r"1\.81 images"),
        (b"", LABELS, "holds no images"),
        (columns(IMAGES), LABELS[:3], "has 4 images, but 3 labels"),
        (columns(IMAGES), LABELS - 1, "labels outside its 10 classes: 1, first -1"),
        (columns(IMAGES), LABELS + 1, "labels outside its 10 classes: 1, first 10"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage(pixels: bytes, labels: np.ndarray, message: str, write: Write, tmp_path: Path) -> None:
    write("stl10_binary/test_X.bin", pixels)
    write("stl10_binary/test_y.bin", labels.tobytes())
    with pytest.raises(ValueError, match=message):
        stl10("test", root=tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"stl10_binary/unlabeled_X\.bin'.*data fetch stl10$"):
        stl10("unlabeled", root=tmp_path)
