"""Networks that are trained to know what they do not know, each with the detector that scores by it."""

from .base import Known, Rival, Schedule, train
from .bottleneck import Bottleneck
from .ddu import DDU
from .distance import Distance
from .duq import DUQ
from .plain import Plain, Reconstructing
from .sngp import SNGP

__all__ = [
    "DDU",
    "DUQ",
    "SNGP",
    "Bottleneck",
    "Distance",
    "Known",
    "Plain",
    "Reconstructing",
    "Rival",
    "Schedule",
    "train",
]
