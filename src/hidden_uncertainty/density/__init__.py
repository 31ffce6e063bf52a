"""Densities p(z|ŷ) of activations given what the network predicts."""

from .base import Density
from .flow import ConditionalFlow
from .gaussian.joint import JointMixture
from .gaussian.mixture import GaussianMixture
from .gaussian.moments import Moments, Sums

__all__ = ["ConditionalFlow", "Density", "GaussianMixture", "JointMixture", "Moments", "Sums"]
