"""STL10: bytes of photographs, one column of pixels after the other."""

from __future__ import annotations

from hashlib import md5
from pathlib import Path
from typing import Literal

import numpy as np

from .base import Images, build
from .files import Root, choose_part, locate
from .sources import get

SIDE = 96
SIZE = 3 * SIDE * SIDE


def stl10(part: Literal["train", "test", "unlabeled"] = "train", *, root: Root = None) -> Images:
    """STL10: photographs of ten kinds of things, (n, 3, 96, 96).

    A copy without its file of labels is read without labels.

    Args:
        part: `"train"` (5,000), `"test"` (8,000) or `"unlabeled"` (100,000: 2.8 GB, twice that while it is read).
        root: the folder that holds `stl10_binary/`; None takes it from the environment variable
            HIDDEN_UNCERTAINTY_DATA.

    Example:
        >>> stl10("test", root="data").images.shape  # doctest: +SKIP
        torch.Size([8000, 3, 96, 96])
    """
    files = get("stl10").files
    path = locate("stl10", root, files[f"{choose_part(part, 'train', 'test', 'unlabeled')}_X.bin"].path)
    pixels = np.fromfile(path, np.uint8)
    if len(pixels) % SIZE:
        raise ValueError(
            f"{str(path)!r} is cut short or damaged: its {len(pixels):,} bytes are {len(pixels) / SIZE:.2f} images of "
            f"{SIZE:,} bytes. Fetch it again."
        )
    different = [] if _checksum(pixels) == files[path.name].md5 else [path.name]
    labels = None
    if part != "unlabeled":
        labels = _read_labels(path.with_name(f"{part}_y.bin"), different)
    images = pixels.reshape(-1, 3, SIDE, SIDE).swapaxes(2, 3)
    return build("stl10", path.parent, images, labels, classes=10, different=different)


def _read_labels(path: Path, different: list[str]) -> np.ndarray | None:
    """Labels in 0 … 9; None if there is no file, which is then listed as different."""
    if not path.exists():
        different.append(f"{path.name} is missing, so there are no labels")
        return None
    labels = np.fromfile(path, np.uint8)
    if _checksum(labels) != get("stl10").files[path.name].md5:
        different.append(path.name)
    return labels.astype(np.int64) - 1  # 1 … 10 on disk


def _checksum(values: np.ndarray) -> str:
    return md5(values.data, usedforsecurity=False).hexdigest()
