"""Methods side by side on one network: how well each detects, and what it costs."""

from .run import Comparable, compare
from .table import FORWARD, Comparison

__all__ = ["FORWARD", "Comparable", "Comparison", "compare"]
