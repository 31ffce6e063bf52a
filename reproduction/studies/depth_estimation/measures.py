"""From depths and scores of pixels to numbers: accuracy, ranking of errors, detection of unknown images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hidden_uncertainty.marginal import BetaPrime, Gaussian, Histogram, choose
from hidden_uncertainty.metrics import auroc, ause, rank_correlation, rmse, sparsification, sparsification_oracle

from ...results import summarise

PERCENTILES = range(1, 101)
PAPER = {
    "alpha of predictions": 31.76,
    "beta of predictions": 3.07,
}  # on KITTI; the paper prints no other number about depth
Kind = str  # aleatoric or epistemic
Found = dict[tuple[str | None, str, str], list[float]]  # by unknown images, method and metric: one per repetition


class Scored(NamedTuple):
    """Predictions and scores of pixels of test images, each (m,)."""

    prediction: Tensor
    scores: dict[Kind, Tensor]


def accuracy(prediction: Tensor, depth: Tensor) -> dict[str, float]:
    """RMSE in metres, mean relative error, and share of pixels within a factor of 1.25; NaN depths are ignored.

    Example:
        >>> accuracy(torch.tensor([1.0, 3.0, 1.0]), torch.tensor([1.0, 2.0, torch.nan]))
        {'rmse': 0.7071067811865476, 'relative error': 0.25, 'delta below 1.25': 0.5}
    """
    known = ~depth.isnan()
    predicted, true = prediction[known].double(), depth[known].double()
    ratio = torch.maximum(predicted / true, true / predicted)
    return {
        "rmse": rmse(predicted, true),
        "relative error": float(((predicted - true).abs() / true).mean()),
        "delta below 1.25": float((ratio < 1.25).double().mean()),
    }


def constant(train: Tensor, depth: Tensor) -> dict[str, float]:
    """The accuracy of one depth for all pixels, the mean of training depths.

    Args:
        train: depths to take the mean of.
        depth: depths to predict.
    """
    return accuracy(train.double().nanmean().expand_as(depth), depth)


def accumulated(uncertainty: Tensor, error: Tensor) -> list[float]:
    """RMSE of the 1 %, 2 %, … 100 % of pixels with the lowest uncertainty.

    Example:
        >>> curve = accumulated(torch.arange(200.0), torch.arange(200.0) // 100)
        >>> curve[0], curve[49], round(curve[99], 6)
        (0.0, 0.0, 0.707107)
    """
    return _percentiles(sparsification(uncertainty=uncertainty, error=error)[1])


def best(error: Tensor) -> list[float]:
    """The lowest possible `accumulated`: pixels in the order of their errors."""
    return _percentiles(sparsification_oracle(error)[1])


def _percentiles(rest: Tensor) -> list[float]:
    """A sparsification curve (m,) at each percentage of pixels that are left."""
    kept = [math.ceil(percentile * len(rest) / 100) for percentile in PERCENTILES]
    return rest[[len(rest) - count for count in kept]].tolist()


def rising(curve: Sequence[float]) -> float:
    """The share of a curve's steps that rise.

    Example:
        >>> rising([1.0, 2.0, 2.0, 3.0, 2.0])
        0.5
    """
    return sum(b > a for a, b in pairwise(curve)) / (len(curve) - 1)


def errors(scored: Mapping[str, Scored], depth: Tensor) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """How well scores rank the errors of their own method: numbers by method and metric, and curves by kind.

    Args:
        scored: by method.
        depth: of the same pixels, (m,), NaN where it is not known.
    """
    known = ~depth.isnan()
    found: dict[str, dict[str, float]] = {}
    curves: dict[str, Any] = {"percentiles": list(PERCENTILES), "aleatoric": {}, "epistemic": {}, "oracle": {}}
    for method, (prediction, scores) in scored.items():
        error = (prediction - depth)[known].abs()
        if method in ("flow", "ensemble", "mc-dropout"):  # densities share the network and its errors
            curves["oracle"]["network" if method == "flow" else method] = best(error)
        own = found[method] = {}
        for kind, values in scores.items():
            score = values[known]
            curve = curves[kind][method] = accumulated(score, error)
            own[f"rank correlation of {kind} with error"] = _correlation(score, error)
            own[f"ause of {kind}"] = ause(uncertainty=score, error=error)
            own[f"rmse of the half with least {kind}"] = curve[49]
            own[f"share of steps that rise, {kind}"] = rising(curve)
    return found, curves


def _correlation(score: Tensor, error: Tensor) -> float:
    """Rank correlation; 0 for a constant score, which a flow that learned nothing may have."""
    return rank_correlation(score, error) if bool((score != score[0]).any()) else 0.0


def detection(known: Tensor, unknown: Mapping[str, Tensor]) -> dict[str, float]:
    """AUROC of images, scored by the mean over their pixels.

    Args:
        known: scores of pixels of test images, (n, pixels).
        unknown: scores of unknown images, by kind.
    """
    inside = known.double().mean(1)
    return {name: auroc(negative=inside, positive=scores.double().mean(1)) for name, scores in unknown.items()}


class Fits(NamedTuple):
    """How well distributions fit numbers."""

    likelihood: dict[str, float]  # mean log p of an unseen fifth, in nats
    distance: dict[str, float]  # Kolmogorov's, between the numbers and the fitted distribution
    shape: tuple[float, float]  # α and β of the beta prime
    curves: dict[str, list[float]]  # densities over `at`, and the histogram of the numbers


def marginals(values: Tensor, points: int = 100) -> Fits:
    """Beta prime, Gaussian and histogram fitted to numbers.

    Args:
        values: positive, (m,).
        points: of the curves.
    """
    values = values.double().cpu().sort().values
    beta, gaussian, histogram = BetaPrime().fit(values), Gaussian().fit(values), Histogram().fit(values)
    compared = choose(values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))]).compared
    steps = torch.arange(len(values) + 1, dtype=torch.float64) / len(values)
    distance = {}
    edges = torch.linspace(float(values[0]), float(values[-1]), points + 1, dtype=torch.float64)
    counts = torch.histc(values, points, float(values[0]), float(values[-1]))
    at = (edges[1:] + edges[:-1]) / 2
    curves = {
        "at": at.tolist(),
        "numbers": (counts / counts.sum() / (edges[1] - edges[0])).tolist(),
    }
    for fitted in (beta, gaussian, histogram):
        mass = fitted.cdf(values)
        distance[fitted.name] = float(torch.maximum((mass - steps[:-1]).abs(), (mass - steps[1:]).abs()).max())
        curves[fitted.name] = fitted.log_prob(at).exp().tolist()
    alpha, beta_shape = beta.shape.tolist()
    return Fits({name: compared[name] for name in distance}, distance, (alpha, beta_shape), curves)


def add(found: Found, method: str, values: Mapping[str, float], *, ood: str | None = None) -> None:
    """Add one repetition's numbers of a method, by metric.

    Args:
        found: to add to.
        method: which.
        values: by metric.
        ood: the unknown images, for detection.
    """
    for metric, value in values.items():
        found.setdefault((ood, method, metric), []).append(value)


def rows(found: Found) -> list[dict[str, Any]]:
    """The rows of the result file."""
    return [
        {
            **summarise(values, train="NYU v2", ood=ood, method=method, metric=metric),
            "paper_mean": PAPER.get(metric),
            "paper_std": None,
            "variant": "default",
        }
        for (ood, method, metric), values in found.items()
    ]


def thinned(curves: Any) -> Any:
    """Curves rounded to four decimals, for files."""
    if isinstance(curves, Mapping):
        return {name: thinned(part) for name, part in curves.items()}
    if isinstance(curves, list):
        return [thinned(part) for part in curves]
    return round(curves, 4) if isinstance(curves, float) else curves
