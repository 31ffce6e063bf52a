"""Pairs of files: one by one, all in memory, at another size, and what is wrong with them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from reproduction.datasets.dense import Dense, DenseFiles, lost_and_found
from reproduction.datasets.dense._pictures import _ranges

pytest.importorskip("PIL.Image")
Draw = Callable[..., Path]
PLACE = "fishyscapes_lostandfound"


@pytest.fixture
def images(random: np.random.Generator) -> np.ndarray:
    return random.integers(0, 256, (5, 8, 12, 3), dtype=np.uint8)


@pytest.fixture
def masks(random: np.random.Generator) -> np.ndarray:
    return random.choice(np.array([0, 1, 255], dtype=np.uint8), (5, 8, 12))


@pytest.fixture
def files(draw: Draw, images: np.ndarray, masks: np.ndarray, tmp_path: Path) -> DenseFiles:
    for i in reversed(range(5)):
        draw(f"{PLACE}/images/{i:04}.{'webp' if i % 2 else 'png'}", images[i])
        draw(f"{PLACE}/labels_masks/{i:04}.png", masks[i])
    return lost_and_found(root=tmp_path)


def test_one_by_one_and_all_together(files: DenseFiles, images: np.ndarray, masks: np.ndarray) -> None:
    whole = files.load(threads=3)
    assert len(files) == len(whole) == 5
    assert np.array_equal(whole.images, images.transpose(0, 3, 1, 2)) and whole.images.dtype == torch.uint8
    assert np.array_equal(whole.targets, masks) and whole.targets.dtype == torch.uint8
    image, target = files[3]
    assert torch.equal(image, whole.images[3]) and torch.equal(target, whole.targets[3].long())
    assert target.dtype == torch.long


def test_some(files: DenseFiles) -> None:
    assert torch.equal(files.some([4, 1]).load().images, files.load().images[[4, 1]])
    with pytest.raises(ValueError, match="no images to load"):
        files.some([]).load()


def test_in_a_loader_and_in_other_processes(files: DenseFiles, masks: np.ndarray) -> None:
    (batch, *_) = DataLoader(pickle.loads(pickle.dumps(files)), batch_size=4)
    assert np.array_equal(batch[1], masks[:4]) and batch[0].shape == (4, 3, 8, 12)


def test_batches(files: DenseFiles) -> None:
    whole = files.load()
    batches = whole.batches(2)
    assert [len(x) for x, _ in batches] == [2, 2, 1]
    assert {y.dtype for _, y in batches} == {torch.long}
    assert torch.equal(torch.cat([y for _, y in batches]), whole.targets.long())


def test_digest_follows_contents_and_order_alone(files: DenseFiles, draw: Draw, masks: np.ndarray) -> None:
    digest = files.load(threads=1).digest
    assert digest == files.load(threads=4).digest and len(digest) == 64
    assert digest != files.some([1, 0, 2, 3, 4]).load().digest
    masks[2, 0, 0] = 1 - masks[2, 0, 0] % 2
    draw(f"{PLACE}/labels_masks/0002.png", masks[2])
    assert digest != files.load().digest


def test_half_the_size(tmp_path: Path, draw: Draw) -> None:
    blocks = np.arange(24, dtype=np.uint8).reshape(4, 6).repeat(2, 0).repeat(2, 1)
    draw(f"{PLACE}/images/0.png", np.stack([blocks * 10] * 3, 2))
    draw(f"{PLACE}/labels_masks/0.png", (blocks == 7).astype(np.uint8))
    image, target = lost_and_found(root=tmp_path, size=(4, 6))[0]
    assert image.shape == (3, 4, 6) and target.shape == (4, 6)
    assert target.nonzero().tolist() == [[1, 1]]
    # Averaging reaches a pixel beyond its block, so that values of neighbours, 10 and 60 away, count a little.
    assert (image[0].float() - torch.arange(24).view(4, 6) * 10).abs().max() < 12


def test_sizes_differ(files: DenseFiles, draw: Draw, random: np.random.Generator) -> None:
    draw(f"{PLACE}/images/0002.png", random.integers(0, 256, (16, 24, 3), dtype=np.uint8))
    draw(f"{PLACE}/labels_masks/0002.png", np.zeros((16, 24), np.uint8))
    assert files[2][0].shape == (3, 16, 24)
    with pytest.raises(ValueError, match=r"0002\.png' has 16×24 pixels .* first image 8×12 .* Pass size="):
        files.load()
    draw(f"{PLACE}/labels_masks/0002.png", np.zeros((16, 16), np.uint8))
    with pytest.raises(ValueError, match=r"0002\.png' has 16×16 pixels, which does not fit the 16×24"):
        files[2]


@pytest.mark.parametrize("name", ["images/0001.webp", "images/0002.png", "labels_masks/0001.png"])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5])
def test_cut_short(name: str, keep: float, files: DenseFiles, tmp_path: Path) -> None:
    path = tmp_path / PLACE / name
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ValueError, match=rf"{path.name}' is cut short or not a PNG.*Copy it again"):
        files.load()


def test_a_file_that_went_away(files: DenseFiles, tmp_path: Path) -> None:
    (tmp_path / PLACE / "images/0001.webp").unlink()
    with pytest.raises(FileNotFoundError, match=r"0001\.webp"):
        files.load()


@pytest.mark.parametrize("size", [(0, 4), (4,)])
def test_wrong_size(size: tuple[int, int], files: DenseFiles, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="size must be"):
        lost_and_found(root=tmp_path, size=size)


@pytest.mark.parametrize(
    ("images", "targets", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4), "expected images"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, 4, 4), "expected images"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, 4, 4), r"expected targets \(2, h, w\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2, 4, 4).long(), "expected targets"),
    ],
)
def test_wrong_tensors(images: torch.Tensor, targets: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dense(images, targets, "")


def test_ranges_in_words() -> None:
    assert _ranges([*range(19), 255]) == "0 … 18, 255" and _ranges([3]) == "3"
