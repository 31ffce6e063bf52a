"""What uncertainty costs on top of the network's own forward pass."""

from __future__ import annotations

import dataclasses
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hidden_uncertainty import GaussianMixture, LatentDensity

from .data import COMPONENTS, clusters
from .others import methods
from .resnet import resnet18
from .timing import alternate

LAYER = "pool"


class Head:
    """A ResNet18, and a detector at its last hidden layer with and without PCA, fitted to drawn features."""

    def __init__(self, width: int, reduced: int, rows: int) -> None:
        self.model = resnet18(width)
        self.random = torch.Generator().manual_seed(0)
        self.reduced = reduced
        self.full = self._detector(None, rows)
        self.small = self._detector(reduced, rows)
        self.others = methods(self.model, rows)

    def measure(self, batch: int, rounds: int, rounds_of_others: int) -> list[dict[str, Any]]:
        """Two entries, without and with PCA: the extra time of a call, in percent of the plain forward pass."""
        images = torch.randn(batch, 3, 32, 32, generator=self.random)

        def plain() -> None:
            with torch.no_grad():
                self.model(images)

        features = {name: detector.extract([images]) for name, detector in self._detectors()}
        sides: dict[str, Callable[[], Any]] = {"plain": plain}
        for name, detector in self._detectors():
            sides[name] = partial(detector, images)
            sides[f"{name}-head"] = partial(detector.predict_features, features[name])
        alternate(sides, 1)
        seconds = alternate(sides, rounds)
        forward = statistics.median(seconds["plain"])
        entries = []
        for name, _ in self._detectors():
            extra = [100 * (ours - own) / own for ours, own in zip(seconds[name], seconds["plain"], strict=True)]
            low, middle, high = statistics.quantiles(extra, n=4)
            entries.append(
                {
                    "value": middle,
                    "unit": "%",
                    "quartiles": [low, high],
                    "rounds": rounds,
                    "seconds": statistics.median(seconds[name]),
                    "forward_seconds": forward,
                    "density_percent": 100 * statistics.median(seconds[f"{name}-head"]) / forward,
                    **{"batch": batch, "dim": features[name].z[LAYER].shape[1]},
                }
            )
        entries[0]["others"] = self._measure_others(images, plain, rounds_of_others)
        return entries

    def _measure_others(self, images: Tensor, plain: Callable[[], None], rounds: int) -> dict[str, Any]:
        """Extra time of other methods, as a share of the forward pass, and the seconds of a call."""
        sides = {name: partial(method, images) for name, method in self.others.items()}
        seconds = alternate({"plain": plain, **sides}, rounds)
        forward = statistics.median(seconds.pop("plain"))
        return {
            name: {"extra": statistics.median(values) / forward - 1, "seconds": statistics.median(values)}
            for name, values in seconds.items()
        }

    def _detectors(self) -> list[tuple[str, LatentDensity]]:
        return [("full", self.full), ("small", self.small)]

    def _detector(self, max_dim: int | None, rows: int) -> LatentDensity:
        detector = LatentDensity(
            self.model,
            LAYER,
            GaussianMixture(COMPONENTS, max_iter=1),
            max_dim=max_dim,
            task="classification",
            progress=False,
        )
        images = torch.randn(self.reduced + 28, 3, 32, 32, generator=self.random)
        features = detector.extract(images.split(32))
        z = features.z[LAYER]
        drawn, y = clusters(rows, z.shape[1])
        drawn = drawn * z.std() + z.mean(0)
        features = dataclasses.replace(features, z={LAYER: drawn}, residual={LAYER: None}, prediction=y, label=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged: any parameters will do
            return detector.fit_features(features, calibration=features[:1000])
