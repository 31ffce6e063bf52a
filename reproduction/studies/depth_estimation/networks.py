"""The networks of the depth study, and maps of their ensemble and of MC dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hidden_uncertainty import Detector, Pixels
from hidden_uncertainty.baselines import DeepEnsemble, MCDropout

from ...datasets.dense import Dense
from ...nets.efficientnet import EfficientNetLite0
from ...nets.monodepth import MonoDepth
from ...training.dense import DenseRecipe, DenseTrained, depth_loss, train_dense
from ..dense_tools import batches

MEMBERS = 5
DROPOUT = 0.2  # share of units dropped before the output, for MC dropout
SAMPLES = 10  # of MC dropout
AT_ONCE = 1 << 21  # pixels per batch
RECIPE = DenseRecipe(scale=(1.0, 1.5), colour=0.2, distances=True)
ENSEMBLE, MC_DROPOUT = "ensemble", "mc-dropout"


class Networks(NamedTuple):
    """An ensemble, with densities for its first members, and a network with dropout."""

    members: list[DenseTrained]
    dropped: DenseTrained

    @property
    def methods(self) -> dict[str, Detector]:
        """The ensemble and MC dropout."""
        members = [member.network for member in self.members]
        # One sample per pass: all at once would take ten times the memory.
        sampled = MCDropout(self.dropped.network, SAMPLES, task="regression", pixels=Pixels())
        return {ENSEMBLE: DeepEnsemble(members, task="regression", pixels=Pixels()), MC_DROPOUT: sampled}


class Maps(NamedTuple):
    """Predictions and scores per pixel."""

    prediction: Tensor  # (n, H, W)
    epistemic: Tensor  # variance, in square metres, (n, H, W)


def train(
    rooms: Dense,
    recipe: DenseRecipe,
    seeds: Sequence[int],
    *,
    width: float | None,
    folder: str | None,
) -> Networks:
    """Train an ensemble and, with the first of its seeds, a network with dropout.

    Encoders start with the same published weights: members differ in the decoder's initial weights, the order of images
    and augmentation.

    Args:
        rooms: images with depth, on the device to train on.
        recipe: how.
        seeds: of the members.
        width: multiple of the encoder's channels, with random weights; None takes the one trained on ImageNet.
        folder: where networks are kept between runs.
    """

    def trained(name: str, dropout: float, seeds: Sequence[int]) -> list[DenseTrained]:
        networks = [MonoDepth(encoder=_encoder(width, seed), dropout=dropout, seed=seed) for seed in seeds]
        return train_dense(
            networks,
            rooms.images,
            rooms.targets,
            depth_loss,
            recipe,
            name=name if width is None else f"{name}-quick",
            about={"data": rooms.digest},
            device=rooms.images.device,
            folder=folder,
        )

    return Networks(trained("depth", 0.0, seeds), trained("depth-dropout", DROPOUT, seeds[:1])[0])


def _encoder(width: float | None, seed: int) -> EfficientNetLite0:
    return EfficientNetLite0.pretrained() if width is None else EfficientNetLite0(width=width, seed=seed)


def compare(method: Detector, images: Tensor) -> Maps:
    """Mean and variance of the depths of a method's networks or samples.

    Args:
        method: ready to score pixels.
        images: (n, 3, H, W), on the device of the networks; depths are half as high and wide.
    """
    found = [method(some) for (some,) in batches(images, pixels=AT_ONCE)]
    return Maps(torch.cat([u.prediction for u in found]), torch.cat([u.epistemic for u in found]))
