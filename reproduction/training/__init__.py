"""Training of the studies' networks: many at once, on a GPU as recorded graphs."""

from .classifier import ClassifierRecipe, train_classifiers
from .dense import DenseRecipe, class_loss, depth_loss, train_dense
from .many import train_many
from .mlp import MLP, train_mlps

__all__ = [
    "MLP",
    "ClassifierRecipe",
    "DenseRecipe",
    "class_loss",
    "depth_loss",
    "train_classifiers",
    "train_dense",
    "train_many",
    "train_mlps",
]
