"""Densities p(z|ŷ) of activations given what the network predicts."""

from .base import Density
from .mixture import GaussianMixture

KINDS: dict[str, type[Density]] = {"GaussianMixture": GaussianMixture}

__all__ = ["KINDS", "Density", "GaussianMixture"]
