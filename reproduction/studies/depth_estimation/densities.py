"""Densities of patches of the depth network: the paper's flow, one that trains well, mixtures, and given labels."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch

from hidden_uncertainty import ConditionalFlow, Density, Features, JointMixture, LatentDensity, Pixels
from hidden_uncertainty.extract import Population
from hidden_uncertainty.marginal import BetaPrime
from hidden_uncertainty.model.tasks import Condition

from ...datasets.dense import Dense
from ...nets.monodepth import MonoDepth

ARCHITECTURE: dict[str, Any] = {"form": "realnvp", "blocks": 3, "hidden": (100, 100)}
# The paper's training. It gives no last epoch: ours is the hundredth. Any increase of the likelihood counts.
PAPER: dict[str, Any] = {
    "learning_rate": 1e-6,
    "weight_decay": 1e-5,
    "batch_size": 128,
    "patience": 20,
    "gain": 0.0,
    "max_epochs": 100,
}
# Ours is one of these, chosen by the likelihood of patches of training images that none was fitted to.
OWN: dict[str, dict[str, Any]] = {
    "rate 0.001, decay 0.3": {},
    "rate 0.001, decay 0.00001, batch 128": {"weight_decay": 1e-5, "batch_size": 128},
    "rate 0.0005, decay 0.3, batch 128, patience 10": {
        "learning_rate": 5e-4,
        "batch_size": 128,
        "patience": 10,
        "gain": 0.001,
    },
}
PATCH = 3
LAYER = MonoDepth.latent


@dataclass(frozen=True)
class Asked:
    """Sizes of the densities.

    Args:
        rows: patches to fit to.
        compared: further patches, to compare densities.
        points: of the support.
        epochs: most epochs of flows; None is their default.
    """

    rows: int = 12_800
    compared: int = 2_560
    points: int = 154
    epochs: int | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """The densities of one network.

    Args:
        detectors: by method.
        likelihoods: mean log p(z | y) and log p(z) of the further patches, by method, in nats.
        tried: log p(z | ŷ) of all candidates for our own flow.
        seconds: of each fit.
        chosen: the best candidate.
        features: patches of training images.
        warned: warnings of the fits.
    """

    detectors: dict[str, LatentDensity]
    likelihoods: dict[str, tuple[float, float]]
    tried: dict[str, float]
    seconds: dict[str, float]
    chosen: str
    features: Features
    warned: set[str]


class Fit:
    """Fits densities to one network.

    Args:
        network: trained, on its device.
        rooms: its training images.
        asked: sizes.
        seed: of the densities and of the random pixels.
    """

    def __init__(self, network: MonoDepth, rooms: Dense, asked: Asked, *, seed: int) -> None:
        self.network, self.asked, self.seed = network, asked, seed
        total = asked.rows + asked.compared
        self.pixels = Pixels(
            resolution="latent", patch=PATCH, per_class=math.ceil(total / len(rooms)), reservoir=total, ignore=None
        )
        drawn = self._detector(JointMixture(), "prediction", None).extract(rooms.batches(32))
        self.features, self.held = drawn[: asked.rows], drawn[asked.rows :]
        self.detectors: dict[str, LatentDensity] = {}
        self.seconds: dict[str, float] = {}
        self.warned: set[str] = set()

    def all(self) -> Fitted:
        """Fit every density; our own flow is the candidate with the highest likelihood of the further patches."""
        epochs = {} if self.asked.epochs is None else {"max_epochs": self.asked.epochs}
        self._fit("flow-paper", ConditionalFlow(**ARCHITECTURE, **{**PAPER, **epochs}, seed=self.seed))
        for name, options in OWN.items():
            self._fit(name, ConditionalFlow(**{**ARCHITECTURE, **options, **epochs}, seed=self.seed))
        tried = {name: self._given(name, "prediction") for name in OWN}
        chosen = max(tried, key=tried.__getitem__)
        for name in OWN:
            detector, seconds = self.detectors.pop(name), self.seconds.pop(name)
            if name == chosen:
                self.detectors["flow"], self.seconds["flow"] = detector, seconds
        self._fit("joint-mixture", JointMixture(seed=self.seed))
        flow = ConditionalFlow(**{**ARCHITECTURE, **OWN[chosen], **epochs}, seed=self.seed)
        self._fit("flow-label", flow, "label")
        self._fit("joint-mixture-label", JointMixture(seed=self.seed), "label")
        likelihoods = {
            name: (self._given(name, detector.condition), -float(detector.predict_features(self.held).epistemic.mean()))
            for name, detector in self.detectors.items()
        }
        return Fitted(self.detectors, likelihoods, tried, self.seconds, chosen, self.features, self.warned)

    def _detector(self, density: Density, condition: Condition, marginal: BetaPrime | None) -> LatentDensity:
        return LatentDensity(
            self.network,
            LAYER,
            density,
            task="regression",
            condition=condition,
            marginal=marginal or "beta-prime",
            pixels=self.pixels,
            seed=self.seed,
        )

    def _fit(self, name: str, density: Density, condition: Condition = "prediction") -> None:
        features = self.features
        if condition == "label":
            assert features.label is not None
            features = replace(features, population=Population(features.label, condition))
        assert features.population is not None
        values = features.population.values
        marginal = BetaPrime(points=self.asked.points, low=float(values.min()), high=float(values.max()))
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.detectors[name] = self._detector(density, condition, marginal).fit_features(features)
        self.warned |= {f"{name}: {warning.message}" for warning in caught}
        if values.is_cuda:
            torch.cuda.synchronize(values.device)
        self.seconds[name] = time.perf_counter() - start

    def _given(self, name: str, condition: Condition) -> float:
        """Mean log p(z | y) of the further patches."""
        density = self.detectors[name].fitted_densities[LAYER]
        y = self.held.prediction if condition == "prediction" else self.held.label
        assert y is not None
        parts = [
            density.log_prob(z, given[:, None, None])[:, 0]
            for z, given in zip(self.held.z[LAYER].split(4096), y.split(4096), strict=True)
        ]
        return float(torch.cat(parts).mean())
