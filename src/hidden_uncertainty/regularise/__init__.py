"""Training a network so that a layer keeps more of its input: reconstruction as a penalty beside the loss."""

from .reconstruction import DenseDecoder, Reconstruction, ResidualDecoder

__all__ = ["DenseDecoder", "Reconstruction", "ResidualDecoder"]
