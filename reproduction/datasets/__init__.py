"""The data sets of the studies: readers of points, tables, images and pixels."""

from .points import Points
from .toy import Toy, toy
from .uci import Scale, Table, uci

__all__ = ["Points", "Scale", "Table", "Toy", "toy", "uci"]
