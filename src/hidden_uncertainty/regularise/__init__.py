"""Training a network so that a layer keeps more of its input: reconstruction as a penalty beside the loss."""

from .dense import DenseDecoder
from .reconstruction import Reconstruction
from .residual import ResidualDecoder

__all__ = ["DenseDecoder", "Reconstruction", "ResidualDecoder"]
