"""KITTI depth: drives with depth measured by laser, for some of the pixels."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Literal

from ._pictures import Root, choose_part, list_pictures, locate, read_depth
from .base import DenseFiles

_SOURCE = "at www.cvlibs.net/datasets/kitti after registration: data_depth_annotated.zip, and raw data for the images"
_DECODE = partial(read_depth, per_metre=256.0)


def kitti_depth(
    part: Literal["train", "val"] = "train",
    *,
    cameras: Collection[int] = (2, 3),
    root: Root = None,
    size: tuple[int, int] | None = None,
) -> DenseFiles:
    """KITTI's annotated depth with its raw images: metres, NaN where the laser saw nothing.

    Files are where the archives unpack them: depth in `kitti/{train,val}/DRIVE/proj_depth/groundtruth/image_0X/*.png`
    (16 bit, 256 per metre), images in `kitti/DATE/DRIVE/image_0X/data/*.png` (or .jpg), or in
    `kitti/{train,val}/DRIVE/image_0X/data/`. Images of different days differ by a few pixels in size: pass `size`
    to load them together.

    Args:
        part: `"train"` or `"val"`.
        cameras: 2 is the left, 3 the right colour camera.
        root: the folder that holds `kitti/`; None takes it from the environment variable HIDDEN_UNCERTAINTY_DATA.
        size: (H, W) to resize images and depth to; depth takes the nearest pixel, with or without a value.

    Example:
        >>> image, depth = kitti_depth("val", root="data")[0]  # doctest: +SKIP
    """
    if not cameras or not set(cameras) <= {2, 3}:
        raise ValueError(f"cameras must be 2, 3 or both, the colour cameras, got {sorted(cameras)}.")
    folder = locate(root, [f"kitti/{choose_part(part, 'train', 'val')}"], _SOURCE)
    pairs = []
    for drive in sorted(path for path in folder.iterdir() if path.is_dir()):
        for camera in sorted(set(cameras)):
            depth = drive / "proj_depth" / "groundtruth" / f"image_0{camera}"
            if depth.is_dir():
                pairs += _pair(depth, drive, f"image_0{camera}")
    if not pairs:
        raise FileNotFoundError(
            f"there are no files DRIVE/proj_depth/groundtruth/image_0X/*.png in {str(folder)!r}: get them {_SOURCE}."
        )
    return DenseFiles(f"KITTI depth {part}", pairs, _DECODE, size)


def _pair(depth: Path, drive: Path, camera: str) -> list[tuple[Path, Path]]:
    """Images of one camera on one drive with their depth; a drive's first and last frames have none."""
    date = drive.name[:10]  # 2011_09_26 of 2011_09_26_drive_0001_sync
    places = [drive.parents[1] / date / drive.name / camera / "data", drive / camera / "data"]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(
            f"there is neither {str(places[0])!r} nor {str(places[1])!r}: the drive has depth, but no images. They are "
            f"available {_SOURCE}."
        )
    images, measured = list_pictures(folder), list_pictures(depth)
    lost = [name for name in measured if name not in images]
    if lost:
        raise FileNotFoundError(
            f"{len(lost)} of {len(measured)} frames of {str(depth)!r} have no image in {str(folder)!r}, first "
            f"{lost[0]!r}: the copy is incomplete."
        )
    return [(images[name], path) for name, path in measured.items()]
