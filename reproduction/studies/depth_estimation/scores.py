"""Scores of pixels of test images and of unknown images, the cost of whole maps, and maps to draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hidden_uncertainty import Features, LatentDensity, Regression
from hidden_uncertainty.progress import progress_bar

from ...datasets.dense import Dense
from ..dense_tools import batches, milliseconds_per_megapixel
from .densities import LAYER
from .measures import Scored, detection
from .networks import AT_ONCE, ENSEMBLE, MC_DROPOUT, Maps, Networks

TEST = "test"


class Scores(NamedTuple):
    """Scores of one network.

    `prediction` holds whole maps of test images, (n, H, W); `pixels` scores of some of their pixels, by method; `areas`
    the AUROC of unknown images, by method and kind.
    """

    prediction: Tensor
    pixels: dict[str, Scored]
    areas: dict[str, dict[str, float]]


def grid(maps: Tensor, step: int) -> Tensor:
    """Pixels of maps (n, H, W, ...) at this step in both directions, starting at half a step.

    Example:
        >>> grid(torch.arange(16).view(1, 4, 4), 2)
        tensor([[[ 5,  7],
                 [13, 15]]])
    """
    return maps[:, step // 2 :: step, step // 2 :: step]


def coarse(maps: Tensor, step: int) -> Tensor:
    """Every other pixel of the grid, one row per image, (n, m): what images are scored by."""
    return grid(maps, step)[:, ::2, ::2].flatten(1)


def score(
    detectors: Mapping[str, LatentDensity],
    others: Mapping[str, Mapping[str, Maps]],
    images: Mapping[str, Tensor],
    step: int,
) -> Scores:
    """Score pixels by densities of one network, and by methods with whole maps.

    Args:
        detectors: of the network, by method.
        others: maps by method and kind of images.
        images: by kind, `"test"` among them.
        step: between pixels; twice that for unknown images.
    """
    detector = next(iter(detectors.values()))
    read = {kind: pixels_at(detector, some, step, every=kind == TEST) for kind, some in images.items()}
    prediction, known = read[TEST]
    height, width = grid(prediction[:1], step).shape[1:]
    pixels, areas = {}, {}
    with progress_bar("scoring pixels", len(detectors) * len(read)) as bar:
        for method, each in detectors.items():
            found = {}
            for kind, (_, features) in read.items():
                found[kind] = each.predict_features(features)
                bar.advance(method=method, images=kind)
            u = found.pop(TEST)
            assert u.aleatoric is not None
            pixels[method] = Scored(known.prediction, {"aleatoric": u.aleatoric, "epistemic": u.epistemic})
            usual = u.epistemic.view(-1, height, width)[:, ::2, ::2].flatten(1)
            areas[method] = detection(
                usual, {kind: other.epistemic.view(len(images[kind]), -1) for kind, other in found.items()}
            )
    for method, by_kind in others.items():
        maps = by_kind[TEST]
        pixels[method] = Scored(
            grid(maps.prediction, step).flatten(), {"epistemic": grid(maps.epistemic, step).flatten()}
        )
        unknown = {kind: coarse(other.epistemic, step) for kind, other in by_kind.items() if kind != TEST}
        areas[method] = detection(coarse(maps.epistemic, step), unknown)
    return Scores(prediction, pixels, areas)


def pixels_at(detector: LatentDensity, images: Tensor, step: int, *, every: bool) -> tuple[Tensor, Features]:
    """Run the network once for all densities: whole maps of predictions, and features of the pixels of a grid.

    Args:
        detector: fitted to the network.
        images: (n, 3, H, W), on its device.
        step: of the grid.
        every: all pixels of the grid, or every other one.
    """
    assert detector.head is not None
    found, predictions = [], []
    skip = 1 if every else 2
    for (some,) in batches(images, pixels=AT_ONCE):
        reading = detector.read(some)
        predictions.append(reading.prediction.value)
        patches = torch.cat([row.z for row in reading.rows(LAYER)]).view(*predictions[-1].shape, -1)  # (b, H, W, d)
        found.append(grid(patches, step)[:, ::skip, ::skip].flatten(0, 2))
    prediction = torch.cat(predictions)
    return prediction, Features(
        z={LAYER: torch.cat(found)},
        residual={LAYER: None},  # patches are narrow: nothing is dropped
        prediction=grid(prediction, step)[:, ::skip, ::skip].flatten(),
        task=Regression(),
        reductions=detector.head.reductions,
    )


def cost(
    detectors: Mapping[str, LatentDensity],
    networks: Networks,
    images: Tensor,
    *,
    repeats: int,
) -> dict[str, float]:
    """Milliseconds of whole maps per million pixels of images, by method, including the networks.

    Args:
        detectors: of the first member.
        networks: all networks.
        images: on their device.
        repeats: number of timed calls.
    """
    calls = {"network": networks.members[0].network, **detectors, **networks.methods}
    found = {}
    with progress_bar("cost", len(calls)) as bar, torch.no_grad():
        for method, call in calls.items():
            found[method] = milliseconds_per_megapixel(call, images, repeats)
            bar.advance(method=method)
    return found


def maps_of(
    detector: LatentDensity, others: Mapping[str, Mapping[str, Maps]], test: Dense, count: int
) -> dict[str, Tensor]:
    """Whole maps of a few test images, evenly spread: (count, H, W) by what they show.

    Args:
        detector: whose maps are drawn.
        others: maps by method and kind of images.
        test: images with depth.
        count: how many.
    """
    places = [i * len(test) // count for i in range(count)]
    u = detector(test.images[places])
    assert u.aleatoric is not None
    found = {
        "predicted depth (m)": u.prediction,
        "absolute error (m)": (u.prediction - test.targets[places]).abs(),
        "aleatoric, flow (nats)": u.aleatoric,
        "epistemic, flow (nats)": u.epistemic,
        "ensemble: deviation (m)": others[ENSEMBLE][TEST].epistemic[places].sqrt(),
        "MC dropout: deviation (m)": others[MC_DROPOUT][TEST].epistemic[places].sqrt(),
    }
    return {name: maps.cpu() for name, maps in found.items()}
