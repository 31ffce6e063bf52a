"""A detector as one graph with its network."""

from .program import export

__all__ = ["export"]
