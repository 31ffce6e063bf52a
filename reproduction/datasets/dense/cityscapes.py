"""Cityscapes: street scenes of fifty cities, one class per pixel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ._pictures import Root, choose_part, list_pictures, locate, read_classes
from .base import IGNORE, DenseFiles

CLASSES = (
    "road",
    "sidewalk",
    "building",
    "wall",
    "fence",
    "pole",
    "traffic light",
    "traffic sign",
    "vegetation",
    "terrain",
    "sky",
    "person",
    "rider",
    "car",
    "truck",
    "bus",
    "train",
    "motorcycle",
    "bicycle",
)
# The 19 classes in files of labelIds; every other id is ignored.
IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
_SOURCE = "at www.cityscapes-dataset.com after registration: leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip"


def cityscapes(
    part: Literal["train", "val"] = "train", *, root: Root = None, size: tuple[int, int] | None = None
) -> DenseFiles:
    """Cityscapes in its own layout: 2,975 training and 500 validation images, 19 classes, 255 ignored.

    Labels are `*_gtFine_labelTrainIds.png`, which the authors' scripts write, or `*_gtFine_labelIds.png`, which come
    with the set and are mapped here.

    Args:
        part: `"train"` or `"val"`; labels of the test part are not published.
        root: the folder that holds `cityscapes/leftImg8bit/` and `cityscapes/gtFine/` (or a smaller copy in
            `cityscapes_small/`); None takes it from the environment variable HIDDEN_UNCERTAINTY_DATA.
        size: (H, W) to resize images and labels to.

    Example:
        >>> len(cityscapes("val", root="data"))  # doctest: +SKIP
        500
        >>> CLASSES[13], IDS[13]
        ('car', 26)
    """
    inside = f"leftImg8bit/{choose_part(part, 'train', 'val')}"
    folder = locate(root, [f"cityscapes/{inside}", f"cityscapes_small/{inside}"], _SOURCE)
    labels = folder.parents[1] / "gtFine" / part
    pairs = []
    for city in sorted(path for path in folder.iterdir() if path.is_dir()):
        for name, image in list_pictures(city, "_leftImg8bit").items():
            pairs.append((image, _label(labels / city.name, name)))
    if not pairs:
        raise FileNotFoundError(f"there are no images CITY/*_leftImg8bit.png in {str(folder)!r}: get it {_SOURCE}.")
    return DenseFiles(f"cityscapes {part}", pairs, _decode, size)


def _label(folder: Path, name: str) -> Path:
    places = [folder / f"{name}_gtFine_{kind}.png" for kind in ("labelTrainIds", "labelIds")]
    found = next((path for path in places if path.exists()), None)
    if found is None:
        raise FileNotFoundError(
            f"there is neither {str(places[0])!r} nor {places[1].name!r}: the image has no labels. They are available "
            f"{_SOURCE}."
        )
    return found


def _decode(path: Path, content: bytes) -> Tensor:
    """Classes 0 … 18 and 255 from either kind of label."""
    if path.stem.endswith("labelTrainIds"):
        return read_classes(path, content, [*range(len(CLASSES)), IGNORE])
    return _table()[read_classes(path, content, [*range(34), IGNORE]).int()]


def _table() -> Tensor:
    table = torch.full((256,), IGNORE, dtype=torch.uint8, device="cpu")
    table[list(IDS)] = torch.arange(len(IDS), dtype=torch.uint8, device="cpu")
    return table
