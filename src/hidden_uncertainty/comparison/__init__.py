"""Methods side by side on one network: how well each detects, and what it costs."""

from .run import Method, compare
from .table import FORWARD, Comparison

__all__ = ["FORWARD", "Comparison", "Method", "compare"]
