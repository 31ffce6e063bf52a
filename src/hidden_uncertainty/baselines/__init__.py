"""Methods to compare with: each a `Detector` that only builds its terms, or replaces how they are read."""

from ..detector import Detector as Baseline
from .adapter import PytorchOOD, PytorchOODFeatures
from .dropout import MCDropout, insert_dropout
from .ensemble import DeepEnsemble
from .mahalanobis import Mahalanobis, RelativeMahalanobis, one_gaussian_a_class, one_gaussian_per_class
from .neighbours import NearestNeighbours
from .outputs import GEN, Energy, MaxProbability, SoftmaxEntropy

__all__ = [
    "GEN",
    "Baseline",
    "DeepEnsemble",
    "Energy",
    "MCDropout",
    "Mahalanobis",
    "MaxProbability",
    "NearestNeighbours",
    "PytorchOOD",
    "PytorchOODFeatures",
    "RelativeMahalanobis",
    "SoftmaxEntropy",
    "insert_dropout",
    "one_gaussian_a_class",
    "one_gaussian_per_class",
]
