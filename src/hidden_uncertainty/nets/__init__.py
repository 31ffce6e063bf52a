"""The networks of demonstrations and studies."""

from .digits import DigitsNet, train
from .fcnet import FCNet
from .many import train_many
from .mlp import MLP, train_mlps
from .regularised import Regularised
from .resnet import ResNet

__all__ = ["MLP", "DigitsNet", "FCNet", "Regularised", "ResNet", "train", "train_many", "train_mlps"]
