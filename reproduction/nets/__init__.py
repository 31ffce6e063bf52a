"""The networks of the studies."""

from .deeplab import DeepLab
from .efficientnet import EfficientNetLite0
from .fcnet import FCNet
from .monodepth import MonoDepth
from .regularised import Regularised
from .resnet import ResNet
from .resnet18 import ResNet18
from .transformer import TextTransformer, VisionTransformer

__all__ = [
    "DeepLab",
    "EfficientNetLite0",
    "FCNet",
    "MonoDepth",
    "Regularised",
    "ResNet",
    "ResNet18",
    "TextTransformer",
    "VisionTransformer",
]
