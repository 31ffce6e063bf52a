"""Every method of the segmentation study, fitted once, as maps of scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import baselines
from ..baselines.features import FeatureBaseline
from ..batches import Batch
from ..density import GaussianMixture
from ..estimator import LatentDensity
from ..extract import Features
from ..head import Head
from ..nets.deeplab import DeepLab
from ..pixels import Pixels
from ..tasks import Prediction
from ..uncertainty import LayerScores
from ._dense_tools import PerPixel, collected
from ._segmentation_data import FITTED, UNDERFIT, Plan
from .table_1 import DEFAULT

SAMPLES = 10  # that MC dropout draws
NEIGHBOURS = 10
LAYER = DeepLab.latent

SOFTMAX, EPISTEMIC, ALEATORIC, IN_LOG = "softmax-entropy", "epistemic", "aleatoric", "aleatoric-log"
INFORMATION, PREDICTIVE = "mc-dropout", "mc-dropout-entropy"
MAHALANOBIS, NEAREST = "mahalanobis", "neighbours"
FINE, UNDER = "on the output's grid", "of the underfit density"
NOT_UNDER, UNDER_LOG = "not underfit", "underfit, in log"

Key = tuple[str, str]  # method and variant


class Maps(NamedTuple):
    """What methods say about some images."""

    prediction: Tensor  # (n, H, W), the network's
    sampled: Tensor  # (n, H, W), of MC dropout, which is another network
    scores: Mapping[Key, Tensor]  # (n, h, w), higher when more uncertain

    def predicted_by(self, method: str) -> Tensor:
        """The prediction that a method is about."""
        return self.sampled if method in (INFORMATION, PREDICTIVE) else self.prediction


class Methods:
    """All methods, fitted to pixels of training images that are drawn once.

    Args:
        network: trained.
        dropping: another one, trained with dropout.
        images: that it was trained on, on its device.
        labels: of these, which tell the pixels to ignore.
        plan: how many pixels.
        seed: of drawing.
        progress: show bars; None shows them on a terminal.
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
        progress: bool | None = None,
    ) -> None:
        self.network, self.warnings = network, list[str]()
        options: dict[str, Any] = {"task": "classification", "progress": progress, "seed": seed}
        drawn = {"per_class": plan.per_class, "reservoir": plan.reservoir}
        self.coarse, self.fine = (
            LatentDensity(network, LAYER, GaussianMixture(**density), pixels=Pixels(grid, **drawn), **options)  # type: ignore[arg-type]
            for grid, density in (("latent", FITTED), ("output", UNDERFIT))
        )
        features = self.fine.extract(list(zip(images.split(16), labels.split(16), strict=True)))
        self.drawn = len(features)
        with collected(self.warnings):  # of classes that come seldom, or did not converge
            self.fitted = _head(self.coarse.fit_features(features))
            self.underfit = _head(self.fine.fit_features(features))
        self.mahalanobis = baselines.Mahalanobis(network, LAYER, task="classification").fit_features(features)
        self.nearest = baselines.NearestNeighbours(network, LAYER, k=NEIGHBOURS, task="classification")
        self.nearest.fit_features(_first(features, plan.references))
        quiet: dict[str, Any] = {"task": "classification", "progress": False}
        self.softmax = baselines.SoftmaxEntropy(PerPixel(network), **quiet)
        # One sample a pass: rows are pixels here, not images to be repeated.
        self.dropout = baselines.MCDropout(PerPixel(dropping), SAMPLES, seed=seed, max_rows=1, **quiet)

    def __call__(self, images: Tensor) -> Maps:
        """All scores of images (n, 3, H, W); the network runs once a grid and once for its logits."""
        shape = (len(images), images.shape[2], images.shape[3])
        softmax, sampled = self.softmax(images), self.dropout(images)
        assert softmax.aleatoric is not None and sampled.aleatoric is not None
        coarse, fine = self._reading(self.coarse, images), self._reading(self.fine, images)
        near, full, under = (
            head.score(grid)[LAYER]
            for head, grid in ((self.fitted, coarse), (self.fitted, fine), (self.underfit, fine))
        )
        scores = {
            (SOFTMAX, DEFAULT): softmax.aleatoric.view(shape),
            (INFORMATION, DEFAULT): sampled.epistemic.view(shape),
            (PREDICTIVE, DEFAULT): (sampled.epistemic + sampled.aleatoric).view(shape),
            (EPISTEMIC, DEFAULT): near.epistemic,
            (ALEATORIC, DEFAULT): _present(under.aleatoric),
            (IN_LOG, DEFAULT): _present(full.log_aleatoric),
            (MAHALANOBIS, DEFAULT): self._rows(self.mahalanobis, coarse),
            (NEAREST, DEFAULT): self._rows(self.nearest, coarse),
            (EPISTEMIC, FINE): full.epistemic,
            (EPISTEMIC, UNDER): under.epistemic,
            (ALEATORIC, NOT_UNDER): _present(full.aleatoric),
            (IN_LOG, UNDER_LOG): _present(under.log_aleatoric),
        }
        return Maps(softmax.prediction.view(shape), sampled.prediction.view(shape), scores)

    def calls(self) -> dict[str, Callable[[Tensor], Any]]:
        """Each method alone, as it would be used, its own passes of the network included; to be timed."""
        return {
            "network": self._forward,
            SOFTMAX: self.softmax,
            INFORMATION: self.dropout,
            EPISTEMIC: self.coarse,
            ALEATORIC: self.fine,
            IN_LOG: lambda images: self._scores(self.fitted, self._reading(self.fine, images)),
            MAHALANOBIS: lambda images: self._rows(self.mahalanobis, self._reading(self.coarse, images)),
            NEAREST: lambda images: self._rows(self.nearest, self._reading(self.coarse, images)),
        }

    @torch.no_grad()
    def _forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def _reading(self, detector: LatentDensity, images: Tensor) -> Any:
        return detector.extractor.reading(Batch((images,), {}, None), self.fitted.reductions)

    def _scores(self, head: Head, reading: Any) -> LayerScores:
        return head.score(reading)[LAYER]

    def _rows(self, method: FeatureBaseline, reading: Any) -> Tensor:
        """Scores of a method that takes rows, as maps."""
        parts = [
            method.result(Prediction(row.prediction, None), {LAYER: row.z}).epistemic for row in reading.rows(LAYER)
        ]
        return torch.cat(parts).view(reading.prediction.value.shape)


def _head(detector: LatentDensity) -> Head:
    assert detector.head is not None
    return detector.head


def _first(features: Features, count: int) -> Features:
    """So many of the pixels, which are in random order."""
    return features[: min(count, len(features))]


def _present(scores: Tensor | None) -> Tensor:
    assert scores is not None  # classes have entropies
    return scores
