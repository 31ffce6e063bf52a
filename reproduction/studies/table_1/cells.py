"""From trained networks to the cells of table 1, for every reading of what the paper leaves open."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...results import summarise
from ...training.many import Trained
from ...training.watch import Criterion, Keep
from .rows import DEFAULT, Found
from .scores import BATCH, DENSITY, Areas, Densities, Inputs, accuracy, ensemble_areas

# Standard deviation of noise, its unit (pixels in [0, 1], or their deviation), and whether the result is clipped.
Noise = tuple[float, Literal["pixel", "deviation"], bool]


@dataclass(frozen=True)
class Reading:
    """What the paper leaves open about everything after training.

    Args:
        criterion: of early stopping.
        keep: weights of the last epoch, when patience has run out, or of the best.
        part: fit densities to all training images, or to those without the validation images.
        density: options of the mixtures.
    """

    criterion: Criterion = "loss"
    keep: Keep = "last"
    part: Literal["all", "trained"] = "all"
    density: Mapping[str, Any] = field(default_factory=lambda: DENSITY)


@dataclass(frozen=True, eq=False)
class Asked:
    """What networks of one group are measured with, in the scale of their training.

    Args:
        train: the name of the set.
        images: to fit densities to.
        rows: of these, the ones that the weights were fitted to.
        inputs: known and unknown.
        layers: the paper's name of each layer, by its name in the network.
        wrap: adds further layers behind the network, such as a softmax.
        batch: images per batch.
        max_dim: wider layers are reduced to this many principal components.
    """

    train: str
    images: Tensor
    rows: Tensor
    inputs: Inputs
    layers: Mapping[str, str]
    wrap: Callable[[nn.Module], nn.Module] = lambda network: network
    batch: int = BATCH
    max_dim: int = 512


class Table:
    """The AUROC of every cell.

    Args:
        members: of an ensemble.
        repetitions: networks whose layers are read.
        device: of the networks.
        aliases: methods that are a variant of a cell: `{method: (variant, method of the cell)}`.
    """

    def __init__(
        self,
        members: int,
        repetitions: int,
        device: torch.device,
        aliases: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self.members, self.repetitions, self.device, self.aliases = members, repetitions, device, aliases or {}
        self.found: Found = {}
        self.right: dict[tuple[str, str, str], list[float]] = {}
        self.warned = 0

    def read(self, trained: Trained, readings: Mapping[str, Reading], asked: Asked) -> None:
        """Add the cells of one group of networks, for these readings."""
        weights: dict[tuple[Criterion, Keep], dict[str, Reading]] = {}
        for name, reading in readings.items():
            weights.setdefault((reading.criterion, reading.keep), {})[name] = reading
        for (criterion, keep), same in weights.items():
            inputs = asked.inputs if DEFAULT in same else asked.inputs.of(DEFAULT)
            networks = trained.networks(criterion, keep, self.device)
            ensembles = [networks[i : i + self.members] for i in range(0, len(networks), self.members)]
            # The members of a single ensemble are the repetitions.
            first = [e[0] for e in ensembles] if len(ensembles) > 1 else networks[: self.repetitions]
            wrapped = [asked.wrap(network) for network in first]
            densities = Densities(wrapped, asked.layers, asked.images, inputs, asked.batch, asked.max_dim)
            for name, reading in same.items():
                for areas in densities.areas(reading.density, asked.rows if reading.part == "trained" else None):
                    self._add(name, asked.train, areas)
            self.warned += densities.warned
            for name, reading in same.items():
                if reading.part != "all" or reading.density is not DENSITY:
                    continue  # another density of the same networks changes nothing for ensembles
                for ensemble in ensembles:
                    self._add(name, asked.train, ensemble_areas(ensemble, inputs, asked.batch))
                    right = accuracy(ensemble, inputs, asked.batch)
                    for method, value in zip(("network", "ensemble"), right, strict=True):
                        self.right.setdefault((name, asked.train, method), []).append(value)

    def _add(self, name: str, train: str, areas: Areas) -> None:
        for (ood, reading), methods in areas.items():
            for method, area in methods.items():
                variant, cell = name if reading == DEFAULT else reading, method
                if method in self.aliases:
                    other, cell = self.aliases[method]
                    if variant != DEFAULT:
                        continue  # one change at a time
                    variant = other
                self.found.setdefault((variant, train, ood, cell), []).append(area)

    def accuracies(self) -> list[dict[str, Any]]:
        """One row per set, of networks and of ensembles."""
        return [
            {**summarise(values, train=train, ood=None, method=method, metric="accuracy"), "variant": variant}
            for (variant, train, method), values in self.right.items()
        ]


class Clock:
    """The seconds of each part."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End a part."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.laps[name] = round(now - self.last, 1)
        self.last = now

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start
