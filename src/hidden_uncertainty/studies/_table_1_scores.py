"""How the methods of table 1 score inputs, and the area under the curve for each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..baselines.ensemble import DeepEnsemble
from ..density import GaussianMixture
from ..estimator import LatentDensity
from ..extract import Features
from ..inference import Posterior, infer
from ..marginal import Categorical
from ..metrics import auroc

# The paper's setting: scikit-learn's mixtures with their defaults.
DENSITY: dict[str, Any] = {"components": 5, "shrinkage": None, "ridge": 1e-6}
BATCH = 10_000  # images that a network meets at once
Key = tuple[str, str]  # what is unknown, and which reading of it
Areas = dict[Key, dict[str, float]]  # by method


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a network is asked about, in the scale that it was trained in.

    Args:
        known: test images of the set it was trained on.
        labels: of these.
        unknown: by what they are, and which reading of it.
    """

    known: Tensor
    labels: Tensor
    unknown: Mapping[Key, Tensor]

    def of(self, variant: str) -> Inputs:
        """Only one reading of each."""
        return Inputs(self.known, self.labels, {key: x for key, x in self.unknown.items() if key[1] == variant})


class Densities:
    """Densities of several layers of several networks, whose activations are read once however many are tried.

    A mixture treats every class on its own, so that one fit does for all networks and all layers of one width: class c
    of place p, a network's layer, is its class p · classes + c. On a GPU that takes little longer than one layer.

    Args:
        networks: trained, on one device.
        layers: what the paper calls each layer, by its name in the network.
        images: that the densities are fitted to.
        inputs: to be told apart.
        batch: images at once.
        max_dim: wider layers are reduced to this many principal components.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        layers: Mapping[str, str],
        images: Tensor,
        inputs: Inputs,
        batch: int = BATCH,
        max_dim: int = 512,
    ) -> None:
        self.layers, self.warned = dict(layers), 0
        readers = [
            LatentDensity(n, list(layers), max_dim=max_dim, task="classification", progress=False) for n in networks
        ]

        def read(x: Tensor) -> list[Features]:
            # Densities of many dimensions see the rounding of TF32. `flags` switches cuDNN off unless told not to.
            with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
                return [reader.extract(x.split(batch)) for reader in readers]

        self.train, self.known = read(images), read(inputs.known)
        self.unknown = {key: read(x) for key, x in inputs.unknown.items()}

    def areas(
        self, density: Mapping[str, Any], rows: Tensor | None = None, *, variant: str | None = None
    ) -> list[Areas]:
        """Fit densities, to some of the images or to all, and tell known from unknown: one result a network.

        Args:
            density: options of `GaussianMixture`.
            rows: of the images.
            variant: only this reading of what is unknown; None takes all.
        """
        areas: list[Areas] = [{} for _ in self.train]
        for i, method, score in self.scores(density, rows):
            known = -score(self.known[i]).log_evidence
            for key, each in self.unknown.items():
                if variant is None or key[1] == variant:
                    areas[i].setdefault(key, {})[method] = auroc(known, -score(each[i]).log_evidence)
        return areas

    def scores(self, density: Mapping[str, Any], rows: Tensor | None = None) -> Iterator[tuple[int, str, Score]]:
        """Fit densities, to some of the images or to all: for every layer of every network, what scores features.

        Args:
            density: options of `GaussianMixture`.
            rows: of the images.
        """
        train = self.train if rows is None else [features[rows] for features in self.train]
        marginals = [Categorical().fit(features.prediction, features.classes) for features in train]
        for mixture, places in self._fit(density, train):
            for place, (i, layer) in enumerate(places):
                yield i, self.layers[layer], Score(mixture, marginals[i], layer, place)

    def _fit(
        self, density: Mapping[str, Any], train: Sequence[Features]
    ) -> Iterator[tuple[GaussianMixture, list[tuple[int, str]]]]:
        """A mixture for all places of one width, and these."""
        widths: dict[int, list[tuple[int, str]]] = {}
        for layer in self.layers:
            for i, features in enumerate(train):
                widths.setdefault(features.z[layer].shape[1], []).append((i, layer))
        for places in widths.values():
            z = torch.cat([train[i].z[layer] for i, layer in places])
            classes = train[0].classes or 0
            y = torch.cat([train[i].prediction + classes * place for place, (i, _) in enumerate(places)])
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")  # classes that did not converge, or came seldom: counted
                mixture = GaussianMixture(**density).fit(z, y, progress=False)
            self.warned += len(caught)
            yield mixture, places


class Score(NamedTuple):
    """p(z) and p(ŷ|z) of one place."""

    mixture: GaussianMixture
    marginal: Categorical
    layer: str
    place: int

    def __call__(self, features: Features) -> Posterior:
        support = self.marginal.support + self.place * len(self.marginal.log_prob)
        log_likelihood = self.mixture.log_prob(features.z[self.layer], support)
        return infer(log_likelihood, self.marginal.log_weight)


def ensemble_areas(members: Sequence[nn.Module], inputs: Inputs, batch: int = BATCH) -> Areas:
    """Tell known from unknown by the mutual information of an ensemble."""
    ensemble = DeepEnsemble(members, task="classification", progress=False)

    def scores(images: Tensor) -> Tensor:
        return torch.cat([ensemble(part).epistemic for part in images.split(batch)])

    known = scores(inputs.known)
    return {key: {"ensemble": auroc(known, scores(x))} for key, x in inputs.unknown.items()}


@torch.no_grad()
def accuracy(members: Sequence[nn.Module], inputs: Inputs, batch: int = BATCH) -> tuple[float, float]:
    """Of the first member, and of the mean probability of all."""
    outputs = [[member(part).softmax(1) for part in inputs.known.split(batch)] for member in members]
    each = torch.stack([torch.cat(parts) for parts in outputs])  # (members, n, classes)
    right = [(p.argmax(1) == inputs.labels).float().mean() for p in (each[0], each.mean(0))]
    return float(right[0]), float(right[1])


def work_folder(quick: bool) -> str | None:
    """Where networks are kept between runs: the environment variable HIDDEN_UNCERTAINTY_WORK, if it is set.

    Those of rough versions lie in a folder `quick` below it, for they have the same names.
    """
    folder = os.environ.get("HIDDEN_UNCERTAINTY_WORK")
    return os.path.join(folder, "quick") if folder and quick else folder or None
