"""Densities p(z|ŷ) of activations given what the network predicts."""

from .base import Density
from .flow import ConditionalFlow
from .joint import JointMixture
from .mixture import GaussianMixture

KINDS: dict[str, type[Density]] = {kind.__name__: kind for kind in (GaussianMixture, JointMixture, ConditionalFlow)}

__all__ = ["KINDS", "ConditionalFlow", "Density", "GaussianMixture", "JointMixture"]
