"""Gaussians: mixtures per class, and joint with numbers."""

from .joint import JointMixture
from .mixture import GaussianMixture

__all__ = ["GaussianMixture", "JointMixture"]
