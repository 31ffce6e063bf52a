"""Data sets of the paper's image studies, drawn small in the formats of the real ones."""

from __future__ import annotations

import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat


def _idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def _grey(random: np.random.Generator, labels: np.ndarray, stripes: bool) -> np.ndarray:
    """A bright bar for each class, lying or upright, of random brightness on a dark ground."""
    images = random.integers(0, 60, (len(labels), 28, 28))
    for image, label in zip(images, labels, strict=True):
        part = image[2 * label + 3 : 2 * label + 6] if stripes else image[:, 2 * label + 3 : 2 * label + 6]
        part += random.integers(80, 190)
    return images.astype(np.uint8)


@pytest.fixture
def grey_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MNIST, FashionMNIST and a few characters of OMNIGLOT below a folder, which the environment names."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for name, stripes in (("MNIST", False), ("FashionMNIST", True)):
        folder = tmp_path / name / "raw"
        folder.mkdir(parents=True)
        for stem, count in (("train", 600), ("t10k", 60)):
            labels = random.permutation(np.arange(count) % 10).astype(np.uint8)
            (folder / f"{stem}-images-idx3-ubyte").write_bytes(_idx(_grey(random, labels, stripes)))
            (folder / f"{stem}-labels-idx1-ubyte").write_bytes(_idx(labels))
    for number in range(12):
        folder = tmp_path / "omniglot-py" / "images_evaluation" / "Angelic" / f"character{number:02}"
        folder.mkdir(parents=True)
        ink = np.where(random.random((105, 105)) < 0.1, 0, 255).astype(np.uint8)
        picture = io.BytesIO()
        image.fromarray(ink).convert("1").save(picture, "PNG")
        (folder / f"{number:04}_01.png").write_bytes(picture.getvalue())
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_DATA", str(tmp_path))
    monkeypatch.delenv("HIDDEN_UNCERTAINTY_WORK", raising=False)
    return tmp_path


def _colour(random: np.random.Generator, labels: np.ndarray, side: int = 32) -> np.ndarray:
    """A bar of the class's own place on a ground of random colour, (n, 3, side, side)."""
    images = np.broadcast_to(random.integers(0, 90, (len(labels), 3, 1, 1)), (len(labels), 3, side, side)).copy()
    images += random.integers(0, 40, images.shape)
    for image, label in zip(images, labels, strict=True):
        image[:, :, 3 * label : 3 * label + 3] += 100
    return images.astype(np.uint8)


@pytest.fixture
def colour_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SVHN, CIFAR10 and STL10 below a folder, which the environment names."""
    random = np.random.default_rng(0)
    for folder in ("SVHN", "cifar-10-batches-py", "stl10_binary"):
        (tmp_path / folder).mkdir()
    for part, count in (("train", 120), ("test", 30)):
        labels = random.permutation(np.arange(count) % 10)
        pixels = _colour(random, labels).transpose(2, 3, 1, 0)
        savemat(tmp_path / "SVHN" / f"{part}_32x32.mat", {"X": pixels, "y": np.where(labels == 0, 10, labels)[:, None]})
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        labels = random.permutation(np.arange(30) % 10)
        pixels = _colour(random, labels).reshape(30, 3072)
        content = pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=2)
        (tmp_path / "cifar-10-batches-py" / name).write_bytes(content)
    photographs = _colour(random, np.arange(20) % 10, 96).swapaxes(2, 3)
    (tmp_path / "stl10_binary" / "test_X.bin").write_bytes(photographs.tobytes())
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_DATA", str(tmp_path))
    monkeypatch.delenv("HIDDEN_UNCERTAINTY_WORK", raising=False)
    return tmp_path
