"""The paper's study of depth: one number per pixel, and its uncertainty from patches of the penultimate layer.

The paper takes a published network, trained on KITTI. Here networks are trained on NYU v2, with an encoder trained on
ImageNet. Everything that is measured was fixed before: the pixels, the unknown images, and how an image is scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from hidden_uncertainty.marginal import BetaPrime
from hidden_uncertainty.progress import progress_bar

from ...results import Study
from ...training.dense import DenseRecipe
from ..dense_tools import exact
from ..table_1.cells import Clock
from ..table_1.scores import work_folder
from .data import BLUR, CHANGES, NOISE, UNKNOWN, Rooms, read
from .densities import ARCHITECTURE, OWN, PAPER, PATCH, Asked, Fit, Fitted
from .measures import Fits, Found, accuracy, add, constant, errors, marginals, rows, thinned
from .networks import DROPOUT, MEMBERS, RECIPE, SAMPLES, Maps, Networks, compare, train
from .picture import draw_errors, draw_fits, draw_maps
from .scores import TEST, cost, grid, maps_of, score

SHOWN = "flow"  # the density whose maps are drawn


@dataclass(frozen=True)
class Plan:
    """Sizes of everything.

    Args:
        train: most training images.
        test: most test images.
        unknown: most unknown images of each kind.
        size: (H, W) of images; None keeps theirs.
        members: of the ensemble, at least as many as seeds.
        width: multiple of the encoder's channels, with random weights; None takes the one trained on ImageNet.
        recipe: of training.
        asked: of densities.
        step: between the pixels whose errors and scores are compared, in both directions; images are scored by every
            other one of these.
        timed: images for timing whole maps.
        repeats: number of timed calls.
        drawn: images whose maps are drawn.
    """

    train: int | None = None
    test: int | None = None
    unknown: int = UNKNOWN
    size: tuple[int, int] | None = None
    members: int = MEMBERS
    width: float | None = None
    recipe: DenseRecipe = RECIPE
    asked: Asked = field(default_factory=Asked)
    step: int = 4
    timed: int = 8
    repeats: int = 3
    drawn: int = 3


QUICK = Plan(
    train=24,
    test=12,
    unknown=6,
    members=2,
    width=0.1,
    recipe=DenseRecipe(epochs=3, batch_size=8),
    asked=Asked(rows=600, compared=100, points=24, epochs=3),
    timed=1,
    repeats=1,
)


def run(
    *,
    seeds: Sequence[int] = range(3),
    quick: bool = False,
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train an ensemble and a network with dropout, fit densities to patches of members, and measure.

    Args:
        seeds: the first is that of the ensemble; densities are fitted to as many members as there are seeds.
        quick: few small networks, images and epochs on the CPU.
        folder: where networks are kept between runs; None takes the environment variable HIDDEN_UNCERTAINTY_WORK.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and not quick else "cpu")
    seeds = list(seeds)[:1] if quick else list(seeds)
    where = work_folder(quick) if folder is None else str(folder)
    return measure(QUICK if quick else Plan(), seeds, device, folder=where)


def measure(plan: Plan, seeds: Sequence[int], device: torch.device, *, folder: str | None) -> Study:
    """The study at any size.

    Args:
        plan: sizes.
        seeds: as for `run`.
        device: where.
        folder: where networks are kept; None does not keep them.
    """
    clock = Clock()
    rooms = read(device, train=plan.train, test=plan.test, unknown=plan.unknown, size=plan.size)
    clock.lap("reading")
    members = max(plan.members, len(seeds))
    numbers = range(members * seeds[0], members * (seeds[0] + 1))
    networks = train(rooms.train, plan.recipe, numbers, width=plan.width, folder=folder)
    clock.lap("training")
    found: Found = {}
    fits: list[Fitted] = []
    curves: dict[str, Any] = {}
    with exact():
        images = _images(rooms, plan.unknown)
        others = _compare(networks, images, clock)
        depth = rooms.test.targets
        add(found, "constant", constant(rooms.train.targets, depth))
        for method, by_kind in others.items():
            add(found, method, accuracy(by_kind[TEST].prediction, depth))
        for i, seed in enumerate(seeds):
            network = networks.members[i].network
            fitted = Fit(network, rooms.train, plan.asked, seed=seed).all()
            clock.lap(f"densities of member {i}")
            scores = score(fitted.detectors, others, images, plan.step)
            clock.lap(f"scores of member {i}")
            ranked, own = errors(scores.pixels, grid(depth, plan.step).flatten())
            add(found, "network", accuracy(scores.prediction, depth))
            for method in scores.pixels:
                if i == 0 or method in fitted.detectors:  # there is one ensemble
                    add(found, method, ranked[method])
                    for kind, area in scores.areas[method].items():
                        add(found, method, {"auroc": area}, ood=kind)
            _add_fit(found, fitted)
            fits.append(fitted)
            clock.lap(f"measures of member {i}")
            curves = curves or own
        timed = rooms.test.images[: plan.timed]
        costs = cost(fits[0].detectors, networks, timed, repeats=plan.repeats)
        for method, milliseconds in costs.items():
            add(found, method, {"milliseconds per megapixel": milliseconds})
        clock.lap("cost")
        drawn = maps_of(fits[0].detectors[SHOWN], others, rooms.test, plan.drawn)
        clock.lap("maps")
    shapes = _marginals(fits[0])
    _add_marginals(found, shapes)
    curves["marginal"] = {what: each.curves for what, each in shapes.items()}
    curves["loss"] = {"first member": networks.members[0].losses, "with dropout": networks.dropped.losses}
    curves = thinned(curves)
    pictures = {"": draw_errors(curves), "fit": draw_fits(curves["marginal"]), "maps": draw_maps(drawn)}
    clock.lap("pictures")
    settings = _settings(plan, rooms, networks, fits, clock)
    return Study("depth-estimation", rows(found), seeds, rooms.digests, clock.total, settings, curves, pictures)


def _images(rooms: Rooms, unknown: int) -> dict[str, Tensor]:
    """Test images, and unknown images to detect."""
    test = rooms.test.images
    count = min(unknown, len(test))
    some = test[[i * len(test) // count for i in range(count)]]
    return {TEST: test, **rooms.driving, **{name: change(some) for name, change in CHANGES.items()}}


def _compare(networks: Networks, images: Mapping[str, Tensor], clock: Clock) -> dict[str, dict[str, Maps]]:
    """Whole maps of the ensemble and of MC dropout, by method and kind of images."""
    methods = networks.methods
    found: dict[str, dict[str, Maps]] = {}
    with progress_bar("ensemble and MC dropout", len(methods) * len(images)) as bar:
        for method, scorer in methods.items():
            found[method] = {}
            for kind, some in images.items():
                found[method][kind] = compare(scorer, some)
                bar.advance(method=method, images=kind)
            clock.lap(method)
    return found


def _add_fit(found: Found, fitted: Fitted) -> None:
    for method, (given, alone) in fitted.likelihoods.items():
        add(found, method, {"held-out log p(z|y)": given, "held-out log p(z)": alone})
        add(found, method, {"seconds to fit": fitted.seconds[method]})
    for name, value in fitted.tried.items():
        add(found, f"flow, {name}", {"held-out log p(z|y)": value})


def _marginals(fitted: Fitted) -> dict[str, Fits]:
    """How distributions fit predictions and depths of the random pixels."""
    features = fitted.features
    assert features.population is not None and features.label is not None
    return {"predictions": marginals(features.population.values), "depths": marginals(features.label)}


def _add_marginals(found: Found, shapes: Mapping[str, Fits]) -> None:
    for what, each in shapes.items():
        for name, distance in each.distance.items():
            add(found, name, {f"kolmogorov distance to {what}": distance})
            add(found, name, {f"held-out log-likelihood of {what}": each.likelihood[name]})
        for name, value in zip(("alpha", "beta"), each.shape, strict=True):
            add(found, "beta-prime", {f"{name} of {what}": value})


def _settings(plan: Plan, rooms: Rooms, networks: Networks, fits: Sequence[Fitted], clock: Clock) -> dict[str, Any]:
    """The settings of the result file: choices, and the seconds of each part."""
    height, width = rooms.test.images.shape[2:]
    marginal = fits[0].detectors[SHOWN].fitted_marginal
    assert isinstance(marginal, BetaPrime)
    return {
        "data": f"NYU v2 instead of KITTI, official split: {len(rooms.train)} images to train on, {len(rooms.test)} to "
        f"test with, {width}×{height}, depth at half that size",
        "network": "MonoDepth, trained here; its penultimate layer before the activation, "
        f"{PATCH}×{PATCH}×16 numbers around each pixel",
        "training": {**asdict(plan.recipe), "loss": "depth_loss"},
        "ensemble": f"{len(networks.members)} networks from one pretrained encoder; variance of their depths",
        "mc-dropout": f"a network of its own, dropout {DROPOUT} before the output; variance of {SAMPLES} samples",
        "pixels fitted to": f"{plan.asked.rows:,} drawn at random, {plan.asked.compared:,} more to compare densities",
        "pixels scored": f"every {plan.step}th in both directions; accuracy: all pixels",
        "support": f"{marginal.size} points per pixel, between {marginal.low:.3f} and {marginal.high:.3f} m, all that "
        "was predicted for pixels drawn from training images; given labels, those",
        "density of depths": "beta prime fitted to predictions, or to labels where the density is given those",
        "flows": {**ARCHITECTURE, "noise": "0.05 deviations of whitened coordinates", "optimiser": "AdamW"},
        "flow-paper": PAPER,
        "flow": {"candidates": OWN, "chosen": [fitted.chosen for fitted in fits], "by": "held-out log p(z|y)"},
        "-label": "the same densities given labels instead of predictions",
        "constant": "the mean depth of all training pixels",
        "images of another kind": {
            "how many": {name: len(some) for name, some in rooms.driving.items()}
            | dict.fromkeys(CHANGES, min(plan.unknown, len(rooms.test))),
            "noise": f"deviation {NOISE} where pixels go from 0 to 1, clipped",
            "blurred": f"Gaussian, deviation of {BLUR} pixels",
            "street scenes": "stretched to the size of the rooms",
            "missing": rooms.missing,
            "score of an image": f"mean epistemic uncertainty of every {2 * plan.step}th pixel in both directions",
        },
        "error": "|depth - prediction|, of each method's own prediction",
        "steps that rise": "of the RMSE, from each percentile of uncertainty to the next",
        "cost": f"whole maps of {plan.timed} images at once, a million pixels of images; networks included",
        "curves": "of the first member",
        "seconds": clock.laps,
        "seconds a network": [round(each.seconds, 1) for each in (*networks.members, networks.dropped)],
        "warnings": sorted(set().union(*(fitted.warned for fitted in fits))),
    }
