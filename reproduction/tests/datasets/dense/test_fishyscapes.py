"""What is wrong with a copy of Lost & Found; what is right with it is in test_base."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reproduction.datasets.dense import lost_and_found

pytest.importorskip("PIL.Image")
Draw = Callable[..., Path]
PLACE = "fishyscapes_lostandfound"


def test_missing_parts(draw: Draw, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"lostandfound/images'.*fishyscapes\.com"):
        lost_and_found(root=tmp_path)
    draw(f"{PLACE}/images/0000.png", np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(FileNotFoundError, match=r"lostandfound/labels_masks'"):
        lost_and_found(root=tmp_path)
    draw(f"{PLACE}/labels_masks/0001.png", np.zeros((4, 4), np.uint8))
    with pytest.raises(FileNotFoundError, match="2 of 2 pictures have no mask or no image, first '0000'"):
        lost_and_found(root=tmp_path)
    (tmp_path / PLACE / "images/0000.png").unlink()
    with pytest.raises(FileNotFoundError, match="there are no pictures"):
        lost_and_found(root=tmp_path)


def test_another_number(draw: Draw, tmp_path: Path) -> None:
    draw(f"{PLACE}/images/0000.png", np.zeros((4, 4, 3), np.uint8))
    draw(f"{PLACE}/labels_masks/0000.png", np.full((4, 4), 2, np.uint8))
    with pytest.raises(ValueError, match="holds the class 2, expected some of 0 … 1, 255"):
        lost_and_found(root=tmp_path)[0]
