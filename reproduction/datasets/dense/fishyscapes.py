"""Fishyscapes Lost & Found: street scenes with small objects on the road that belong to no class of Cityscapes."""

from __future__ import annotations

from functools import partial

from ._pictures import Root, list_pictures, locate, read_classes
from .base import IGNORE, DenseFiles

_SOURCE = "at fishyscapes.com, with images of the Lost and Found data set at www.6d-vision.com"


def lost_and_found(*, root: Root = None, size: tuple[int, int] | None = None) -> DenseFiles:
    """The 100 validation images of Fishyscapes Lost & Found: 0 is what Cityscapes knows, 1 an object, 255 ignored.

    Args:
        root: the folder that holds `fishyscapes_lostandfound/images/` and `fishyscapes_lostandfound/labels_masks/`,
            files with the same names in both; None takes it from the environment variable HIDDEN_UNCERTAINTY_DATA.
        size: (H, W) to resize images and masks to.

    Example:
        >>> len(lost_and_found(root="data"))  # doctest: +SKIP
        100
    """
    folder = locate(root, ["fishyscapes_lostandfound/images"], _SOURCE)
    masks = locate(root, ["fishyscapes_lostandfound/labels_masks"], _SOURCE)
    images, found = list_pictures(folder), list_pictures(masks)
    if not images:
        raise FileNotFoundError(f"there are no pictures in {str(folder)!r}: get them {_SOURCE}.")
    alone = sorted(images.keys() ^ found.keys())
    if alone:
        raise FileNotFoundError(
            f"{len(alone)} of {len(images.keys() | found.keys())} pictures have no mask or no image, first "
            f"{alone[0]!r} in {str(folder.parent)!r}: the copy is incomplete."
        )
    decode = partial(read_classes, known=(0, 1, IGNORE))
    return DenseFiles("Fishyscapes Lost & Found", [(images[name], found[name]) for name in images], decode, size)
