"""The paper's segmentation study: which pixels are misclassified, and which show objects that belong to no class.

DeepLabv3+ is trained on Cityscapes, where the paper takes a finished network; ours is small, and so are the images. The
validation images show its mistakes, Fishyscapes Lost & Found shows unknown objects. The density has the paper's
settings, which were chosen on the same Lost & Found images with another network: nothing is tuned here. MC dropout has
a network of its own, as in the paper, trained with dropout in the last blocks of its encoder and after the pyramid; the
share and these places are ours. Images of Lost & Found are resized to the scale of training, and scores to the masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from hidden_uncertainty.baselines import insert_dropout
from hidden_uncertainty.progress import track

from ...datasets.dense.base import IGNORE
from ...datasets.dense.cityscapes import CLASSES
from ...nets.deeplab import DeepLab
from ...nets.efficientnet import EfficientNetLite0
from ...results import Study
from ...training.dense import DenseTrained, class_loss, train_dense
from ..dense_tools import batches, exact, milliseconds_per_megapixel
from ..table_1.cells import Clock
from ..table_1.rows import DEFAULT
from ..table_1.scores import work_folder
from .data import FITTED, FULL, LARGE, QUICK, TRAIN, UNDERFIT, UNKNOWN, Parts, Plan, read
from .measure import COST, Found, build_rows, find_mistakes, find_objects, mistakes, thin
from .picture import TITLES, Scene, draw_curves, draw_scenes
from .scores import (
    ALEATORIC,
    EPISTEMIC,
    IN_LOG,
    INFORMATION,
    LAYER,
    MAHALANOBIS,
    NEAREST,
    NEIGHBOURS,
    SAMPLES,
    SOFTMAX,
    Methods,
)

DROPOUT = 0.1  # share of units dropped, for MC dropout
PLACES = (*(f"encoder.blocks.{i}" for i in range(11, 16)), "pyramid")  # layers followed by dropout
SCENES = 3  # images with unknown objects to draw, those that show most of them
DRAWN = (SOFTMAX, INFORMATION, EPISTEMIC, ALEATORIC, IN_LOG, MAHALANOBIS, NEAREST)


def run(
    *,
    seeds: Sequence[int] = range(1),
    quick: bool = False,
    folder: str | PathLike[str] | None = None,
) -> Study:
    """Train two networks per seed, one with dropout; fit every method; find mistakes and unknown objects.

    Args:
        seeds: of the networks, and of the pixels drawn.
        quick: one small network without pretrained weights and few small images, on the CPU.
        folder: where networks are kept between runs; None takes the environment variable HIDDEN_UNCERTAINTY_WORK.
    """
    clock, plan = Clock(), QUICK if quick else FULL
    seeds = list(seeds)[:1] if quick else list(seeds)
    if not seeds:
        raise ValueError("seeds is empty: give at least one.")
    device = torch.device("cuda" if torch.cuda.is_available() and not quick else "cpu")
    plain = _networks(plan, seeds)  # first of all: it fails without pretrained weights
    dropping = [insert_dropout(network, DROPOUT, after=PLACES) for network in plain]
    parts = read(plan, device)
    clock.lap("reading")
    where: dict[str, Any] = {"device": device, "folder": folder or work_folder(quick)}
    trained = [
        _train(plain, f"deeplab{'-quick' * quick}", "none", parts, plan, where),
        _train(dropping, f"deeplab{'-quick' * quick}-dropout", f"{DROPOUT} after {PLACES}", parts, plan, where),
    ]
    clock.lap("training")
    majority = int(parts.labels[parts.labels != IGNORE].bincount().argmax())
    founds, scenes, warned = [], list[Scene](), list[str]()
    for i, (network, sampled) in enumerate(track(list(zip(*trained, strict=True)), "networks")):
        with exact():
            methods = Methods(network.network, sampled.network, parts.images, parts.labels, plan, seed=seeds[i])
            clock.lap("drawing pixels and fitting")
            founds.append(_measure(methods, parts, majority, plan, clock))
            if i == 0:
                scenes = _scenes(methods, parts)
        warned += methods.warnings
    curves = {name: founds[0].curves[name] for name in DRAWN}
    settings = {
        "differs from the paper": {
            "network": "EfficientNet-Lite0 as the encoder, trained here; the paper's is the authors' own, on Xception",
            "images": f"{plan.size[1]}×{plan.size[0]} instead of 2048×1024; {UNKNOWN} likewise, its masks twice that",
            "unknown objects": "the 100 validation images, on which the paper chose its settings; it tests on others",
        },
        "density": {"epistemic": dict(FITTED), "aleatoric": dict(UNDERFIT), "layer": LAYER, "dimensions": plan.width},
        "pixels": {"a class and image": plan.per_class, "in all": plan.reservoir, "drawn": methods.drawn},
        "grids": "epistemic, mahalanobis and neighbours at the layer's, all others at the output's",
        "dropout": {
            "share": DROPOUT,
            "after": PLACES,
            "samples": SAMPLES,
            "score": "mutual information",
            "places": "chosen after a small trial, in which dropout before the logits alone did not find mistakes",
        },
        "neighbours": {"k": NEIGHBOURS, "searched": plan.references, "normalised": True},
        "training": {"recipe": asdict(plan.recipe), "encoder": plain[0].encoder.config()},
        "losses": {
            name: [[round(loss, 4) for loss in each.losses] for each in group]
            for name, group in zip(("plain", "with dropout"), trained, strict=True)
        },
        "seconds of training": [[round(each.seconds, 1) for each in group] for group in trained],
        "seconds": clock.laps,
        "bounds of streamed measures, apart at most": max(found.widest for found in founds),
        "warnings": warned,
    }
    drawn = {
        "precision and recall": {name: thin(curve) for name, curve in curves.items()},
        "iou": {name: dict(zip(CLASSES, values, strict=True)) for name, values in founds[0].iou.items()},
    }
    pictures = {"": draw_curves(curves), "maps": draw_scenes(scenes)}
    return Study("segmentation", build_rows(founds), seeds, parts.digests, clock.total, settings, drawn, pictures)


def _networks(plan: Plan, seeds: Sequence[int]) -> list[DeepLab]:
    """Networks of which only the encoders are trained."""

    def encoder(seed: int) -> EfficientNetLite0:
        if plan.encoder is None:
            return EfficientNetLite0.pretrained(dilated=True)
        return EfficientNetLite0(dilated=True, width=plan.encoder, seed=seed)

    return [DeepLab(len(CLASSES), encoder=encoder(seed), width=plan.width, seed=seed) for seed in seeds]


def _train(
    networks: Sequence[nn.Module], name: str, dropout: str, parts: Parts, plan: Plan, where: dict[str, Any]
) -> list[DenseTrained]:
    about = {"data": parts.digests[f"{TRAIN} train"], "size": f"{plan.size}", "dropout": dropout}
    return train_dense(networks, parts.images, parts.labels, class_loss, plan.recipe, name=name, about=about, **where)


def _measure(methods: Methods, parts: Parts, majority: int, plan: Plan, clock: Clock) -> Found:
    found = Found()
    find_mistakes(methods, parts.val_images, parts.val_labels, majority, plan, found)
    clock.lap(f"scoring {TRAIN}")
    for variant in (DEFAULT, LARGE):
        find_objects(methods, parts.unknown(variant), parts.masks, variant, plan, found)
        clock.lap(f"scoring {UNKNOWN}" + f", {variant}" * (variant != DEFAULT))
    (some,) = batches(parts.val_images)[0]
    for method, call in methods.calls().items():
        found.cells[None, method, DEFAULT, COST] = milliseconds_per_megapixel(call, some, plan.repeats)
    clock.lap("timing")
    return found


def _scenes(methods: Methods, parts: Parts) -> list[Scene]:
    """The images with the largest unknown objects, and the middle one with mistakes: chosen without scores."""
    area = (parts.masks == 1).flatten(1).sum(1)
    most = area.argsort(descending=True, stable=True)[:SCENES]
    middle = len(parts.val_images) // 2
    maps, known = methods(parts.unknown(DEFAULT)[most]), methods(parts.val_images[middle : middle + 1])

    def scores(of: Any, image: int) -> dict[str, Tensor]:
        return {method: of.scores[method, DEFAULT][image] for method in TITLES}

    scenes = [
        Scene(f"{UNKNOWN} {number}", "unknown objects", maps.prediction[i], scores(maps, i), parts.masks[number])
        for i, number in enumerate(most.tolist())
    ]
    wrong = mistakes(known, parts.val_labels[middle : middle + 1])[0]
    return [*scenes, Scene(f"{TRAIN} {middle}", "misclassified", known.prediction[0], scores(known, 0), wrong)]
