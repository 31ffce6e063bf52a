"""Gaussians: mixtures per class, joint with numbers, and pooled."""

from .joint import JointMixture
from .mixture import GaussianMixture, PooledGaussians

__all__ = ["GaussianMixture", "JointMixture", "PooledGaussians"]
