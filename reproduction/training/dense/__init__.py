"""Training of networks that predict every pixel."""

from .lane import DenseLane, DenseRecipe
from .train import DenseTrained, class_loss, depth_loss, train_dense

__all__ = ["DenseLane", "DenseRecipe", "DenseTrained", "class_loss", "depth_loss", "train_dense"]
