"""A detector as one graph with its network: `export` for other runtimes, `Compiled` for this process."""

from .program import Compiled, export

__all__ = ["Compiled", "export"]
