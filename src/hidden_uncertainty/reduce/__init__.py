"""A layer's output, of whatever shape, as a vector of at most `max_dim` numbers per input."""

from .reduction import How, Reduce, Reduction, ReductionFit

__all__ = ["How", "Reduce", "Reduction", "ReductionFit"]
