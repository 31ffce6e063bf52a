"""The networks of the depth study, and what an ensemble of them and MC dropout say of every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..baselines import DeepEnsemble, MCDropout
from ..baselines.outputs import OutputBaseline
from ..datasets.dense import Dense
from ..nets.dense import DenseRecipe, DenseTrained, depth_loss, train_dense
from ..nets.efficientnet import EfficientNetLite0
from ..nets.monodepth import MonoDepth
from ._dense_tools import PerPixel, batches

MEMBERS = 5
DROPOUT = 0.2  # share of numbers dropped before the output, in the network for MC dropout
SAMPLES = 10  # that MC dropout draws
AT_ONCE = 1 << 21  # pixels of images that a network meets
RECIPE = DenseRecipe(scale=(1.0, 1.5), colour=0.2, distances=True)
ENSEMBLE, MC_DROPOUT = "ensemble", "mc-dropout"


class Networks(NamedTuple):
    """An ensemble, whose first members densities are fitted to, and a network with dropout."""

    members: list[DenseTrained]
    dropped: DenseTrained

    @property
    def methods(self) -> dict[str, OutputBaseline]:
        """Those that compare predictions."""
        members = [PerPixel(member.network) for member in self.members]
        # One sample a pass: rows are pixels here, not images to be repeated.
        sampled = MCDropout(PerPixel(self.dropped.network), SAMPLES, max_rows=1, task="regression", progress=False)
        return {ENSEMBLE: DeepEnsemble(members, task="regression", progress=False), MC_DROPOUT: sampled}


class Maps(NamedTuple):
    """What a method says of every pixel."""

    prediction: Tensor  # (n, H, W)
    epistemic: Tensor  # variance, in square metres, (n, H, W)


def train(
    rooms: Dense,
    recipe: DenseRecipe,
    seeds: Sequence[int],
    *,
    width: float | None,
    folder: str | None,
    progress: bool | None,
) -> Networks:
    """Train an ensemble and, with the first of its seeds, a network with dropout.

    Encoders begin with the same published weights: members differ by the decoder's first weights, the order of images
    and how these are changed.

    Args:
        rooms: images with depth, on the device to train on.
        recipe: how.
        seeds: of the members.
        width: multiple of the encoder's channels, with random weights; None takes the one learned on ImageNet.
        folder: where networks are kept between runs.
        progress: show a bar; None shows it on a terminal.
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
            progress=progress,
        )

    return Networks(trained("depth", 0.0, seeds), trained("depth-dropout", DROPOUT, seeds[:1])[0])


def _encoder(width: float | None, seed: int) -> EfficientNetLite0:
    return EfficientNetLite0.pretrained() if width is None else EfficientNetLite0(width=width, seed=seed)


def compare(method: OutputBaseline, images: Tensor) -> Maps:
    """Mean and variance of the depths that a method's networks or samples give.

    Args:
        method: ready to score pixels as rows.
        images: (n, 3, H, W), on the device of the networks; depths are half as high and wide.
    """
    height, width = (-(-side // 2) for side in images.shape[2:])
    parts = []
    for (some,) in batches(images, pixels=AT_ONCE):
        u = method(some)
        parts.append([values.view(-1, height, width) for values in (u.prediction, u.epistemic)])
    return Maps(*map(torch.cat, zip(*parts, strict=True)))
