"""The marginal p(ŷ) of what a density is conditioned on."""

from .base import Marginal, Support
from .beta_prime import BetaPrime
from .categorical import Categorical
from .choose import by_name, choose
from .continuous import Continuous
from .gaussian import Gaussian
from .histogram import Histogram
from .uniform import Uniform

KINDS: dict[str, type[Marginal]] = {
    kind.__name__: kind for kind in (Categorical, Uniform, Gaussian, BetaPrime, Histogram)
}

__all__ = [
    "KINDS",
    "BetaPrime",
    "Categorical",
    "Continuous",
    "Gaussian",
    "Histogram",
    "Marginal",
    "Support",
    "Uniform",
    "by_name",
    "choose",
]
