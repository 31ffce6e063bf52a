"""OMNIGLOT: handwritten characters of fifty alphabets, one PNG each."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal
from zipfile import ZipFile
from zlib import crc32

import numpy as np

from hidden_uncertainty.progress import track

from .base import Images, build
from .files import Root, checksum, choose_part, locate, optional
from .sources import get

SIDE = 105


def omniglot(part: Literal["background", "evaluation"] = "evaluation", *, root: Root = None) -> Images:
    """OMNIGLOT: handwritten characters, black on white, (n, 1, 105, 105); 20 per character.

    A label is the position of the character among all characters of the part, in the order of their folders' names.

    The pictures have no published checksums: they count as official if the archive that they came in is beside their
    folder, is the published one, and holds the same pictures. Fetching leaves it there, as torchvision does.

    Args:
        part: `"background"` (19,280 of 30 alphabets) or `"evaluation"` (13,180 of 20).
        root: the folder that holds `omniglot-py/images_background/` and `omniglot-py/images_evaluation/`; None takes it
            from the environment variable HIDDEN_UNCERTAINTY_DATA.

    Example:
        >>> omniglot("evaluation", root="data").images.shape  # doctest: +SKIP
        torch.Size([13180, 1, 105, 105])
    """
    image = optional("PIL.Image", "pillow", "reading PNG files")
    folder = locate("omniglot", root, f"omniglot-py/images_{choose_part(part, 'background', 'evaluation')}")
    paths = pictures(folder)
    if not paths:
        raise FileNotFoundError(f"there are no pictures ALPHABET/CHARACTER/*.png in {str(folder)!r}.")
    pixels = np.empty((len(paths), 1, SIDE, SIDE), np.uint8)
    found = {}
    for i, path in enumerate(track(paths, f"omniglot {part}")):
        content = path.read_bytes()
        found[path.relative_to(folder.parent).as_posix()] = crc32(content)
        try:
            with image.open(io.BytesIO(content), formats=["PNG"]) as picture:
                values = np.asarray(picture.convert("L"))
        except Exception as error:  # a damaged picture can fail in many ways
            raise ValueError(f"{str(path)!r} is cut short or not a PNG: {error or type(error).__name__}.") from None
        if values.shape != (SIDE, SIDE):
            raise ValueError(f"{str(path)!r} has {values.shape} pixels, OMNIGLOT has {SIDE}×{SIDE}.")
        pixels[i, 0] = values
    characters, labels = np.unique([str(path.parent) for path in paths], return_inverse=True)
    return build("omniglot", folder, pixels, labels, classes=len(characters), different=compare(folder, found))


def pictures(folder: Path) -> list[Path]:
    """All pictures ALPHABET/CHARACTER/*.png of a folder, in order."""
    return sorted(path for path in folder.glob("*/*/*.png") if not path.name.startswith("."))


def compare(folder: Path, found: dict[str, int]) -> list[str]:
    """What differs from the archive beside a folder of pictures, in words; empty if all is as published.

    Args:
        folder: of the pictures.
        found: CRC-32 of each picture, by its path below the parent of the folder.
    """
    archive = folder.with_suffix(".zip")
    if not archive.exists():
        return [f"it cannot be compared, because {archive.name} is not beside it"]
    download = next(one for one in get("omniglot").downloads if one.path.endswith(archive.name))
    if checksum(archive) != download.md5:
        return [f"{archive.name} is not the published one"]
    with ZipFile(archive) as content:
        published = {item.filename: item.CRC for item in content.infolist() if item.filename.endswith(".png")}
    return sorted(name for name in published.keys() | found.keys() if published.get(name) != found.get(name))
