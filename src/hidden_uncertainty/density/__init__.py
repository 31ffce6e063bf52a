"""Densities p(z|ŷ) of activations given what the network predicts."""

from .base import Density
from .joint import JointMixture
from .mixture import GaussianMixture

KINDS: dict[str, type[Density]] = {kind.__name__: kind for kind in (GaussianMixture, JointMixture)}

__all__ = ["KINDS", "Density", "GaussianMixture", "JointMixture"]
