"""The paper's regression experiment: a curve with a gap in its data, and who notices the gap.

Everything about the densities was fixed before any point of the gap was scored: the paper's where it says something,
the library's defaults where it does not, and those were chosen by held-out likelihood.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import Tensor

from ..baselines import DeepEnsemble, GaussianProcess
from ..datasets.toy import GAP, Toy, toy
from ..density import ConditionalFlow, Density, JointMixture
from ..estimator import LatentDensity
from ..marginal import Marginal, Uniform
from ..metrics import auroc, rank_correlation
from ..nets import MLP, train_mlps
from ..progress import track
from ..uncertainty import Uncertainty
from ._toy_picture import draw
from .results import Study, digest, one_thread, summarise

MEMBERS = 10
NOISE = 0.1  # variance that the Gaussian process takes for noise; not in the paper, but it gives the paper's kernel
REGIONS = ("gap", "outside")


class Method(NamedTuple):
    """A density of the penultimate layer and the marginal that it is integrated over."""

    density: Density
    marginal: Marginal | Literal["auto"]


def methods(seed: int, *, quick: bool) -> dict[str, Method]:
    """The paper's flow with its prior and support, and our default."""
    flow = ConditionalFlow(form="glow", blocks=4, batch_size=None, max_epochs=20 if quick else None, seed=seed)
    return {
        "flow": Method(flow, Uniform(-10.0, 10.0, points=100 if quick else 1000)),
        "joint-mixture": Method(JointMixture(seed=seed), "auto"),
    }


@one_thread()
def run(*, seeds: Sequence[int] = range(5), quick: bool = False, progress: bool | None = None) -> Study:
    """Train ten networks a seed, fit densities to the first, and score the gap, the outside and the curve.

    Args:
        seeds: of points, weights and densities.
        quick: one seed, few epochs, three networks.
        progress: show a bar; None shows it on a terminal.
    """
    start = time.perf_counter()
    seeds = list(seeds)[:1] if quick else list(seeds)
    found: dict[tuple[str, str, str], list[float]] = {}
    curves: dict[str, Tensor] = {}
    warned: set[str] = set()
    pictures = {}
    for seed in track(seeds, "toy regression", enabled=progress):
        data = toy(200, evaluation=50, seed=seed) if quick else toy(seed=seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scored, kernel, regions = _score(data, seed, quick=quick, progress=progress)
        warned |= {f"{warning.message}" for warning in caught}
        for name, parts in scored.items():
            for place in REGIONS:
                value = auroc(parts["inside"].epistemic, parts[place].epistemic)
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
    data: Toy, seed: int, *, quick: bool, progress: bool | None
) -> tuple[dict[str, dict[str, Uncertainty]], dict[str, float], dict[str, tuple[Tensor, Tensor]]]:
    """Every method's scores of every part; the kernel that was fitted; the densities' regions of 20 % on the grid."""
    members = [MLP(1, seed=1000 * seed + i) for i in range(3 if quick else MEMBERS)]
    train_mlps(members, data.train.x, data.train.y, epochs=200 if quick else 1500, batch_size=None, progress=progress)
    network = members[0]
    detectors: dict[str, Any] = {}
    features = None
    for name, (density, marginal) in methods(seed, quick=quick).items():
        detector = LatentDensity(
            network, network.penultimate, density, task="regression", marginal=marginal, progress=progress
        )
        features = features or detector.extract(data.train.batches())
        detectors[name] = detector.fit_features(features)
    detectors["ensemble"] = DeepEnsemble(members, task="regression", progress=progress)
    kernel = ConstantKernel() * RBF() + WhiteKernel(NOISE, "fixed")
    process = GaussianProcess(kernel, standardise=False, progress=progress).fit(data.train.batches())
    detectors["gaussian-process"] = process
    scored = {
        name: {part: detector.predict(getattr(data, part).batches()) for part in ("inside", *REGIONS, "grid")}
        for name, detector in detectors.items()
    }
    regions = {name: detectors[name].distribution(data.grid.x).outwards(0.2)[:2] for name in methods(seed, quick=quick)}
    fitted_process: Any = process.process
    found = fitted_process.model.kernel_.k1
    fitted = {"amplitude": found.k1.constant_value**0.5, "length scale": found.k2.length_scale}
    return scored, fitted, regions


def _normalise(scores: Uncertainty) -> Tensor:
    """Scores over the curve from 0 to 1: nats above the least as log(1 + nats), variances as deviations."""
    nats = scores.layers  # only densities have them
    values = (scores.epistemic - scores.epistemic.min()).log1p() if nats else scores.epistemic.sqrt()
    return (values - values.min()) / (values.max() - values.min())
