"""Training a network so that a layer keeps more of its input: reconstruction as a penalty beside the loss."""

from .decoders import DenseDecoder, ResidualDecoder
from .reconstruction import Reconstruction

__all__ = ["DenseDecoder", "Reconstruction", "ResidualDecoder"]
