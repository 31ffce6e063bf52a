"""A detector as one graph with its network: `export` for other runtimes, `compiled` for this process."""

from .program import Compiled, compiled, export

__all__ = ["Compiled", "compiled", "export"]
