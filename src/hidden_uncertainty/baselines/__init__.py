"""Methods to compare with, behind the interface of `LatentDensity`."""

from .adapter import PytorchOOD, PytorchOODFeatures
from .base import Baseline
from .credibility import Credibility
from .dropout import MCDropout
from .ensemble import DeepEnsemble
from .gaussian import one_gaussian_a_class
from .insertion import insert_dropout
from .kernel import KernelDensity
from .mahalanobis import Mahalanobis, RelativeMahalanobis
from .neighbours import NearestNeighbours
from .outputs import Energy, MaxProbability, SoftmaxEntropy
from .process import GaussianProcess

__all__ = [
    "Baseline",
    "Credibility",
    "DeepEnsemble",
    "Energy",
    "GaussianProcess",
    "KernelDensity",
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
]
