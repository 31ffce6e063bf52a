"""Data for demonstrations and studies: readers that split, and changes that move images away from what was seen."""

from .digits import Digits, digits
from .perturb import add_noise, flip, rotate
from .split import Split

__all__ = ["Digits", "Split", "add_noise", "digits", "flip", "rotate"]
