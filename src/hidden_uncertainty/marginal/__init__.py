"""The marginal p(ŷ) of what a density is conditioned on."""

from .base import Marginal, Support
from .categorical import Categorical, LabelSets
from .continuous import Continuous
from .scalars import BetaPrime, Histogram, by_name, choose
from .vectors import Gaussian, Uniform

KINDS: dict[str, type[Marginal]] = {
    kind.__name__: kind for kind in (Categorical, LabelSets, Uniform, Gaussian, BetaPrime, Histogram)
}

__all__ = [
    "KINDS",
    "BetaPrime",
    "Categorical",
    "Continuous",
    "Gaussian",
    "Histogram",
    "LabelSets",
    "Marginal",
    "Support",
    "Uniform",
    "by_name",
    "choose",
]
