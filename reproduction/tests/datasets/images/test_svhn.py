"""SVHN from small MATLAB files, whole and damaged."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from reproduction.datasets.images import svhn

Write = Callable[[str, bytes], Path]
PIXELS = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 11), dtype=np.uint8)
LABELS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10], dtype=np.uint8)[:, None]


def mat(compressed: bool = True, **variables: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, variables, do_compression=compressed)
    return file.getvalue()


@pytest.mark.parametrize("part", ["train", "test", "extra"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("folder", ["SVHN/", ""])
def test_parts(part: Any, compressed: bool, folder: str, write: Write, tmp_path: Path, noted: list[str]) -> None:
    write(f"{folder}{part}_32x32.mat", mat(compressed, X=PIXELS, y=LABELS))
    read = svhn(part, root=tmp_path)
    for i in range(11):
        for channel in range(3):
            assert np.array_equal(read.images[i, channel], PIXELS[:, :, channel, i])
    assert read.labels is not None and read.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0]
    assert not read.official and f"{part}_32x32.mat" in noted[0]


def test_published_file(write: Write, publish: Callable[..., None], tmp_path: Path, noted: list[str]) -> None:
    content = mat(X=PIXELS, y=LABELS.astype(float))
    publish("svhn", {"test_32x32.mat": content})
    write("SVHN/test_32x32.mat", content)
    read = svhn("test", root=tmp_path)
    assert read.official and noted == [] and read.labels is not None and read.labels[-1] == 0


@pytest.mark.parametrize("keep", [0, 60, 127, 128, 140, 3000, -8])
@pytest.mark.parametrize("compressed", [False, True])
def test_cut_short(keep: int, compressed: bool, write: Write, tmp_path: Path) -> None:
    write("SVHN/test_32x32.mat", mat(compressed, X=PIXELS, y=LABELS)[:keep])
    with pytest.raises(ValueError, match=r"test_32x32\.mat' (is damaged|holds no variables)"):
        svhn("test", root=tmp_path)


def test_damaged_inside(write: Write, tmp_path: Path) -> None:
    content = bytearray(mat(X=PIXELS, y=LABELS))
    content[5000:5100] = bytes(100)
    write("SVHN/test_32x32.mat", bytes(content))
    with pytest.raises(ValueError, match="damaged or not a MATLAB file"):
        svhn("test", root=tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
def test_one_flipped_bit_is_an_error_or_changes_one_value(compressed: bool, write: Write, tmp_path: Path) -> None:
    content = mat(compressed, X=PIXELS[..., :3], y=LABELS[:3])
    path = write("test_32x32.mat", content)
    whole = svhn("test", root=tmp_path)
    assert whole.labels is not None
    some = np.random.default_rng(1).choice(len(content), 100, replace=False)  # besides all tags
    errors = 0
    with path.open("r+b", buffering=0) as file:
        for place in {*range(100, 200), *range(len(content) - 80, len(content)), *map(int, some)}:
            for bit in range(8):
                file.seek(place)
                file.write(bytes([content[place] ^ (1 << bit)]))
                try:
                    read = svhn("test", root=tmp_path)
                    assert read.images.shape == whole.images.shape and read.labels is not None
                    different = int((read.images != whole.images).sum() + (read.labels != whole.labels).sum())
                    assert different <= (0 if compressed else 1)  # a compressed file has a checksum of its content
                except ValueError:
                    errors += 1
            file.seek(place)
            file.write(content[place : place + 1])
    assert errors > 500


@pytest.mark.parametrize("kind", ["<f4", "<f8", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "i1", "u1"])
def test_labels_of_any_type(kind: str, write: Write, tmp_path: Path) -> None:
    write("test_32x32.mat", mat(X=PIXELS, y=LABELS.astype(kind), other="text", more={"a": 1.0}))
    read = svhn("test", root=tmp_path)
    assert read.labels is not None and read.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>not found</html>" * 20, "not a MATLAB file"),
        (mat(X=PIXELS), "holds no variables X and y"),
        (
            mat(X=PIXELS.transpose(3, 0, 1, 2), y=LABELS),
            r"X .* is \(11, 32, 32, 3\) of uint8, expected \(32, 32, 3, n\)",
        ),
        (mat(X=PIXELS.astype(float), y=LABELS), "of float64"),
        (mat(X=PIXELS, y=LABELS[:-1]), "has 11 images, but 10 labels"),
        (mat(X=PIXELS, y=LABELS - 1), r"y .* values other than 1 … 10"),
        (mat(X=PIXELS, y=LABELS + 0.5), r"y .* values other than 1 … 10"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_files(content: bytes, message: str, write: Write, tmp_path: Path) -> None:
    write("SVHN/test_32x32.mat", content)
    with pytest.raises(ValueError, match=message):
        svhn("test", root=tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"SVHN/extra_32x32\.mat'.*'extra_32x32.mat' is accepted.*fetch svhn-extra"
    ):
        svhn("extra", root=tmp_path)
