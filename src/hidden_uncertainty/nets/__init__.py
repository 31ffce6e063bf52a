"""The networks of demonstrations and studies."""

from .digits import DigitsNet, train
from .mlp import MLP, train_mlps

__all__ = ["MLP", "DigitsNet", "train", "train_mlps"]
