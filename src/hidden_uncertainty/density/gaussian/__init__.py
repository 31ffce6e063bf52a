"""Gaussians: mixtures per class, joint with numbers, and pooled."""

from .joint import JointMixture
from .mixture import GaussianMixture
from .pooled import PooledGaussians

__all__ = ["GaussianMixture", "JointMixture", "PooledGaussians"]
