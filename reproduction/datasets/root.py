"""The folder that holds the data sets."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "HIDDEN_UNCERTAINTY_DATA"


def find(root: str | os.PathLike[str] | None, *inside: str) -> Path:
    """A file or folder inside the folder of data sets; raises an error with the path where there is none.

    Args:
        root: the folder of data sets; None takes it from the environment variable HIDDEN_UNCERTAINTY_DATA.
        inside: names of the folders below it, and of the file.

    Example:
        >>> find("/", "no such folder", "data.txt")
        Traceback (most recent call last):
        FileNotFoundError: there is no '/no such folder/data.txt': ...
    """
    remedy = f"pass --data FOLDER (root= in Python), or set {VARIABLE}, to the folder that holds {inside[0]!r}."
    root = root or os.environ.get(VARIABLE)
    if not root:
        raise FileNotFoundError(f"the folder of data sets is not known: {remedy}")
    path = Path(root).expanduser().joinpath(*inside)
    if not path.exists():
        raise FileNotFoundError(f"there is no {str(path)!r}: {remedy}")
    return path
