"""Read pictures from files: colours, classes and depth; and find the files."""

from __future__ import annotations

import io
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..images.files import Root, choose_part, optional
from ..root import VARIABLE, find

__all__ = ["Root", "choose_part", "list_pictures", "locate", "read_classes", "read_depth", "read_image", "resize_image"]

SUFFIXES = (".png", ".webp", ".jpg", ".jpeg")


def read_image(path: Path, content: bytes) -> Tensor:
    """The colours of a picture, (3, H, W) of uint8."""
    values, _ = _decode(path, content, colours=True)
    return torch.from_numpy(values.transpose(2, 0, 1).copy())


def read_classes(path: Path, content: bytes, known: Collection[int]) -> Tensor:
    """The numbers of a grey or palette PNG, (H, W) of uint8.

    Args:
        path: of the file, for errors.
        content: of the file.
        known: the allowed numbers.
    """
    values, mode = _decode(path, content)
    if mode not in ("L", "P", "1"):
        raise ValueError(
            f"{str(path)!r} holds a picture of kind {mode!r}, expected one number per pixel (grey or palette, 8 bit): "
            "it may be a coloured view of the labels."
        )
    classes = values.astype(np.uint8)
    strange = sorted(set(np.unique(classes).tolist()) - set(known))
    if strange:
        raise ValueError(
            f"{str(path)!r} holds the class {strange[0]}" + f" and {len(strange) - 1} more" * (len(strange) > 1) + ", "
            f"expected some of {_ranges(known)}: check that these are the right labels."
        )
    return torch.from_numpy(classes.copy())


def read_depth(path: Path, content: bytes, per_metre: float) -> Tensor:
    """Metres from a 16-bit PNG, (H, W) of float32, NaN where it holds 0.

    Args:
        path: of the file, for errors.
        content: of the file.
        per_metre: what the file's numbers are divided by.
    """
    values, mode = _decode(path, content)
    if not mode.startswith("I"):
        raise ValueError(
            f"{str(path)!r} holds a picture of kind {mode!r}, expected 16-bit grey: it may be "
            "a picture of the depth, made to look at."
        )
    depth = torch.from_numpy(values.astype(np.float32)) / per_metre
    return depth.masked_fill(depth <= 0, torch.nan)


def resize_image(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize an image (3, H, W) of uint8, bilinearly with antialiasing."""
    module = optional("PIL.Image", "pillow", "resizing images")
    picture = module.fromarray(image.permute(1, 2, 0).numpy())
    resized = picture.resize((size[1], size[0]), module.Resampling.BILINEAR)
    return torch.from_numpy(np.asarray(resized).transpose(2, 0, 1).copy())


def list_pictures(folder: Path, ending: str = "") -> dict[str, Path]:
    """Pictures in a folder whose stem has this ending, sorted, by their stems without it."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in SUFFIXES and path.stem.endswith(ending) and not path.name.startswith("."):
            found[path.stem.removesuffix(ending)] = path
    return found


def locate(root: Root, places: Collection[str], source: str) -> Path:
    """The first of these folders or files that exists; the error says where it was looked for and how to get it.

    Args:
        root: the folder of data sets; None takes it from the environment variable.
        places: below it.
        source: how to get it, in words.
    """
    first: FileNotFoundError | None = None
    for place in places:
        try:
            return find(root, *place.split("/"))
        except FileNotFoundError as error:
            first = first or error
    others = list(places)[1:]
    known = root or os.environ.get(VARIABLE)
    instead = f" {' or '.join(map(repr, others))} is accepted too." if known and others else ""
    raise FileNotFoundError(f"{first}{instead} It is available {source}.")


def _decode(path: Path, content: bytes, *, colours: bool = False) -> tuple[np.ndarray, str]:
    """A picture's numbers, and its kind as pillow names it."""
    module = optional("PIL.Image", "pillow", "reading pictures")
    kinds = ["PNG", "WEBP", "JPEG"] if colours else ["PNG"]
    try:
        with module.open(io.BytesIO(content), formats=kinds) as picture:
            mode = picture.mode
            return np.asarray(picture.convert("RGB") if colours else picture), mode
    except Exception as error:  # a damaged picture can fail in many ways
        reason = f"it has {len(content):,} bytes" if "cannot identify" in str(error) else error or type(error).__name__
        raise ValueError(
            f"{str(path)!r} is cut short or not a {' or '.join(kinds)} file: {reason}. Copy it again from its source."
        ) from None


def _ranges(known: Collection[int]) -> str:
    """Numbers as text: 0 … 18, 255."""
    parts: list[list[int]] = []
    for number in sorted(known):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low} … {high}" for low, high in parts)
