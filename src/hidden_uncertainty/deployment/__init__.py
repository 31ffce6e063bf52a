"""Detectors at work: scores of large sets, and streams that are watched."""

from .monitor import Monitor
from .shards import write_scores

__all__ = ["Monitor", "write_scores"]
