"""Epistemic and aleatoric uncertainty for any trained PyTorch network, from the density of its hidden activations.

`LatentDensity(model, layer).fit(train, calibration=unseen)` is a `Detector`, and calling it gives an `Uncertainty`;
`layers(model, example)` lists what can be read. Other methods are in `hidden_uncertainty.baselines`, and a small
network with digits in `hidden_uncertainty.demo`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import baselines, metrics
from .comparison import Comparison, compare
from .density import ConditionalFlow, Density, GaussianMixture, JointMixture
from .deployment import Monitor, write_scores
from .detector import Detector
from .exporting import export
from .extract import Features, Pixels
from .fitting import State
from .latent import LatentDensity, suggest
from .model.layers import layers
from .model.tasks import Classification, MultiLabel, Regression
from .reduce import Reduce
from .scoring.calibration import Calibration, p_value_by_group
from .scoring.distribution import OutputDistribution
from .uncertainty import LayerScores, Uncertainty
from .version import __version__

if TYPE_CHECKING:
    from . import plots
    from .reporting import report

__all__ = [
    "Calibration",
    "Classification",
    "Comparison",
    "ConditionalFlow",
    "Density",
    "Detector",
    "Features",
    "GaussianMixture",
    "JointMixture",
    "LatentDensity",
    "LayerScores",
    "Monitor",
    "MultiLabel",
    "OutputDistribution",
    "Pixels",
    "Reduce",
    "Regression",
    "State",
    "Uncertainty",
    "__version__",
    "baselines",
    "compare",
    "export",
    "layers",
    "metrics",
    "p_value_by_group",
    "plots",
    "report",
    "suggest",
    "write_scores",
]


def __getattr__(name: str) -> Any:
    if name == "plots":  # matplotlib takes a second to import, and scoring needs none
        return import_module(".plots", __name__)
    if name == "report":
        return import_module(".reporting", __name__).report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
