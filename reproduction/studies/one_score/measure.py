"""What one network shows: the numbers of all methods on its own test data and on what it does not know."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from hidden_uncertainty import Reduce
from hidden_uncertainty.extract import OUTPUTS
from hidden_uncertainty.metrics import auroc

from ..layer_depth.data import Shift
from . import probabilities, variants
from .methods import DEFAULT, PAPERS, SOFTMAX, fit
from .near import CHANGES, IMAGES, follow

ASKED = (0.01, 0.05)  # false alarms
KEPT = "paper's setting of"  # the commit that it was measured at, where it was kept from an earlier record
ROUNDED = 0.001  # of accuracies: how far that of one network may be from itself on another machine
COVERED = 0.95  # of the range in which their share lies
Unknown = Callable[[Tensor, Tensor], Mapping[str, Tensor]]  # from known inputs and labels


@dataclass(frozen=True, eq=False)
class Case:
    """One trained network, with its data in the scale of its training.

    Args:
        network: in evaluation mode, on the device of the data.
        train: inputs that it was trained on.
        test: inputs and labels that it was not trained on.
        unknown: from a half of these, inputs by the name of the unknown set.
        measured: the layers of the paper's setting, from the first to the last.
        batch: inputs per batch.
        changes: in steps, by which images go away from the data.
    """

    network: nn.Module
    train: Tensor
    test: tuple[Tensor, Tensor]
    unknown: Unknown
    measured: Mapping[str, Reduce]
    batch: int = 1000
    changes: Sequence[Shift] = CHANGES


def measure(case: Case, seed: int, *, choosing: bool) -> dict[str, Any]:
    """All numbers of one network, as JSON.

    Args:
        case: the network and its data.
        seed: of how the test set is divided: a half is unseen data for the default, the other half judges.
        choosing: whether variants of the default are measured too, as where it was chosen.
    """
    start = time.perf_counter()
    (unseen, unseen_labels), (known, labels) = halves(*case.test, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # of classes that are rare or did not converge: kept in the result
        fitted, features = fit(case.network, case.train, (unseen, unseen_labels), case.measured, case.batch)
        read_unseen, read_known = fitted.read(unseen), fitted.read(known)
        if choosing:
            vary = variants.fit(fitted, features, read_unseen, *fitted.score(unseen, read_unseen))
    inside, u = fitted.score(known, read_known)
    varied = vary(read_known, inside, u) if choosing else {}
    areas: dict[str, dict[str, float]] = {}
    others: dict[str, dict[str, float]] = {}
    for ood, x in case.unknown(known, labels).items():
        read = fitted.read(x)
        outside, of_unknown = fitted.score(x, read)
        areas[ood] = {name: _auroc(inside[name], outside[name]) for name in inside}
        if choosing:
            away = vary(read, outside, of_unknown)
            others[ood] = {name: _auroc(varied[name], away[name]) for name in varied}
    right = u.prediction == labels.cpu()
    mistakes = {}
    if 0 < int(right.sum()) < len(right):
        for name, scores in (("default's aleatoric", u.aleatoric), ("softmax entropy", inside["softmax entropy"])):
            assert scores is not None
            mistakes[name] = _auroc(scores[right], scores[~right])
    alarms = {}
    for asked in ASKED:
        threshold = fitted.default.threshold(false_alarm=asked)
        alarms[str(asked)] = round(float((inside[DEFAULT].double() > threshold).double().mean()), 5)
    logits, unseen_logits = (read.z[OUTPUTS].cpu() for read in (read_known, read_unseen))
    temperature = probabilities.scaled(unseen_logits, unseen_labels.cpu())
    assert u.probabilities is not None
    head = fitted.default.head
    assert head is not None and head.calibration is not None
    return {
        "seed": seed,
        "accuracy": round(float(right.double().mean()), 5),
        "auroc": areas,
        "variants": others,
        "mistakes": mistakes,
        "probabilities": probabilities.judge(u.probabilities.cpu(), logits, labels.cpu(), temperature, seed),
        "near": follow(fitted.near, known[:IMAGES], labels[:IMAGES], case.changes),
        "false alarms": alarms,
        "known": len(known),
        "calibrated on": len(head.calibration.scores),
        "weights": {name: round(weight, 4) for name, weight in fitted.default.weights.items()},
        "layers": [str(choice) for choice in fitted.choices],
        "warnings": sorted({str(each.message) for each in caught}),
        "seconds": round(time.perf_counter() - start, 1),
    }


def with_papers(record: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a network, with those of the paper's setting from an earlier record of the same network.

    Densities of whole maps take most of the time, and no rule of the default changes what they show.

    Args:
        record: of the network, measured without the paper's setting.
        before: the earlier one.
    """
    far = abs(record["accuracy"] - before["accuracy"]) > ROUNDED
    if far or record["auroc"].keys() != before["auroc"].keys():
        raise ValueError(
            f"the network of seed {record['seed']} is not the one of the earlier result: its accuracy is "
            f"{record['accuracy']}, not {before['accuracy']}, or other sets are unknown. Measure all methods again."
        )

    def add(now: Any, then: Any) -> Any:
        if not isinstance(then, dict):
            return now
        kept = {name: value for name, value in then.items() if name.startswith(PAPERS)}
        return {**{name: add(value, then.get(name)) for name, value in now.items()}, **kept}

    merged = {name: add(record[name], before[name]) for name in ("auroc", "near")}
    return {**record, **merged, KEPT: before.get(KEPT, before["commit"])}


def _auroc(negative: Tensor, positive: Tensor) -> float:
    return round(auroc(negative=negative, positive=positive), 5)


def halves(x: Tensor, y: Tensor, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Two halves at random: test sets may be sorted, as MNIST's is by who wrote.

    Example:
        >>> (one, _), (other, _) = halves(torch.arange(5), torch.zeros(5), seed=0)
        >>> len(one), len(other), torch.cat([one, other]).sort().values.tolist()
        (2, 3, [0, 1, 2, 3, 4])
    """
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed), device="cpu").to(x.device)
    first, second = order[: len(x) // 2], order[len(x) // 2 :]
    return (x[first], y[first]), (x[second], y[second])


def regret(areas: Mapping[str, float], method: str = DEFAULT) -> float:
    """How far the best single method, chosen in hindsight, is above a method, in points.

    Example:
        >>> round(regret({"default": 0.9, "softmax": 0.8, "energy": 0.95}), 6)
        5.0
    """
    return 100 * (max(area for name, area in areas.items() if name != DEFAULT) - areas[method])


def below(areas: Mapping[str, float]) -> float:
    """How far the default is below softmax, in points; negative where it is above.

    Example:
        >>> round(below({"default": 0.9, "softmax": 0.8}), 6)
        -10.0
    """
    return 100 * (areas[SOFTMAX] - areas[DEFAULT])


def ranges(asked: float, known: int, calibrated: int) -> dict[str, float]:
    """Where the share of false alarms of one network lies with 95 % probability.

    Args:
        asked: the share asked for.
        known: inputs that were judged.
        calibrated: inputs that the threshold comes from.

    Example:
        >>> {name: round(value, 3) for name, value in ranges(0.05, 5000, 3333).items()}
        {'low': 0.044, 'high': 0.056, 'wide_low': 0.041, 'wide_high': 0.06}
    """
    low, high = stats.binom.interval(COVERED, known, asked)
    above = int(asked * (calibrated + 1))  # scores of the calibration that lie above the threshold
    wide_low, wide_high = stats.betabinom.interval(COVERED, known, max(above, 1), calibrated + 1 - max(above, 1))
    values = {"low": low, "high": high, "wide_low": wide_low, "wide_high": wide_high}
    return {name: float(value) / known for name, value in values.items()}
