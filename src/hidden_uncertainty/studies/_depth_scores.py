"""How methods score pixels of test images and of images of another kind; what whole maps cost, and what they show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .._pixel_reading import Grid
from ..batches import Batch
from ..datasets.dense import Dense
from ..estimator import LatentDensity
from ..extract import Features
from ..progress import task
from ._dense_tools import batches, milliseconds_a_megapixel
from ._depth_densities import LAYER
from ._depth_measures import Scored, detection
from ._depth_networks import AT_ONCE, ENSEMBLE, MC_DROPOUT, Maps, Networks

TEST = "test"


class Scores(NamedTuple):
    """What was found of one network.

    `prediction` are its whole maps of test images, (n, H, W); `pixels` what methods say of some of their pixels, and
    `areas` AUROC of other images, by method and kind.
    """

    prediction: Tensor
    pixels: dict[str, Scored]
    areas: dict[str, dict[str, float]]


def grid(maps: Tensor, step: int) -> Tensor:
    """Every so many pixels of maps (n, H, W, ...) in both directions, from half a step on.

    Example:
        >>> grid(torch.arange(16).view(1, 4, 4), 2)
        tensor([[[ 5,  7],
                 [13, 15]]])
    """
    return maps[:, step // 2 :: step, step // 2 :: step]


def coarse(maps: Tensor, step: int) -> Tensor:
    """Every other pixel of the grid of this step, an image's in one line, (n, m): what images are scored by."""
    return grid(maps, step)[:, ::2, ::2].flatten(1)


def score(
    detectors: Mapping[str, LatentDensity],
    others: Mapping[str, Mapping[str, Maps]],
    images: Mapping[str, Tensor],
    step: int,
    *,
    progress: bool | None,
) -> Scores:
    """Score pixels by densities of one network, and by methods whose maps are known.

    Args:
        detectors: of the network, by method.
        others: maps by method and kind of images.
        images: by kind, `"test"` among them.
        step: from pixel to pixel; twice as far in other images.
        progress: show a bar; None shows it on a terminal.
    """
    detector = next(iter(detectors.values()))
    read = {kind: pixels_at(detector, some, step, every=kind == TEST) for kind, some in images.items()}
    prediction, known = read[TEST]
    height, width = grid(prediction[:1], step).shape[1:]
    pixels, areas = {}, {}
    with task("scoring pixels", len(detectors) * len(read), enabled=progress) as bar:
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
        said = by_kind[TEST]
        pixels[method] = Scored(
            grid(said.prediction, step).flatten(), {"epistemic": grid(said.epistemic, step).flatten()}
        )
        unknown = {kind: coarse(maps.epistemic, step) for kind, maps in by_kind.items() if kind != TEST}
        areas[method] = detection(coarse(said.epistemic, step), unknown)
    return Scores(prediction, pixels, areas)


def pixels_at(detector: LatentDensity, images: Tensor, step: int, *, every: bool) -> tuple[Tensor, Features]:
    """Run the network once, for as many densities as there are: whole maps of its predictions, and patches of a grid.

    Args:
        detector: fitted to the network.
        images: (n, 3, H, W), on its device.
        step: of the grid.
        every: all pixels of the grid, or every other one.
    """
    assert detector.head is not None
    reductions = detector.head.reductions
    rows, predictions = [], []
    skip = 1 if every else 2
    for (some,) in batches(images, pixels=AT_ONCE):
        reading = detector.extractor.reading(Batch((some,), {}, None), reductions)
        assert isinstance(reading, Grid)
        latent, said = reading.latents[LAYER], reading.prediction.value
        patches = latent.band(slice(None), 0, latent.size[0]).view(*said.shape, -1)  # (b, H, W, d)
        rows.append(grid(patches, step)[:, ::skip, ::skip].flatten(0, 2))
        predictions.append(said)
    prediction = torch.cat(predictions)
    z, residual = reductions[LAYER](torch.cat(rows))
    at = grid(prediction, step)[:, ::skip, ::skip].flatten()
    return prediction, Features({LAYER: z}, {LAYER: residual}, at, None, None, reductions)


def cost(
    detectors: Mapping[str, LatentDensity],
    networks: Networks,
    images: Tensor,
    *,
    repeats: int,
    progress: bool | None,
) -> dict[str, float]:
    """Milliseconds that whole maps of a million pixels of images take, by method; each includes what its networks take.

    Args:
        detectors: of the first member.
        networks: all of them.
        images: on their device.
        repeats: how often.
        progress: show a bar; None shows it on a terminal.
    """
    calls = {"network": networks.members[0].network, **detectors, **networks.methods}
    found = {}
    with task("cost", len(calls), enabled=progress) as bar, torch.no_grad():
        for method, call in calls.items():
            found[method] = milliseconds_a_megapixel(call, images, repeats)
            bar.advance(method=method)
    return found


def maps_of(
    detector: LatentDensity, others: Mapping[str, Mapping[str, Maps]], test: Dense, count: int
) -> dict[str, Tensor]:
    """Whole maps of a few test images, evenly over all: (count, H, W) by what they show.

    Args:
        detector: to draw.
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
