"""A layer's output, of whatever shape, as a vector of at most `max_dim` numbers per input."""

from .pooling import pool_tokens
from .reduction import How, Reduce, Reduction, ReductionFit

__all__ = ["How", "Reduce", "Reduction", "ReductionFit", "pool_tokens"]
