"""`torch.set_default_device` is the user's: networks are built and trained the same under every one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from defaults import assert_same
from reproduction.datasets import Points, toy
from reproduction.nets import (
    DeepLab,
    EfficientNetLite0,
    FCNet,
    MonoDepth,
    Regularised,
    ResNet,
    ResNet18,
    TextTransformer,
    VisionTransformer,
)
from reproduction.nets.reconstruction import DenseDecoder, Reconstruction
from reproduction.studies.segmentation.stream import Confusion, PixelDetection
from reproduction.training import MLP, DenseRecipe, class_loss, train_dense, train_many, train_mlps
from reproduction.training.classifier import ClassifierRecipe, train_classifiers
from reproduction.training.many import Data, Group, Recipe

random = torch.Generator().manual_seed(0)
x = torch.randn(500, 4, generator=random)
numbers = x[:, :1].exp()
images = torch.rand(20, 3, 16, 16, generator=random)
maps = (images.mean(1) * 8).long().clamp(2, 4) - 2
classifier, dense = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3)), nn.Sequential(nn.Conv2d(3, 4, 1))


def trained(folder: Path) -> list[Tensor]:
    """Stacked, stacked with decoders, and one by one; found again from files."""
    grey, colour = (Data(some[:12], maps[:12, 0, 0], some[12:], maps[12:, 0, 0]) for some in (images[:, :1], images))
    recipe = Recipe(epochs=2, batch_size=4)

    def regularised() -> Regularised:
        return Regularised(FCNet(256, 8, 3), "10", DenseDecoder(8, 8, (1, 16, 16), layers=2), 0.1)

    groups = [
        Group(
            "plain", [FCNet(256, 8, 3, dropout=0.2, initialisation="glorot", seed=i) for i in range(2)], grey, recipe
        ),
        Group("regularised", [regularised()], grey, recipe),
        Group("residual", [ResNet((4, 4, 4), 3, dropout=0.1)], colour, recipe),
    ]
    found = [train_many(groups, device="cpu", folder=folder) for _ in range(2)]
    return [p for run in found for group in run for network in group.networks() for p in network.state_dict().values()]


def penalty(folder: Path) -> list[Tensor]:
    given = Reconstruction(classifier, "0", DenseDecoder(12, 8, (4,), layers=2))
    built = Reconstruction(dense, "0", example=images[:2])  # of residual units
    classifier(x), dense(images)
    return [given(x).detach(), built(images).detach()]


def perceptrons(folder: Path) -> list[Tensor]:
    networks = [MLP(4, (5,), dropout=0.2, seed=seed) for seed in range(2)]
    train_mlps(networks, x, numbers, validation=(x[:50], numbers[:50]), epochs=3, patience=1)
    return [p.detach() for network in networks for p in network.parameters()]


def segmentation(folder: Path) -> list[Tensor]:
    networks = [DeepLab(3, encoder=EfficientNetLite0(dilated=True, width=0.1), width=4)]
    recipe = DenseRecipe(epochs=1, batch_size=2, crop=(16, 16), colour=0.2, warm_up=0.5)
    found = train_dense(networks, images[:4], maps[:4].byte(), class_loss, recipe, device="cpu", folder=folder)
    depth = MonoDepth(encoder=EfficientNetLite0(width=0.1))
    return [*found[0].network.state_dict().values(), *depth.state_dict().values()]


def classifiers(folder: Path) -> list[Tensor]:
    """Found again from files."""
    recipe = ClassifierRecipe(epochs=1, batch_size=4, learning_rate=0.01)
    words = torch.arange(60, device="cpu").view(20, 3) % 7
    found = []
    for network, inputs in (
        (ResNet18(3, width=4), (255 * images).byte()),
        (VisionTransformer(3, side=16, width=8, depth=1), (255 * images).byte()),
        (TextTransformer(7, 3, 3, width=8, depth=1), words),
    ):
        for _ in range(2):
            path = folder / type(network).__name__
            found += train_classifiers([network], inputs, maps[:, 0, 0], recipe, paths=[path])[0].state_dict().values()
    return found


def loaded(folder: Path) -> list[Tensor]:
    curve, parts = toy(), Points(x, numbers[:, 0]).divide(0.3)
    return [curve.train.y, curve.grid.y, parts[0].x]


def counted(folder: Path) -> list[Tensor]:
    stream, confusion = PixelDetection(10), Confusion(3)
    classes = x.argmax(1) % 3
    low, right = x[:, 0], x[:, 2] > 0
    for scores, mask in ((low, right), (low.numpy(), right.numpy()), (low.tolist(), right.tolist())):
        stream.update(scores, mask)
        confusion.update(prediction=classes, label=classes.flip(0).numpy())
        confusion.update(prediction=classes.tolist(), label=classes.tolist())
    areas = torch.tensor([stream.auroc, stream.average_precision, confusion.mean_iou], device="cpu")
    return [areas, confusion.matrix]


@pytest.mark.parametrize("run", [trained, penalty, perceptrons, segmentation, classifiers, loaded, counted])
def test_the_default_device_changes_nothing(run: Callable[[Path], list[Tensor]], tmp_path: Path) -> None:
    assert_same(["device"], run, tmp_path)
