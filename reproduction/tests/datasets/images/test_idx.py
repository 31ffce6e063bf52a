"""MNIST and FashionMNIST from small IDX files, raw and packed, whole and damaged."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduction.datasets.images import Images, fashion_mnist, mnist
from reproduction.results import digest

Write = Callable[[str, bytes], Path]
FOLDERS = {mnist: "MNIST/raw", fashion_mnist: "FashionMNIST/raw"}
PIXELS = np.random.default_rng(0).integers(0, 256, (7, 28, 28), dtype=np.uint8)
LABELS = np.array([3, 0, 9, 9, 1, 2, 5], dtype=np.uint8)


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


CONTENTS = {
    "train-images-idx3-ubyte": idx(PIXELS),
    "train-labels-idx1-ubyte": idx(LABELS),
    "t10k-images-idx3-ubyte": idx(PIXELS[:3]),
    "t10k-labels-idx1-ubyte": idx(LABELS[:3]),
}


def fill(write: Write, folder: str = "MNIST/raw", *, packed: bool = False) -> None:
    for name, content in CONTENTS.items():
        write(f"{folder}/{name}.gz", gzip.compress(content, 1)) if packed else write(f"{folder}/{name}", content)


@pytest.mark.parametrize("read", [mnist, fashion_mnist])
@pytest.mark.parametrize("packed", [False, True])
def test_both_parts_raw_and_packed(
    read: Callable[..., Images], packed: bool, write: Write, tmp_path: Path, noted: list[str]
) -> None:
    fill(write, FOLDERS[read], packed=packed)
    train, test = read(root=tmp_path), read("test", root=tmp_path)
    assert np.array_equal(train.images.numpy(), PIXELS[:, None]) and train.images.dtype == torch.uint8
    assert train.labels is not None and train.labels.tolist() == LABELS.tolist()
    assert len(train) == 7 and len(test) == 3
    assert train.digest == digest(train.images, train.labels) != test.digest
    assert not train.official and len(noted) == 1
    assert "'" + str(tmp_path / FOLDERS[read]) + "'" in noted[0] and "train-images-idx3-ubyte" in noted[0]


@pytest.mark.parametrize("packed", [False, True])
def test_published_content_is_official_however_it_was_packed(
    packed: bool, write: Write, publish: Callable[..., None], tmp_path: Path, noted: list[str]
) -> None:
    publish("mnist", CONTENTS)
    fill(write, packed=packed)
    assert mnist(root=tmp_path).official and mnist("test", root=tmp_path).official
    write("MNIST/raw/t10k-labels-idx1-ubyte", idx(LABELS[1:4]))
    assert mnist(root=tmp_path).official and noted == []
    assert not mnist("test", root=tmp_path).official
    assert "t10k-labels-idx1-ubyte" in noted[0] and "images" not in noted[0]


def test_the_tensors_can_be_written_to(write: Write, tmp_path: Path) -> None:
    fill(write)
    read = mnist(root=tmp_path)
    read.images.zero_()
    assert mnist(root=tmp_path).images.any()


def test_missing_files_are_named_with_what_to_do(write: Write, tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError,
        match=r"is not known: .* HIDDEN_UNCERTAINTY_DATA, .*'MNIST'\. To download it: .*fetch mnist$",
    ):
        mnist()
    with pytest.raises(FileNotFoundError, match=r"MNIST/raw/train-images-idx3-ubyte'.*ubyte\.gz' is accepted too"):
        mnist(root=tmp_path)
    fill(write)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="t10k-labels-idx1-ubyte"):
        mnist("test", root=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENTS["train-images-idx3-ubyte"][:-1], r"cut short: its header states 7 items, 5,488 bytes, but 5,487"),
        (CONTENTS["train-images-idx3-ubyte"] + b"0", "too long: .* 5,489 bytes follow"),
        (CONTENTS["train-images-idx3-ubyte"][:9], "ends inside its header of 16 bytes"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"12", "cut short: its header states 4,294,967,295 items"),
        (CONTENTS["train-labels-idx1-ubyte"], "not an IDX file .* begins with 00 00 08 01, not 00 00 08 03"),
        (b"<html>404</html>", "begins with 3c 68 74 6d"),
        (b"", "begins with nothing"),
        (idx(PIXELS[:, :14]), r"images of \(14, 28\) pixels, expected 28×28"),
        (idx(PIXELS[:5]), "has 5 images, but 7 labels"),
        (idx(PIXELS[:0]), "holds no images"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_images(content: bytes, message: str, write: Write, tmp_path: Path) -> None:
    fill(write)
    write("MNIST/raw/train-images-idx3-ubyte", content)
    with pytest.raises(ValueError, match=message):
        mnist(root=tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda c: c[: len(c) // 2], lambda c: c[:-3], lambda c: b"no" + c, lambda c: c[:40] + b"?" * 99]
)
def test_damaged_packing(damage: Callable[[bytes], bytes], write: Write, tmp_path: Path) -> None:
    fill(write, packed=True)
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"ubyte\.gz' is cut short or damaged"):
        mnist(root=tmp_path)


def test_labels_outside_the_classes(write: Write, tmp_path: Path) -> None:
    fill(write)
    write("MNIST/raw/train-labels-idx1-ubyte", idx(np.array([0, 1, 2, 10, 4, 5, 200], dtype=np.uint8)))
    with pytest.raises(ValueError, match="labels outside its 10 classes: 2, first 10"):
        mnist(root=tmp_path)


def test_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="part must be 'train' or 'test', got 'valid'"):
        mnist("valid", root=tmp_path)  # type: ignore[arg-type]
