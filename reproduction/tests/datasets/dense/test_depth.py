"""NYU v2 and KITTI depth from small trees in their own layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduction.datasets.dense import kitti_depth, nyu_v2

pytest.importorskip("PIL.Image")
Draw = Callable[..., Path]
DRIVE = "2011_09_26_drive_0001_sync"


@pytest.fixture
def nyu(draw: Draw, tmp_path: Path, random: np.random.Generator) -> np.ndarray:
    depth = random.integers(0, 2**16, (6, 3, 4), dtype=np.uint16)
    depth[:, 0, 0] = 0
    for i in range(6):
        draw(f"nyuv2/rgb/{i:04}.webp", np.full((6, 8, 3), 40 * i, np.uint8))
        draw(f"nyuv2/depth/{i:04}.png", depth[i])
    (tmp_path / "nyuv2/train.txt").write_text("0002\n0000\n0005\n")
    (tmp_path / "nyuv2/test.txt").write_text("0001\n")
    return depth


def test_nyu_millimetres(nyu: np.ndarray, tmp_path: Path) -> None:
    whole = nyu_v2("train", root=tmp_path).load()
    assert whole.images[:, 0, 0, 0].tolist() == [80, 0, 200] and whole.images.shape == (3, 3, 6, 8)
    expected = np.where(nyu == 0, np.nan, nyu / 1000)[[2, 0, 5]]
    assert np.allclose(whole.targets, expected, equal_nan=True, rtol=1e-6) and whole.targets.dtype == torch.float32
    assert len(nyu_v2("test", root=tmp_path)) == 1
    assert nyu_v2("test", root=tmp_path)[0][1].dtype == torch.float32


def test_nyu_depth_keeps_its_ratio(nyu: np.ndarray, tmp_path: Path) -> None:
    image, depth = nyu_v2("train", root=tmp_path, size=(12, 16))[1]
    assert image.shape == (3, 12, 16) and depth.shape == (6, 8)
    expected = np.where(nyu[0] == 0, np.nan, nyu[0] / 1000).repeat(2, 0).repeat(2, 1)
    assert np.allclose(depth, expected, equal_nan=True, rtol=1e-6)


def test_nyu_incomplete(nyu: np.ndarray, draw: Draw, tmp_path: Path) -> None:
    draw("nyuv2/depth/0001.png", np.zeros((3, 4), np.uint8))
    with pytest.raises(ValueError, match="kind 'L', expected 16-bit grey"):
        nyu_v2("test", root=tmp_path)[0]
    (tmp_path / "nyuv2/depth/0005.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 3 images of .*train\.txt' are not in .*depth', first '0005'"):
        nyu_v2("train", root=tmp_path)
    (tmp_path / "nyuv2/test.txt").write_text("\n")
    with pytest.raises(ValueError, match="names no images"):
        nyu_v2("test", root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nyuv2/train.txt'"):
        nyu_v2("train", root=tmp_path / "elsewhere")


@pytest.mark.parametrize("place", ["2011_09_26", "val"], ids=["as the archives", "beside the depth"])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_kitti_256_per_metre(place: str, suffix: str, draw: Draw, tmp_path: Path, random: np.random.Generator) -> None:
    depth = random.integers(0, 2**16, (2, 4, 10), dtype=np.uint16) * random.integers(0, 2, (2, 4, 10), dtype=np.uint16)
    for camera in (2, 3):
        for frame in range(4):  # laser frames 1 and 2 alone have depth
            values = np.full((4, 10, 3), 50 * frame + camera, np.uint8)
            draw(f"kitti/{place}/{DRIVE}/image_0{camera}/data/{frame:010}.{suffix}", values)
        for i in range(2):
            truth = f"kitti/val/{DRIVE}/proj_depth/groundtruth/image_0{camera}/{i + 1:010}.png"
            draw(truth, depth[i])
    whole = kitti_depth("val", root=tmp_path).load()
    assert whole.images[:, 0, 0, 0].tolist() == [52, 102, 53, 103]
    expected = np.where(depth == 0, np.nan, depth / 256)
    assert np.allclose(whole.targets[2:], expected, equal_nan=True, rtol=1e-6)
    assert len(kitti_depth("val", cameras=[3], root=tmp_path)) == 2


def test_kitti_incomplete(draw: Draw, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"kitti/train'.*www\.cvlibs\.net"):
        kitti_depth("train", root=tmp_path)
    with pytest.raises(ValueError, match=r"cameras must be 2, 3 or both, .* got \[0, 2\]"):
        kitti_depth("train", cameras=(0, 2), root=tmp_path)
    (tmp_path / "kitti/val").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="there are no files DRIVE/proj_depth"):
        kitti_depth("val", root=tmp_path)
    draw(f"kitti/train/{DRIVE}/proj_depth/groundtruth/image_02/0000000005.png", np.zeros((4, 10), np.uint16))
    with pytest.raises(FileNotFoundError, match=rf"neither .*kitti/2011_09_26/{DRIVE}/image_02/data' nor .* no images"):
        kitti_depth("train", root=tmp_path)
    draw(f"kitti/2011_09_26/{DRIVE}/image_02/data/0000000004.png", np.zeros((4, 10, 3), np.uint8))
    with pytest.raises(FileNotFoundError, match=r"1 of 1 frames .* first '0000000005'"):
        kitti_depth("train", root=tmp_path)
