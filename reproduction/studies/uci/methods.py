"""The networks of the UCI study, the methods on them, and their scores of the test rows of a split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hidden_uncertainty import Calibration, ConditionalFlow, Density, LatentDensity
from hidden_uncertainty.baselines import DeepEnsemble, MCDropout
from hidden_uncertainty.model.tasks import Condition, Regression

from ...datasets import Points, Scale, Table
from ...rivals.process import GaussianProcess
from ...training import MLP, train_mlps

MEMBERS = 5
DROPOUT = 0.1
SAMPLES = 50  # of MC dropout
HIDDEN = (50, 50)
MOST_ROWS = 1200  # for a Gaussian process and a flow, because of the time they take
COVERAGE = 0.9
LOWEST = 1e-6  # of a variance, as in training
TASK = Regression(spread="columns", spread_is="log_variance")


class Parts(NamedTuple):
    """One split of a table, standardised by the rows that networks and densities are fitted to."""

    fit: Points
    validation: Points
    calibration: Points
    test: Points
    unit: float  # of the targets, in the table's own units

    @classmethod
    def of(cls, table: Table) -> Parts:
        """70 %, 10 % and 20 % of the table's training part, with the split's number as seed; and its test part."""
        calibration, rest = table.train.divide(0.2, seed=table.split)
        validation, fit = rest.divide(1 / 8, seed=table.split)
        x, y = Scale.of(fit.x.double()), Scale.of(fit.y.double())

        def standard(points: Points) -> Points:
            return Points(x.apply(points.x), y.apply(points.y))

        unit = float(table.scale_y.deviation * y.deviation)
        return cls(standard(fit), standard(validation), standard(calibration), standard(table.test), unit)


class Scored(NamedTuple):
    """Scores of test rows, in standardised units; None where a method has none."""

    prediction: Tensor
    low: Tensor
    high: Tensor
    aleatoric: Tensor | None = None
    epistemic: Tensor | None = None


class Networks(NamedTuple):
    """Networks of one split: an ensemble, with densities for its first member, and a network with dropout."""

    members: list[MLP]
    dropped: MLP


def train(splits: Sequence[Parts], seeds: Sequence[int], *, epochs: int) -> list[Networks]:
    """Train the networks of all splits of a table together; each predicts a mean and a variance."""
    members = _train(splits, [[1000 * seed + i for i in range(MEMBERS)] for seed in seeds], 0.0, epochs)
    dropped = _train(splits, [[1000 * seed + MEMBERS] for seed in seeds], DROPOUT, epochs)
    return [Networks(ensemble, single) for ensemble, (single,) in zip(members, dropped, strict=True)]


def options(rows: int, epochs: int) -> dict[str, Any]:
    """Options of training for this many rows, chosen by the validation parts of the tables."""
    return {
        "epochs": epochs,
        "patience": max(1, epochs // 10),
        "batch_size": 32 if rows < 2000 else 128,
        "learning_rate": 3e-3,
    }


def _train(splits: Sequence[Parts], seeds: Sequence[Sequence[int]], dropout: float, epochs: int) -> list[list[MLP]]:
    """Networks of one architecture, one per seed of each split."""
    inputs = splits[0].fit.x.shape[1]
    networks = [[MLP(inputs, HIDDEN, outputs=2, dropout=dropout, seed=seed) for seed in own] for own in seeds]
    many = len(seeds[0])
    train_mlps(
        [network for own in networks for network in own],
        *_stack((parts.fit for parts in splits), many),
        validation=_stack((parts.validation for parts in splits), many),
        loss="gaussian",
        **options(len(splits[0].fit), epochs),
    )
    return networks


def _stack(points: Iterable[Points], many: int) -> tuple[Tensor, Tensor]:
    """The data of every network: each split repeated for all of its networks."""
    some = list(points)
    x, y = (torch.stack([getattr(one, name) for one in some]).repeat_interleave(many, 0) for name in "xy")
    return x, y


def score(parts: Parts, networks: Networks, seed: int, *, quick: bool = False) -> dict[str, Scored]:
    """Every method on one split."""
    network = networks.members[0]
    few = len(parts.fit) <= MOST_ROWS
    found = {
        "latent-prediction": _latent(parts, network, None, "prediction"),
        "latent-label": _latent(parts, network, None, "label"),
        "outputs-label": _latent(parts, network, None, "label", "output"),
    }
    if few:
        flow = ConditionalFlow(max_epochs=20 if quick else None, seed=seed)
        found["flow-label"] = _latent(parts, network, flow, "label")
    found |= _network(parts, network)
    methods: dict[str, Any] = {
        "ensemble": DeepEnsemble(networks.members, task=TASK),
        "mc-dropout": MCDropout(networks.dropped, SAMPLES, seed=seed, task=TASK),
    }
    if few:
        methods["gaussian-process"] = GaussianProcess(seed=seed).fit(parts.fit.batches())
    for name, method in methods.items():
        unseen, test = (method.predict(points.batches()) for points in (parts.calibration, parts.test))
        scales = [(u.aleatoric + u.epistemic).clamp(min=LOWEST).sqrt() for u in (unseen, test)]
        low, high = _interval(unseen.prediction, test.prediction, scales, parts)
        # A process has constant noise, which does not rank inputs.
        aleatoric = None if name == "gaussian-process" else test.aleatoric
        found[name] = Scored(test.prediction, low, high, aleatoric, test.epistemic)
    return found


def _latent(
    parts: Parts, network: MLP, density: Density | None, condition: Condition, layer: str | None = None
) -> Scored:
    """A density of a layer, by default of the penultimate one."""
    detector = LatentDensity(network, layer or network.penultimate, density, task=TASK, condition=condition)
    detector.fit(parts.fit.batches(), calibration=parts.calibration.batches())
    u = detector.predict(parts.test.batches())
    low, high = detector.interval(u, COVERAGE)
    return Scored(u.prediction, low, high, u.aleatoric, u.epistemic)


def _network(parts: Parts, network: MLP) -> dict[str, Scored]:
    """The variance that the network predicts; and plain intervals of one width without it."""
    with torch.no_grad():
        unseen, test = (TASK.predict(network(points.x)) for points in (parts.calibration, parts.test))
    assert unseen.variance is not None and test.variance is not None
    scales = [variance.clamp(min=LOWEST).sqrt() for variance in (unseen.variance, test.variance)]
    even = [torch.ones_like(scale) for scale in scales]
    return {
        "network": Scored(test.value, *_interval(unseen.value, test.value, scales, parts), aleatoric=test.variance),
        "plain": Scored(test.value, *_interval(unseen.value, test.value, even, parts)),
    }


def _interval(unseen: Tensor, test: Tensor, scales: Sequence[Tensor], parts: Parts) -> tuple[Tensor, Tensor]:
    """Split conformal intervals around test predictions, as those of `LatentDensity.interval`.

    Args:
        unseen: predictions for calibration rows.
        test: predictions for test rows.
        scales: what errors of both are expected to be proportional to.
        parts: with the targets.
    """
    error = (parts.calibration.y - unseen).abs() / scales[0]
    half = Calibration().fit(error).threshold(1 - COVERAGE) * scales[1]
    return test - half, test + half
