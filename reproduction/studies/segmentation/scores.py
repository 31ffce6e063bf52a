"""All methods of the segmentation study, fitted once, and their maps of scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels
from hidden_uncertainty.baselines import Mahalanobis, MCDropout, NearestNeighbours, SoftmaxEntropy

from ...nets.deeplab import DeepLab
from ..dense_tools import collected
from ..ridge import as_share
from ..table_1.rows import DEFAULT
from .data import FITTED, UNDERFIT, Plan

SAMPLES = 10  # of MC dropout
NEIGHBOURS = 10
LAYER = DeepLab.latent

SOFTMAX, EPISTEMIC, ALEATORIC, IN_LOG = "softmax-entropy", "epistemic", "aleatoric", "aleatoric-log"
INFORMATION, PREDICTIVE = "mc-dropout", "mc-dropout-entropy"
MAHALANOBIS, NEAREST = "mahalanobis", "neighbours"
FINE, UNDER = "on the output's grid", "of the underfit density"
NOT_UNDER, UNDER_LOG = "not underfit", "underfit, in log"

Key = tuple[str, str]  # method and variant


class Maps(NamedTuple):
    """Predictions and scores of some images."""

    prediction: Tensor  # (n, H, W), the network's
    sampled: Tensor  # (n, H, W), MC dropout's, which is another network
    scores: Mapping[Key, Tensor]  # (n, h, w), higher when more uncertain

    def predicted_by(self, method: str) -> Tensor:
        """The prediction that belongs to a method."""
        return self.sampled if method in (INFORMATION, PREDICTIVE) else self.prediction


class Methods:
    """All methods, fitted to the same random pixels of training images.

    Args:
        network: trained.
        dropping: another one, trained with dropout.
        images: of its training, on its device.
        labels: of these, with the pixels to ignore.
        plan: how many pixels.
        seed: of the pixels.
    """

    def __init__(
        self,
        network: nn.Module,
        dropping: nn.Module,
        images: Tensor,
        labels: Tensor,
        plan: Plan,
        *,
        seed: int = 0,
    ) -> None:
        self.network, self.warnings = network, list[str]()
        output = Pixels(per_class=plan.per_class, reservoir=plan.reservoir)
        latent = replace(output, resolution="latent")
        options: dict[str, Any] = {"task": "classification", "seed": seed}
        reader = LatentDensity(network, LAYER, pixels=output, **options)
        features = reader.extract(list(zip(images.split(16), labels.split(16), strict=True)))
        self.drawn = len(features)

        def mixture(ridge: float, **density: Any) -> GaussianMixture:
            return GaussianMixture(ridge=as_share(ridge, features.z[LAYER], features.prediction), **density)

        self.coarse, self.fine, self.underfit = (
            LatentDensity(network, LAYER, mixture(**density), pixels=pixels, **options)
            for pixels, density in ((latent, FITTED), (output, FITTED), (output, UNDERFIT))
        )
        with collected(self.warnings):  # of classes that are rare or did not converge
            self.coarse.fit_features(features)
            self.underfit.fit_features(features)
        with collected([]):  # the same again
            self.fine.fit_features(features)
        self.mahalanobis = Mahalanobis(network, LAYER, pixels=latent, **options).fit_features(features)
        self.nearest = NearestNeighbours(network, LAYER, k=NEIGHBOURS, pixels=latent, **options)
        self.nearest.fit_features(features[: plan.references])  # which are in random order
        self.softmax = SoftmaxEntropy(network, task="classification", pixels=Pixels())
        # One sample per pass: all at once would take ten times the memory.
        self.dropout = MCDropout(dropping, SAMPLES, pixels=Pixels(), **options)

    def __call__(self, images: Tensor) -> Maps:
        """All scores of images (n, 3, H, W); each method runs the network by itself."""
        softmax, sampled = self.softmax(images), self.dropout(images)
        near, full, under = self.coarse(images), self.fine(images), self.underfit(images)
        scores = {
            (SOFTMAX, DEFAULT): softmax.epistemic,
            (INFORMATION, DEFAULT): sampled.epistemic,
            (PREDICTIVE, DEFAULT): sampled.epistemic + _present(sampled.aleatoric),
            (EPISTEMIC, DEFAULT): near.epistemic,
            (ALEATORIC, DEFAULT): _present(under.aleatoric),
            (IN_LOG, DEFAULT): _present(full.log_aleatoric),
            (MAHALANOBIS, DEFAULT): self.mahalanobis(images).epistemic,
            (NEAREST, DEFAULT): self.nearest(images).epistemic,
            (EPISTEMIC, FINE): full.epistemic,
            (EPISTEMIC, UNDER): under.epistemic,
            (ALEATORIC, NOT_UNDER): _present(full.aleatoric),
            (IN_LOG, UNDER_LOG): _present(under.log_aleatoric),
        }
        return Maps(softmax.prediction, sampled.prediction, scores)

    def calls(self) -> dict[str, Callable[[Tensor], Any]]:
        """Each method alone, to be timed."""
        return {
            "network": self._forward,
            SOFTMAX: self.softmax,
            INFORMATION: self.dropout,
            EPISTEMIC: self.coarse,
            ALEATORIC: self.underfit,
            IN_LOG: self.fine,
            MAHALANOBIS: self.mahalanobis,
            NEAREST: self.nearest,
        }

    @torch.no_grad()
    def _forward(self, images: Tensor) -> Tensor:
        return self.network(images)


def _present(scores: Tensor | None) -> Tensor:
    assert scores is not None  # classes have entropies
    return scores
