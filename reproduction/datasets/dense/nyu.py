"""NYU Depth v2: rooms with the depth of every pixel."""

from __future__ import annotations

from functools import partial
from typing import Literal

from ._pictures import Root, choose_part, list_pictures, locate, read_depth
from .base import DenseFiles

_SOURCE = "at cs.nyu.edu/~fergus/datasets/nyu_depth_v2.html; write it out as pictures"
_DECODE = partial(read_depth, per_metre=1000.0)


def nyu_v2(
    part: Literal["train", "test"] = "train", *, root: Root = None, size: tuple[int, int] | None = None
) -> DenseFiles:
    """The labelled images of NYU Depth v2, split as published: 795 and 654, depth in metres, NaN where there is none.

    Args:
        part: `"train"` or `"test"`.
        root: the folder that holds `nyuv2/rgb/NNNN.png` (or .webp, .jpg), `nyuv2/depth/NNNN.png` (16 bit, in
            millimetres, 0 where there is no value) and the lists of numbers `nyuv2/train.txt` and `nyuv2/test.txt`;
            None takes it from the environment variable HIDDEN_UNCERTAINTY_DATA.
        size: (H, W) to resize images to; depth keeps its size relative to them.

    Example:
        >>> len(nyu_v2("test", root="data"))  # doctest: +SKIP
        654
    """
    listed = locate(root, [f"nyuv2/{choose_part(part, 'train', 'test')}.txt"], _SOURCE)
    rgb, depth = (list_pictures(locate(root, [f"nyuv2/{kind}"], _SOURCE)) for kind in ("rgb", "depth"))
    names = listed.read_text(encoding="utf-8").split()
    if not names:
        raise ValueError(f"{str(listed)!r} names no images: expected one number per line.")
    for kind, files in (("rgb", rgb), ("depth", depth)):
        lost = [name for name in names if name not in files]
        if lost:
            raise FileNotFoundError(
                f"{len(lost)} of {len(names)} images of {str(listed)!r} are not in {str(listed.parent / kind)!r}, "
                f"first {lost[0]!r}: the copy is incomplete."
            )
    return DenseFiles(f"NYU v2 {part}", [(rgb[name], depth[name]) for name in names], _DECODE, size)
