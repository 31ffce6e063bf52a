"""What uncertainty costs on top of the network's own forward pass."""

from __future__ import annotations

import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity

from .data import COMPONENTS, clusters
from .others import methods
from .resnet import resnet18
from .timing import alternate

LAYER = "pool"


class Inside:
    """How long the latest forward pass of a network took, and all together; what hooks within it did counts."""

    def __init__(self, model: nn.Module, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = self.total = self._began = 0.0
        self._clock = clock
        self._hooks = [model.register_forward_pre_hook(self._begin), model.register_forward_hook(self._end)]

    def remove(self) -> None:
        """Leave the network as it was."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *args: Any) -> None:
        self._began = self._clock()

    def _end(self, *args: Any) -> None:
        self.seconds = self._clock() - self._began
        self.total += self.seconds


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

        inside = Inside(self.model)
        within: dict[str, list[float]] = {name: [] for name, _ in self._detectors()}

        def call(name: str, detector: LatentDensity) -> None:
            detector(images)
            within[name].append(inside.seconds)

        sides: dict[str, Callable[[], Any]] = {"plain": plain}
        sides |= {name: partial(call, name, detector) for name, detector in self._detectors()}
        alternate(sides, 1)
        seconds = alternate(sides, rounds)
        inside.remove()
        forward = statistics.median(seconds["plain"])
        entries = []
        for name, detector in self._detectors():
            extra = [100 * (ours - own) / own for ours, own in zip(seconds[name], seconds["plain"], strict=True)]
            low, middle, high = statistics.quantiles(extra, n=4)
            outside = [ours - own for ours, own in zip(seconds[name], within[name][1:], strict=True)]
            entries.append(
                {
                    "value": middle,
                    "unit": "%",
                    "quartiles": [low, high],
                    "rounds": rounds,
                    "seconds": statistics.median(seconds[name]),
                    "forward_seconds": forward,
                    "outside_percent": 100 * statistics.median(outside) / forward,
                    **{"batch": batch, "dim": detector.extract([images]).z[LAYER].shape[1]},
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
