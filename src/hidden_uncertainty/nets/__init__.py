"""The networks of demonstrations and studies."""

from .deeplab import DeepLab
from .dense import DenseRecipe, class_loss, depth_loss, train_dense
from .digits import DigitsNet, train
from .efficientnet import EfficientNetLite0
from .fcnet import FCNet
from .many import train_many
from .mlp import MLP, train_mlps
from .monodepth import MonoDepth
from .regularised import Regularised
from .resnet import ResNet

__all__ = [
    "MLP",
    "DeepLab",
    "DenseRecipe",
    "DigitsNet",
    "EfficientNetLite0",
    "FCNet",
    "MonoDepth",
    "Regularised",
    "ResNet",
    "class_loss",
    "depth_loss",
    "train",
    "train_dense",
    "train_many",
    "train_mlps",
]
