"""Readers of data sets with a class or a depth per pixel, in the files that they are published in."""

from .base import IGNORE, Dense, DenseFiles
from .cityscapes import CLASSES, cityscapes
from .fishyscapes import lost_and_found
from .kitti import kitti_depth
from .nyu import nyu_v2

__all__ = [
    "CLASSES",
    "IGNORE",
    "Dense",
    "DenseFiles",
    "cityscapes",
    "kitti_depth",
    "lost_and_found",
    "nyu_v2",
]
