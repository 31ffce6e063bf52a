"""The networks of demonstrations and studies."""

from .digits import DigitsNet, train
from .fcnet import FCNet
from .many import train_many
from .mlp import MLP, train_mlps
from .resnet import ResNet

__all__ = ["MLP", "DigitsNet", "FCNet", "ResNet", "train", "train_many", "train_mlps"]
