"""The networks of demonstrations and studies."""

from .digits import DigitsNet, train

__all__ = ["DigitsNet", "train"]
