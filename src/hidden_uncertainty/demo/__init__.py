"""What the README and the documentation run: digits, a small network, its training, and a demonstration of it all."""

from .training import Digits, DigitsNet, Split, add_noise, digits, rotate, train

__all__ = ["Digits", "DigitsNet", "Split", "add_noise", "digits", "rotate", "train"]
