"""The paper's regression experiment: a curve with a gap in its data, and which methods notice the gap.

Everything about the densities was fixed before any point of the gap was scored: the paper's settings where it gives
them, and otherwise the library's defaults, which were chosen by the likelihood of unseen data.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import Tensor

from hidden_uncertainty import ConditionalFlow, Density, JointMixture, LatentDensity, Uncertainty
from hidden_uncertainty.baselines import DeepEnsemble
from hidden_uncertainty.extract import OUTPUTS
from hidden_uncertainty.marginal import Marginal, Uniform
from hidden_uncertainty.metrics import auroc, rank_correlation
from hidden_uncertainty.precision import one_thread
from hidden_uncertainty.progress import track

from ...datasets.toy import GAP, Toy, toy
from ...results import Study, digest, summarise
from ...rivals.process import GaussianProcess
from ...training import MLP, train_mlps
from .picture import draw

MEMBERS = 10
NOISE = 0.1  # noise variance of the Gaussian process; not in the paper, but it gives the paper's kernel
REGIONS = ("gap", "outside")


class Setting(NamedTuple):
    """A density of the penultimate layer, and the marginal."""

    density: Density
    marginal: Marginal | Literal["auto"]


def methods(seed: int, *, quick: bool) -> dict[str, Setting]:
    """The paper's flow with its prior and support, and our default."""
    flow = ConditionalFlow(form="glow", blocks=4, batch_size=None, max_epochs=20 if quick else None, seed=seed)
    return {
        "flow": Setting(flow, Uniform(-10.0, 10.0, points=100 if quick else 1000)),
        "joint-mixture": Setting(JointMixture(seed=seed), "auto"),
    }


@one_thread()
def run(*, seeds: Sequence[int] = range(5), quick: bool = False) -> Study:
    """Train ten networks per seed, fit densities to the first, and score the gap, the outside and the curve.

    Args:
        seeds: of points, weights and densities.
        quick: one seed, few epochs, three networks.
    """
    start = time.perf_counter()
    seeds = list(seeds)[:1] if quick else list(seeds)
    found: dict[tuple[str, str, str], list[float]] = {}
    curves: dict[str, Tensor] = {}
    warned: set[str] = set()
    pictures = {}
    for seed in track(seeds, "toy regression"):
        data = toy(200, evaluation=50, seed=seed) if quick else toy(seed=seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scored, kernel, regions = _score(data, seed, quick=quick)
        warned |= {f"{warning.message}" for warning in caught}
        for name, parts in scored.items():
            for place in REGIONS:
                value = auroc(negative=parts["inside"].epistemic, positive=parts[place].epistemic)
                found.setdefault((name, place, "auroc"), []).append(value)
            for other in ("gaussian-process", "ensemble"):
                if name != other:
                    value = rank_correlation(parts["grid"].epistemic, scored[other]["grid"].epistemic)
                    found.setdefault((name, "grid", f"rank correlation with {other}"), []).append(value)
        for name, parts in scored.items():
            for place in ("inside", *REGIONS):
                error = parts[place].prediction - getattr(data, place).y
                found.setdefault((name, place, "rmse"), []).append(float(error.square().mean().sqrt()))
        for parameter, value in kernel.items():
            found.setdefault(("gaussian-process", "train", parameter), []).append(value)
        if seed == seeds[0]:
            curves = {"x": data.grid.x[:, 0]} | {name: _normalise(parts["grid"]) for name, parts in scored.items()}
            predicted = {name: parts["grid"] for name, parts in scored.items()}
            pictures[""] = draw(data, predicted, regions, curves)
    paper = {"amplitude": 0.601, "length scale": 0.164}
    rows = [
        summarise(values, method=name, region=place, metric=metric)
        | ({"paper_mean": paper[metric]} if metric in paper else {})
        for (name, place, metric), values in found.items()
    ]
    settings = {
        "curve": "0.5 (sin(4 pi x - pi / 2) + x) on [-1, 1], without noise",
        "gap": list(GAP),
        "outside": "1 <= |x| <= 2",
        "grid": "1,001 points on [-2, 2]",
        "training points": len(toy().train),
        "network": "perceptron, 4 hidden layers of 100, full batch, penultimate layer",
        "densities": {
            name: {**method.density.config(), "fitted": None} for name, method in methods(0, quick=quick).items()
        },
        "flow's marginal": "uniform on [-10, 10], 1,000 support points, as in the paper",
        "joint mixture's marginal": "the library's default: chosen by held-out likelihood, with its own support",
        "warnings": sorted(warned),
        "curves": "of the first seed, from 0 to 1: log(1 + nats above the least), or deviations",
        "ensemble": f"{MEMBERS} networks; epistemic is the variance of their predictions",
        "gaussian process": f"scikit-learn, constant times RBF, noise variance {NOISE}; epistemic is its variance",
    }
    return Study(
        "toy-regression",
        rows,
        seeds,
        {"curve": digest(toy().train.x, toy().train.y)},
        time.perf_counter() - start,
        settings,
        {name: [round(float(value), 4) for value in values] for name, values in curves.items()},
        pictures,
    )


def _score(
    data: Toy, seed: int, *, quick: bool
) -> tuple[dict[str, dict[str, Uncertainty]], dict[str, float], dict[str, tuple[Tensor, Tensor]]]:
    """Scores of all methods for all parts; the fitted kernel; the densities' 20 % regions on the grid."""
    members = [MLP(1, seed=1000 * seed + i) for i in range(3 if quick else MEMBERS)]
    train_mlps(members, data.train.x, data.train.y, epochs=200 if quick else 1500, batch_size=None)
    network = members[0]
    detectors: dict[str, Any] = {}
    features = None
    for name, (density, marginal) in methods(seed, quick=quick).items():
        detector = LatentDensity(network, network.penultimate, density, task="regression", marginal=marginal)
        features = features or detector.extract(data.train.batches())
        detectors[name] = detector.fit_features(features)
    detectors["ensemble"] = DeepEnsemble(members, task="regression")
    kernel = ConstantKernel() * RBF() + WhiteKernel(NOISE, "fixed")
    process = GaussianProcess(kernel, standardise=False).fit(data.train.batches())
    detectors["gaussian-process"] = process
    scored = {
        name: {part: detector.predict(getattr(data, part).batches()) for part in ("inside", *REGIONS, "grid")}
        for name, detector in detectors.items()
    }
    regions = {name: detectors[name].distribution(data.grid.x).outwards(0.2)[:2] for name in methods(seed, quick=quick)}
    found = process.process.kernel_.k1
    fitted = {"amplitude": found.k1.constant_value**0.5, "length scale": found.k2.length_scale}
    return scored, fitted, regions


def _normalise(scores: Uncertainty) -> Tensor:
    """Scores along the curve from 0 to 1: log(1 + nats above the least) for densities, deviations for variances."""
    nats = OUTPUTS not in scores.layers
    values = (scores.epistemic - scores.epistemic.min()).log1p() if nats else scores.epistemic.sqrt()
    return (values - values.min()) / (values.max() - values.min())
