"""Data for demonstrations and studies: readers that split, and changes that move images away from what was seen."""

from .digits import Digits, digits
from .perturb import add_noise, flip, rotate
from .points import Points
from .split import Split
from .toy import Toy, toy
from .uci import Scale, Table, uci

__all__ = ["Digits", "Points", "Scale", "Split", "Table", "Toy", "add_noise", "digits", "flip", "rotate", "toy", "uci"]
