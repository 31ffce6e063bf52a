"""Densities p(z|ŷ) of activations given what the network predicts."""

from .base import Density
from .flow.flow import ConditionalFlow
from .gaussian.joint import JointMixture
from .gaussian.mixture import GaussianMixture
from .gaussian.pooled import PooledGaussians

KINDS: dict[str, type[Density]] = {kind.__name__: kind for kind in (GaussianMixture, JointMixture, ConditionalFlow)}

__all__ = ["KINDS", "ConditionalFlow", "Density", "GaussianMixture", "JointMixture", "PooledGaussians"]
