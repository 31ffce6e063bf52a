"""How the methods of table 1 score inputs, and the area under the curve for each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hidden_uncertainty import Features, GaussianMixture, LatentDensity
from hidden_uncertainty.baselines import DeepEnsemble
from hidden_uncertainty.marginal import Categorical
from hidden_uncertainty.metrics import auroc
from hidden_uncertainty.progress import bars
from hidden_uncertainty.scoring.bayes import Posterior, infer

from ..ridge import as_share

# The paper's settings: scikit-learn's mixtures with their defaults.
DENSITY: dict[str, Any] = {"components": 5, "shrinkage": None, "ridge": 1e-6}
BATCH = 10_000  # images per batch
Key = tuple[str, str]  # the unknown set, and its variant
Areas = dict[Key, dict[str, float]]  # by method


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs to score, in the scale of the network's training.

    Args:
        known: test images of the training set.
        labels: of these.
        unknown: images by set and variant.
    """

    known: Tensor
    labels: Tensor
    unknown: Mapping[Key, Tensor]

    def of(self, variant: str) -> Inputs:
        """Only one variant of each set."""
        return Inputs(self.known, self.labels, {key: x for key, x in self.unknown.items() if key[1] == variant})


class Densities:
    """Densities of several layers of several networks; activations are read once for all densities.

    A mixture treats its classes separately where its ridge is a number, so that one fit serves all networks and all
    layers of one width: class c of place p, a layer of a network, is its class p · classes + c. On a GPU this takes
    little longer than one layer.

    Args:
        networks: trained, on one device.
        layers: the paper's name of each layer, by its name in the network.
        images: to fit the densities to.
        inputs: known and unknown.
        batch: images per batch.
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
            # The rounding of TF32 matters in many dimensions. `flags` switches cuDNN off unless it is told not to.
            with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
                return [reader.extract(x.split(batch)) for reader in readers]

        self.train, self.known = read(images), read(inputs.known)
        self.unknown = {key: read(x) for key, x in inputs.unknown.items()}

    def areas(
        self, density: Mapping[str, Any], rows: Tensor | None = None, *, variant: str | None = None
    ) -> list[Areas]:
        """Fit densities, to some of the images or to all: the AUROC of every unknown set, one result per network.

        Args:
            density: options of `GaussianMixture`; its ridge is a number.
            rows: of the images; None takes all.
            variant: of the unknown sets; None takes all.
        """
        areas: list[Areas] = [{} for _ in self.train]
        for i, method, score in self.scores(density, rows):
            known = -score(self.known[i]).log_evidence
            for key, each in self.unknown.items():
                if variant is None or key[1] == variant:
                    areas[i].setdefault(key, {})[method] = auroc(negative=known, positive=-score(each[i]).log_evidence)
        return areas

    def scores(self, density: Mapping[str, Any], rows: Tensor | None = None) -> Iterator[tuple[int, str, Score]]:
        """Fit densities, to some of the images or to all: network, layer and scorer of features for each of them.

        Args:
            density: options of `GaussianMixture`; its ridge is a number.
            rows: of the images; None takes all.
        """
        train = self.train if rows is None else [features[rows] for features in self.train]
        marginals = [Categorical().fit(features.prediction, features.classes) for features in train]
        for mixture, places in self._fit(density, train):
            for place, (i, layer) in enumerate(places):
                yield i, self.layers[layer], Score(mixture, marginals[i], layer, place)

    def _fit(
        self, density: Mapping[str, Any], train: Sequence[Features]
    ) -> Iterator[tuple[GaussianMixture, list[tuple[int, str]]]]:
        """One mixture per width, with its places."""
        widths: dict[int, list[tuple[int, str]]] = {}
        for layer in self.layers:
            for i, features in enumerate(train):
                widths.setdefault(features.z[layer].shape[1], []).append((i, layer))
        for places in widths.values():
            z = torch.cat([train[i].z[layer] for i, layer in places])
            classes = train[0].classes or 0
            y = torch.cat([train[i].prediction + classes * place for place, (i, _) in enumerate(places)])
            ridge = as_share(density.get("ridge", 1e-6), z, y)
            with bars(False), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")  # of classes that did not converge or are rare: counted
                mixture = GaussianMixture(**{**density, "ridge": ridge}).fit(z, y)
            self.warned += len(caught)
            yield mixture, places


class Score(NamedTuple):
    """p(z) and p(ŷ|z) of one place: a layer of a network."""

    mixture: GaussianMixture
    marginal: Categorical
    layer: str
    place: int

    def __call__(self, features: Features) -> Posterior:
        """Score features."""
        z = features.z[self.layer]
        support = self.marginal.support + self.place * len(self.marginal.log_prob)
        return infer(self.mixture.log_prob(z, support), self.marginal.log_weight)


def ensemble_areas(members: Sequence[nn.Module], inputs: Inputs, batch: int = BATCH) -> Areas:
    """The AUROC of every unknown set by the mutual information of an ensemble."""
    ensemble = DeepEnsemble(members, task="classification", progress=False)

    def scores(images: Tensor) -> Tensor:
        return torch.cat([ensemble(part).epistemic for part in images.split(batch)])

    known = scores(inputs.known)
    return {key: {"ensemble": auroc(negative=known, positive=scores(x))} for key, x in inputs.unknown.items()}


@torch.no_grad()
def accuracy(members: Sequence[nn.Module], inputs: Inputs, batch: int = BATCH) -> tuple[float, float]:
    """The accuracy of the first member, and of the mean probability of all."""
    outputs = [[member(part).softmax(1) for part in inputs.known.split(batch)] for member in members]
    each = torch.stack([torch.cat(parts) for parts in outputs])  # (members, n, classes)
    right = [(p.argmax(1) == inputs.labels).float().mean() for p in (each[0], each.mean(0))]
    return float(right[0]), float(right[1])


def work_folder(quick: bool) -> str | None:
    """Where networks are kept between runs: the environment variable HIDDEN_UNCERTAINTY_WORK, if it is set.

    Networks of quick runs are in a folder `quick` below it, because they have the same names.
    """
    folder = os.environ.get("HIDDEN_UNCERTAINTY_WORK")
    return os.path.join(folder, "quick") if folder and quick else folder or None
