"""Readers of image data sets, in the files that they are published in and other libraries download."""

from .base import Images
from .catalogue import Check, Entry, listing, verify
from .cifar import cifar10, cifar100
from .download import fetch
from .idx import fashion_mnist, mnist
from .omniglot import omniglot
from .stl10 import stl10
from .svhn import svhn
from .variants import flipped, noisy, resized, rotated, unit, white_on_black

__all__ = [
    "Check",
    "Entry",
    "Images",
    "cifar10",
    "cifar100",
    "fashion_mnist",
    "fetch",
    "flipped",
    "listing",
    "mnist",
    "noisy",
    "omniglot",
    "resized",
    "rotated",
    "stl10",
    "svhn",
    "unit",
    "verify",
    "white_on_black",
]
