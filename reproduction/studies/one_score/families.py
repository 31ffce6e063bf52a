"""Families of networks: what each is trained on, and what it does not know.

*Development* families were looked at while the library's default was chosen. *Test* families are for one run at the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Literal

import torch
from torch import Tensor

from hidden_uncertainty import Reduce
from hidden_uncertainty.demo import DigitsNet, digits
from hidden_uncertainty.demo import train as train_digits

from ...datasets.images import unit
from ...nets.fcnet import FCNet
from ...nets.resnet import ResNet
from ...results import digest
from ...training.lane import Recipe
from ...training.many import train_many
from ..table_1.rows import DEFAULT
from ..table_1.scores import Inputs
from ..table_1_fcnet import data as grey
from ..table_1_fcnet import study as fcnet
from ..table_1_resnet import data as colour
from ..table_1_resnet import study as resnet
from . import large
from .measure import Case

Split = Literal["development", "test"]


@dataclass(frozen=True, eq=False)
class Setup:
    """Where and how large.

    Args:
        device: of networks and data.
        folder: where networks are kept between runs.
        quick: few data, small networks and few epochs.
    """

    device: torch.device
    folder: str | PathLike[str] | None = None
    quick: bool = False


@dataclass(frozen=True, eq=False)
class Found:
    """Networks of a family, one per seed, and a digest of the data read for them."""

    cases: Iterator[Case]
    digests: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Family:
    """Networks of one kind, trained on one set.

    Args:
        train: the set.
        network: in words, with how it is trained.
        split: whether it was looked at while the default was chosen.
        gpu: whether training takes a GPU.
        find: trains or loads one network per seed.
    """

    train: str
    network: str
    split: Split
    gpu: bool
    find: Callable[[Sequence[int], Setup], Found]


def _digits(seeds: Sequence[int], setup: Setup) -> Found:
    """Three convolutions on the digits 0 to 7; 8 and 9 are unknown. The split is of the same seed as the network."""

    def cases() -> Iterator[Case]:
        for seed in seeds:
            data = digits(left_out=(8, 9), calibration=0.25, test=0.25, seed=seed)
            network = DigitsNet(8, seed=seed)
            train_digits(network, data.train.images, data.train.labels, epochs=3 if setup.quick else 30, seed=seed)
            test = [torch.cat([getattr(part, name) for part in (data.calibration, data.test)]) for name in _PARTS]
            away = {"digits 8-9": data.left_out.images}
            names = ("conv3", "hidden.1") if setup.quick else ("conv1", "conv2", "conv3", "hidden.1")
            layers = {name: Reduce() for name in names}
            yield Case(network, data.train.images, (test[0], test[1]), partial(_always, away), layers)

    whole = digits()
    return Found(cases(), {"digits": digest(*(part.images for part in (whole.train, whole.calibration, whole.test)))})


_PARTS = ("images", "labels")


def _always(unknown: Mapping[str, Tensor], known: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
    return unknown


def _fcnet(train: str, seeds: Sequence[int], setup: Setup) -> Found:
    """The perceptrons of table 1; where its study has kept networks of these seeds, they are those."""
    data = grey.read(**({"train": 2000, "test": 500} if setup.quick else {}), device=setup.device)
    networks = [FCNet(initialisation="glorot", seed=seed) for seed in seeds]
    digest = data.digests[f"{train} train"]
    recipe = Recipe(epochs=12, patience=3) if setup.quick else Recipe()
    group = fcnet.group(f"{train} {DEFAULT}", networks, *data.train[train], digest, recipe)
    (trained,) = train_many([group], device=setup.device, folder=setup.folder)

    def unknown(known: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        half = replace(data, test={**data.test, train: (known, labels)})
        return _default(grey.inputs(train, half, grey.Scale("unit", data.train[train][0])))

    layers = {name: Reduce() for name in FCNet.measured}
    found = trained.networks("loss", "last", setup.device)
    cases = (Case(each, data.train[train][0], data.test[train], unknown, layers, 10_000) for each in found)
    return Found(cases, data.digests)


def _resnet(train: str, seeds: Sequence[int], setup: Setup) -> Found:
    """The residual networks of table 1; where its study has kept networks of these seeds, they are those."""
    data = colour.read(**({"train": 600, "test": 200} if setup.quick else {}), device=setup.device)
    widths = (8, 16, 32) if setup.quick else resnet.WIDTHS
    networks = [ResNet(widths, initialisation="glorot", seed=seed) for seed in seeds]
    recipe = Recipe(epochs=3) if setup.quick else Recipe()
    group = resnet.group(train, networks, *data.train[train], data.digests[f"{train} train"], recipe)
    (trained,) = train_many([group], device=setup.device, folder=setup.folder)

    def unknown(known: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        half = replace(data, test={**data.test, train: (known, labels)})
        return _default(colour.inputs(train, half))

    layers = {name: Reduce(max_dim=16 if setup.quick else 512) for name in ResNet.measured}
    test = (unit(data.test[train][0]), data.test[train][1])
    found = trained.networks("loss", "last", setup.device)
    cases = (Case(each, unit(data.train[train][0]), test, unknown, layers, resnet.BATCH) for each in found)
    return Found(cases, data.digests)


def _default(inputs: Inputs) -> dict[str, Tensor]:
    return {ood: x for (ood, _), x in inputs.of(DEFAULT).unknown.items()}


def _large(prepare: Callable[[bool], large.Task], seeds: Sequence[int], setup: Setup) -> Found:
    """Networks that `train_classifiers` trains."""
    task = prepare(setup.quick)
    return Found(task.cases(seeds, setup.device, setup.folder), task.digests)


def _published(name: str, source: str, layers: str, split: Split) -> Family:
    """Residual networks that others have trained."""
    kind, known = name.rsplit("-", 1)
    classes = int(known.removeprefix("cifar"))
    stem = "conv" if kind == "early-norm" else "bn1"
    prepare = partial(large.public_networks, name=name, classes=classes, source=source, stem=stem)
    words = f"residual networks of {layers} layers, published by github.com/{source}"
    shown = "public" if kind == "public" else "public, norms first"
    return Family(f"CIFAR{classes}, {shown}", words, split, False, partial(_large, prepare))


_PERCEPTRON = "perceptron of table 1 (4 × 100 units, Adam, stopped early)"
_RESIDUAL = "residual network of table 1 (3 blocks, Adam, stopped early)"
FAMILIES: dict[str, Family] = {
    "digits": Family("digits 0-7", "3 convolutions and 2 full layers, Adam, 30 epochs", "development", False, _digits),
    "fcnet-mnist": Family("MNIST", _PERCEPTRON, "development", False, partial(_fcnet, "MNIST")),
    "fcnet-fashionmnist": Family("FashionMNIST", _PERCEPTRON, "development", False, partial(_fcnet, "FashionMNIST")),
    "resnet-svhn": Family("SVHN", _RESIDUAL, "development", True, partial(_resnet, "SVHN")),
    "resnet-cifar10": Family("CIFAR10", _RESIDUAL, "development", True, partial(_resnet, "CIFAR10")),
    "resnet18-cifar10": Family(
        "CIFAR10, ResNet-18", f"ResNet-18, {large.SGD}", "development", True, partial(_large, large.resnet18_cifar10)
    ),
    "public-cifar10": _published("public-cifar10", "akamaster/pytorch_resnet_cifar10", "20, 32 and 44", "development"),
    "early-norm-cifar100": _published("early-norm-cifar100", "joshua5301/SAQ-personal", "20", "development"),
    "public-cifar100": _published("public-cifar100", "karanchahal/distiller", "20, 26 and 32", "development"),
    "narrow-cifar100": Family(
        "CIFAR100, narrow ResNet-18",
        f"ResNet-18 with 16 to 128 channels, {large.SGD_SHORT}",
        "development",
        False,
        partial(_large, large.narrow_cifar100),
    ),
    "resnet18-cifar100": Family(
        "CIFAR100, ResNet-18", f"ResNet-18, {large.SGD}", "test", True, partial(_large, large.resnet18_cifar100)
    ),
    "vit-cifar10": Family(
        "CIFAR10, transformer",
        f"vision transformer of 9 blocks and 192 dimensions, {large.ADAM_IMAGES}",
        "test",
        True,
        partial(_large, large.vit_cifar10),
    ),
    "narrow-vit-cifar10": Family(
        "CIFAR10, narrow transformer",
        f"vision transformer of 4 blocks and 96 dimensions, {large.ADAM_SHORT}",
        "test",
        False,
        partial(_large, large.narrow_vit_cifar10),
    ),
    "text-clinc150": Family(
        "CLINC150",
        f"text transformer of 4 blocks and 128 dimensions, {large.ADAM_TEXT}",
        "test",
        False,
        partial(_large, large.text_clinc150),
    ),
}


def choose(names: Sequence[str] | None, *, gpu: bool) -> tuple[list[str], list[str]]:
    """The families to run, and those left out because there is no GPU.

    Args:
        names: those asked for; None asks for all of the development split.
        gpu: whether there is one, or none is needed.

    Example:
        >>> choose(["digits", "resnet-svhn"], gpu=False)
        (['digits'], ['resnet-svhn'])
    """
    if names is None:
        names = [name for name, family in FAMILIES.items() if family.split == "development"]
    wrong = [name for name in names if name not in FAMILIES]
    if wrong:
        raise ValueError(f"there is no family {wrong[0]!r}; there are: {', '.join(FAMILIES)}.")
    can = [name for name in names if gpu or not FAMILIES[name].gpu]
    return can, [name for name in names if name not in can]
