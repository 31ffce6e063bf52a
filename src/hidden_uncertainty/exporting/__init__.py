"""A detector as one graph with its network: `export` for other runtimes, `compiled` for this process."""

from .compiling import Compiled, compiled
from .program import export

__all__ = ["Compiled", "compiled", "export"]
