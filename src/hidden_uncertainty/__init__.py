"""Epistemic and aleatoric uncertainty for any trained PyTorch network, from the density of its hidden activations."""

from . import metrics, plots
from .calibration import Calibration
from .density import Density, GaussianMixture
from .estimator import LatentDensity
from .extract import Features
from .layers import layers
from .reduce import Reduce
from .uncertainty import LayerScores, Uncertainty

__version__ = "0.1.0"

__all__ = [
    "Calibration",
    "Density",
    "Features",
    "GaussianMixture",
    "LatentDensity",
    "LayerScores",
    "Reduce",
    "Uncertainty",
    "layers",
    "metrics",
    "plots",
]
