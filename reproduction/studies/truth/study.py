"""Do -log p(z) and h(y|z) come to the truth as the data grow? The joint distribution of z and y is known here.

The network is the identity, and densities are fitted given labels. The joint distributions and the numbers of samples
were fixed before anything was measured.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, linear_regression, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hidden_uncertainty import Density, GaussianMixture, JointMixture, LatentDensity
from hidden_uncertainty.model.tasks import TaskName
from hidden_uncertainty.precision import one_thread
from hidden_uncertainty.progress import track

from ...results import Study, digest
from .joint import EIGENVALUES, PRIOR, Classes, Numbers, draw_mixture
from .picture import draw

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
FRESH = 5_000  # draws that errors are measured on
SPREAD = {2: 1.5, 8: 2.0}  # of the classes' means, by dimension, so that classes overlap
APART = 3.0  # of the means of a mixture's components
SCORES = ("epistemic", "aleatoric")
COARSE = "GaussianMixture(3, tol=1e-1)"  # fitted to the largest size alone


class Case(NamedTuple):
    """A known joint distribution, and a density to fit to draws from it."""

    data: str
    method: str
    density: Callable[[], Density]
    specified: str  # whether the truth is among what the density can be


def cases(dims: Sequence[int] = tuple(SPREAD)) -> list[Case]:
    """What is fitted to what: classes in these dimensions, and numbers."""
    found = []
    for dim in dims:
        one, three = f"Gaussian classes, d = {dim}", f"classes of 3 Gaussians, d = {dim}"
        found += [
            Case(one, "GaussianMixture(1, shrinkage=None)", lambda: GaussianMixture(1, shrinkage=None), "yes"),
            Case(one, "GaussianMixture(1)", lambda: GaussianMixture(1), "yes"),
            Case(three, "GaussianMixture(3)", lambda: GaussianMixture(3), "to tol"),
            Case(three, "GaussianMixture(3, tol=1e-4)", _precise, "yes"),
            Case(three, "GaussianMixture(1)", lambda: GaussianMixture(1), "no"),
        ]
    numbers = "numbers, d = 2"
    return [
        *found,
        Case(numbers, "JointMixture(3)", lambda: JointMixture(3), "to noise, tol and marginal"),
        Case(numbers, "JointMixture(3, tol=1e-4)", lambda: _joint(0.05), "to noise and marginal"),
        Case(numbers, "JointMixture(3, tol=1e-4, noise=0.01)", lambda: _joint(0.01), "to less noise and marginal"),
    ]


def _precise() -> GaussianMixture:
    return GaussianMixture(3, tol=1e-4, max_iter=2000)


def _joint(noise: float) -> JointMixture:
    return JointMixture(3, noise=noise, tol=1e-4, max_iter=2000)


def known(data: str, seed: int) -> Classes | Numbers:
    """The joint distribution of this name, another one for every seed.

    Example:
        >>> len(known("Gaussian classes, d = 2", 0).given)
        3
    """
    random = torch.Generator().manual_seed(seed)
    dim = int(data[-1])
    if data.startswith("numbers"):
        return Numbers(draw_mixture(3, dim + 1, APART, random))
    if data.startswith("Gaussian"):
        return Classes([draw_mixture(1, dim, SPREAD[dim], random) for _ in PRIOR])
    return Classes([draw_mixture(3, dim, APART, random) for _ in PRIOR])


class Identity(nn.Module):
    """A network whose layer `layer` is its input."""

    def __init__(self, predict: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.predict = nn.Identity(), predict

    def forward(self, x: Tensor) -> Tensor:
        """Predict by the function given."""
        return self.predict(self.layer(x))


class Draws(NamedTuple):
    """Draws from a joint distribution, and the truth about fresh ones."""

    joint: Classes | Numbers
    z: Tensor  # (n, d)
    y: Tensor  # (n,)
    fresh: Tensor  # (m, d)
    truth: tuple[Tensor, Tensor]  # -log p(z) and h(y|z) of these, (m,)

    @classmethod
    def make(cls, joint: Classes | Numbers, n: int, fresh: int, seed: int) -> Draws:
        """Draw n to fit to, and fresh ones."""
        random = torch.Generator().manual_seed(1000 + seed)
        z, y = joint.draw(n, random)
        unseen, _ = joint.draw(fresh, random)
        return cls(joint, z, y, unseen, joint.truth(unseen))


class Found(NamedTuple):
    """How far scores are from the truth: mean absolute differences in nats; and the marginal that was chosen."""

    epistemic: float
    aleatoric: float
    marginal: str


def measure(draws: Draws, density: Density, n: int) -> Found:
    """Fit a density to the first n draws, and score the fresh ones."""
    joint = draws.joint
    task: TaskName = "classification" if isinstance(joint, Classes) else "regression"
    network = Identity(joint.predict).eval()
    detector = LatentDensity(network, "layer", density, max_dim=None, task=task, condition="label")
    detector.fit(list(zip(draws.z[:n].split(10_000), draws.y[:n].split(10_000), strict=True)))
    scores = detector.predict(draws.fresh.split(1000))
    assert scores.aleatoric is not None
    surprise, entropy = draws.truth
    return Found(
        float((scores.epistemic - surprise).abs().mean()),
        float((scores.aleatoric - entropy).abs().mean()),
        type(detector.fitted_marginal).__name__,
    )


@one_thread()
def run(*, seeds: Sequence[int] = range(5), quick: bool = False) -> Study:
    """Draw from known joint distributions, fit densities, and compare scores with the truth.

    Args:
        seeds: of joint distributions and draws.
        quick: one seed, two dimensions, two small sizes, few fresh draws, and no small tolerances.
    """
    start = time.perf_counter()
    seeds = list(seeds)[:1] if quick else list(seeds)
    sizes, fresh = ((300, 3_000), 300) if quick else (SIZES, FRESH)
    tried = [case for case in cases((2,)) if "tol" not in case.method] if quick else cases()
    found: dict[tuple[str, str, str, int], list[Found]] = {}
    level: dict[str, list[float]] = {}
    drawn = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in track(seeds, "truth"):
            for data in dict.fromkeys(case.data for case in tried):
                draws = Draws.make(known(data, seed), sizes[-1], fresh, seed)
                drawn.append(draws.fresh)
                level.setdefault(data, []).append(float(draws.truth[1].mean()))
                for case in tried:
                    for n in sizes if case.data == data else ():
                        key = (data, case.method, case.specified, n)
                        found.setdefault(key, []).append(measure(draws, case.density(), n))
                if "3 Gaussians" in data:
                    key = (data, COARSE, "to tol", sizes[-1])
                    found.setdefault(key, []).append(measure(draws, GaussianMixture(3, tol=1e-1), sizes[-1]))
    rows = _rows(found)
    rows += [_row(values, data=data, method="truth", metric="mean of h(y|z)") for data, values in level.items()]
    settings = {
        "joint distributions": "another one for every seed; full covariances, eigenvalues log-uniform between "
        f"{EIGENVALUES[0]} and {EIGENVALUES[1]}",
        "prior of the classes": list(PRIOR),
        "distance of means from the origin": {"Gaussian classes": SPREAD, "components of a mixture": APART},
        "error": f"mean absolute difference to the truth on {fresh:,} fresh draws, in nats",
        "samples": "the first n of the same draws",
        "slope": "of log error on log n, by least squares for each seed",
        "marginals of numbers": sorted(
            {one.marginal for key, many in found.items() for one in many if "numbers" in key[0]}
        ),
        "truth": "closed forms; h(y|z) of numbers by the trapezoidal rule in float64",
        "warnings": sorted({str(warning.message) for warning in caught}),
    }
    return Study(
        "truth",
        rows,
        seeds,
        {"fresh draws": digest(*drawn)},
        time.perf_counter() - start,
        settings,
        pictures={"": draw(rows)},
    )


def _rows(found: Mapping[tuple[str, str, str, int], Sequence[Found]]) -> list[dict[str, Any]]:
    """Errors, and their slopes for each density that was fitted to all sizes."""
    rows: list[dict[str, Any]] = []
    curves: dict[tuple[str, str, str, str], dict[float, list[float]]] = {}
    for (data, method, variant, n), many in found.items():
        for score in SCORES:
            values = [getattr(one, score) for one in many]
            about = {"data": data, "samples": n, "method": method, "variant": variant}
            rows.append(_row(values, **about, metric=f"{score} error"))
            if method != COARSE:
                curves.setdefault((data, method, variant, score), {})[math.log(n)] = [math.log(v) for v in values]
    for (data, method, variant, score), points in curves.items():
        slopes = [linear_regression(list(points), own).slope for own in zip(*points.values(), strict=True)]
        rows.append(_row(slopes, data=data, method=method, variant=variant, metric=f"{score} slope"))
    return rows


def _row(values: Sequence[float], **about: Any) -> dict[str, Any]:
    """A row with four significant digits, as errors span orders of magnitude."""
    mean, std = (float(f"{value:.4g}") for value in (fmean(values), stdev(values) if len(values) > 1 else 0.0))
    return {**about, "mean": mean, "std": std, "n": len(values)}
