"""Features of inputs and of pixels: what methods are fitted to."""

from .extractor import Extractor
from .features import OUTPUTS, AsIs, Axis, Features, Lattice, Population, Reading, Rows, Unseen
from .pixel_extractor import Grid, PixelExtractor, label_maps
from .pixels import Pixels
from .reader import Later, NoNetwork, NoReader, Reader, Source, activation_of

__all__ = [
    "OUTPUTS",
    "AsIs",
    "Axis",
    "Extractor",
    "Features",
    "Grid",
    "Later",
    "Lattice",
    "NoNetwork",
    "NoReader",
    "PixelExtractor",
    "Pixels",
    "Population",
    "Reader",
    "Reading",
    "Rows",
    "Source",
    "Unseen",
    "activation_of",
    "label_maps",
]
