"""SVHN: digits of house numbers, cropped, in MATLAB files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from scipy.io import loadmat

from .base import Images, build
from .files import Root, checksum, choose_part, locate
from .sources import get


def svhn(part: Literal["train", "test", "extra"] = "train", *, root: Root = None) -> Images:
    """SVHN: house numbers, one digit in the middle, (n, 3, 32, 32); the digit 0 has label 0.

    Args:
        part: `"train"` (73,257), `"test"` (26,032) or `"extra"` (531,131 easier ones).
        root: the folder that holds `SVHN/`, or the .mat files themselves; None takes it from the environment variable
            HIDDEN_UNCERTAINTY_DATA.

    Example:
        >>> svhn("test", root="data").images.shape  # doctest: +SKIP
        torch.Size([26032, 3, 32, 32])
    """
    name = "svhn-extra" if choose_part(part, "train", "test", "extra") == "extra" else "svhn"
    file = get(name).files[f"{part}_32x32.mat"]
    path = locate(name, root, file.path, *file.also)
    pixels, labels = _read_mat(path)
    different = [] if checksum(path) == file.md5 else [path.name]
    return build(name, path.parent, pixels.transpose(3, 2, 0, 1), labels % 10, classes=10, different=different)


def _read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (32, 32, 3, n) and labels (n,) in 1 … 10, where 10 is the digit 0."""
    try:
        variables = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # a damaged file can fail in scipy in many ways
        raise ValueError(
            f"{str(path)!r} is damaged or not a MATLAB file ({error or type(error).__name__}). Fetch it again."
        ) from None
    if not {"X", "y"} <= set(variables):
        raise ValueError(f"{str(path)!r} holds no variables X and y: not a file of cropped digits, or cut short.")
    pixels, labels = variables["X"], variables["y"]
    if pixels.shape[:3] != (32, 32, 3) or pixels.ndim != 4 or pixels.dtype != np.uint8:
        raise ValueError(f"X of {str(path)!r} is {pixels.shape} of {pixels.dtype}, expected (32, 32, 3, n) of uint8.")
    labels = labels.ravel()
    if not np.isin(labels, range(1, 11)).all():
        raise ValueError(f"y of {str(path)!r} holds values other than 1 … 10.")
    return pixels, labels.astype(np.int64)
