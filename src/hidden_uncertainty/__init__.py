"""Epistemic and aleatoric uncertainty for any trained PyTorch network, from the density of its hidden activations.

`LatentDensity(model, layer).fit(train, calibration=unseen)` is a detector, and calling it gives an `Uncertainty`;
`layers(model, example)` lists what can be read. Other methods are in `hidden_uncertainty.baselines`, a reconstruction
penalty for training in `hidden_uncertainty.regularise`, small networks and data sets in `nets` and `datasets`.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from . import metrics
from .calibration import Calibration
from .comparison import Comparison, compare
from .density import ConditionalFlow, Density, GaussianMixture, JointMixture
from .distribution import OutputDistribution
from .estimator import LatentDensity
from .extract import Features
from .layers import layers
from .pixels import Pixels
from .reduce import Reduce
from .tasks import Classification, Regression
from .uncertainty import LayerScores, Uncertainty

if TYPE_CHECKING:
    from . import plots

__version__ = "0.1.0"

__all__ = [
    "Calibration",
    "Classification",
    "Comparison",
    "ConditionalFlow",
    "Density",
    "Features",
    "GaussianMixture",
    "JointMixture",
    "LatentDensity",
    "LayerScores",
    "OutputDistribution",
    "Pixels",
    "Reduce",
    "Regression",
    "Uncertainty",
    "compare",
    "layers",
    "metrics",
    "plots",
]


def __getattr__(name: str) -> ModuleType:
    if name == "plots":  # matplotlib takes a second to import, and scoring needs none
        return import_module(".plots", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
