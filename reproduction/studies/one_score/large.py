"""Families whose networks are larger: residual networks and transformers, on photographs and on text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from hidden_uncertainty import Reduce

from ...datasets.images import Images, cifar10, cifar100, mnist, resized, svhn, unit
from ...datasets.intents import clinc150
from ...nets import public
from ...nets.resnet18 import ResNet18
from ...nets.transformer import TextTransformer, VisionTransformer
from ...training.classifier import ClassifierRecipe, train_classifiers
from .measure import Case
from .near import CHANGES

SGD = "SGD at 0.1 with a cosine, 100 epochs, crops and flips"  # OpenOOD's recipe
SGD_SHORT = "SGD at 0.1 with a cosine, 30 epochs, crops and flips, in bfloat16"  # what a CPU trains in half an hour
ADAM_IMAGES = "AdamW at 1e-3 with a cosine, 100 epochs in batches of 256, crops and flips"
ADAM_SHORT = "AdamW at 1e-3 with a cosine, 20 epochs, crops and flips, in bfloat16"
ADAM_TEXT = "AdamW at 1e-3 with a cosine, 30 epochs"
_IMAGES = ClassifierRecipe()
_SHORT = replace(_IMAGES, epochs=30, bfloat16=True)
_TRANSFORMER = ClassifierRecipe(100, 256, "adamw", 1e-3, 0.05, warm_up=0.05)
_TRANSFORMER_SHORT = replace(_TRANSFORMER, epochs=20, batch_size=128, bfloat16=True)
_TEXT = ClassifierRecipe(30, 128, "adamw", 1e-3, 0.05, warm_up=0.1, augment=False)
_QUICK_TRAIN, _QUICK_TEST = 600, 200


@dataclass(frozen=True, eq=False)
class Task:
    """What networks of a family are trained on and asked.

    Args:
        name: of the family.
        network: an untrained one of a seed.
        recipe: how it is trained; None for a network that is trained already.
        train: inputs and labels; images are bytes.
        test: inputs and labels, in the scale of the network.
        unknown: inputs by set, in the scale of the network.
        measured: layers of the paper's setting.
        digests: of what was read.
    """

    name: str
    network: Callable[[int], nn.Module]
    recipe: ClassifierRecipe | None
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    unknown: Mapping[str, Tensor]
    measured: Mapping[str, Reduce]
    digests: Mapping[str, str]

    def cases(self, seeds: Sequence[int], device: torch.device, folder: str | PathLike[str] | None) -> Iterator[Case]:
        """Train or load the networks of all seeds."""
        paths = None if folder is None else [Path(folder) / f"{self.name}-{seed}.safetensors" for seed in seeds]
        x, y = (part.to(device) for part in self.train)
        about = {"data": self.digests[next(iter(self.digests))], "inputs": str(len(x))}
        networks = [self.network(seed).to(device) for seed in seeds]
        if self.recipe is not None:
            train_classifiers(networks, x, y, self.recipe, seeds=seeds, paths=paths, about=about)
        unknown = {name: part.to(device) for name, part in self.unknown.items()}
        test = (self.test[0].to(device), self.test[1].to(device))
        inputs = unit(x) if x.dtype == torch.uint8 else x
        changes = CHANGES if test[0].is_floating_point() else ()  # words are neither rotated nor noisy
        for network in networks:
            yield Case(network, inputs, test, lambda known, labels: unknown, self.measured, 500, changes)


def resnet18_cifar10(quick: bool) -> Task:
    """ResNet-18 on CIFAR10, with CIFAR100 near to it, and SVHN and MNIST far from it."""
    return _photographs("resnet18-cifar10", quick, 10, _residual)


def resnet18_cifar100(quick: bool) -> Task:
    """ResNet-18 on CIFAR100, with CIFAR10 near to it, and SVHN and MNIST far from it."""
    return _photographs("resnet18-cifar100", quick, 100, _residual)


def narrow_cifar100(quick: bool) -> Task:
    """A ResNet-18 with a quarter of the channels on CIFAR100, and the same unknown sets."""
    task = _photographs("narrow-cifar100", quick, 100, _narrow)
    return replace(task, recipe=_short(_SHORT, quick))


def public_networks(quick: bool, *, name: str, classes: int, source: str, stem: str) -> Task:
    """Networks on CIFAR10 or CIFAR100 that others have trained, and the same unknown sets; seeds count their files.

    Args:
        quick: few data.
        name: of the family.
        classes: of the known set.
        source: the repository that published them.
        stem: the layer before the first stage, which the paper's setting reads too.
    """
    task = _photographs(name, quick, classes, _narrow)
    how = task.measured["layer4"]
    places = ("layer3",) if quick else (stem, "layer1", "layer2", "layer3")

    def network(seed: int) -> nn.Module:
        return public.load(public.FILES[source][seed])

    return replace(task, network=network, recipe=None, measured=dict.fromkeys(places, how))


def vit_cifar10(quick: bool) -> Task:
    """A small vision transformer on CIFAR10, with CIFAR100 near to it, and SVHN and MNIST far from it."""
    task = _photographs("vit-cifar10", quick, 10, _transformer)
    return replace(task, recipe=_short(_TRANSFORMER, quick))


def narrow_vit_cifar10(quick: bool) -> Task:
    """A vision transformer of four narrow blocks on CIFAR10, and the same unknown sets."""
    task = _photographs("narrow-vit-cifar10", quick, 10, _narrow_transformer)
    return replace(task, recipe=_short(_TRANSFORMER_SHORT, quick))


def text_clinc150(quick: bool) -> Task:
    """A small text transformer on the intents of CLINC150; queries out of their scope are unknown."""
    data = clinc150()
    width, depth = (16, 2) if quick else (128, 4)
    classes = len(data.intents)

    def network(seed: int) -> nn.Module:
        return TextTransformer(len(data.words), data.length, classes, width=width, depth=depth, seed=seed)

    some, few = (_QUICK_TRAIN, _QUICK_TEST) if quick else (None, None)
    train, test = (tuple(part[:count] for part in data[name]) for name, count in (("train", some), ("test", few)))
    blocks = {f"blocks.{i}": Reduce("tokens") for i in range(depth)}
    return Task(
        "text-clinc150",
        network,
        _short(_TEXT, quick),
        (train[0], train[1]),
        (test[0], test[1]),
        {"out of scope": data["oos_test"][0][:few]},
        blocks,
        {"CLINC150": data.digest},
    )


def _photographs(name: str, quick: bool, classes: int, build: Callable[..., nn.Module]) -> Task:
    """CIFAR10 or CIFAR100 as the known set, and the other one as what is near to it."""
    known, near = (cifar10, cifar100) if classes == 10 else (cifar100, cifar10)
    names = ("CIFAR10", "CIFAR100") if classes == 10 else ("CIFAR100", "CIFAR10")
    train, test = known("train"), known("test")
    away = {names[1]: near("test"), "SVHN": svhn("test"), "MNIST": mnist("test")}
    some, few = (_QUICK_TRAIN, _QUICK_TEST) if quick else (None, None)
    assert train.labels is not None and test.labels is not None
    pixels = unit(train.images[:some])
    mean, std = (tuple(getattr(pixels, of)((0, 2, 3)).tolist()) for of in ("mean", "std"))

    def network(seed: int) -> nn.Module:
        return build(classes, mean, std, quick, seed)

    stages = ("layer4",) if quick else ("layer1", "layer2", "layer3", "layer4")
    blocks = {_transformer: 9, _narrow_transformer: 4}.get(build)
    of_paper = stages if blocks is None else _places(2 if quick else blocks)
    return Task(
        name,
        network,
        _short(_IMAGES, quick),
        (train.images[:some], train.labels[:some]),
        (unit(test.images[:few]), test.labels[:few]),
        {ood: _colour(images, few) for ood, images in away.items()},
        {layer: Reduce(max_dim=16 if quick else 512) for layer in of_paper},
        {f"{names[0]} train": train.digest, f"{names[0]} test": test.digest}
        | {f"{ood} test": images.digest for ood, images in away.items()},
    )


def _residual(classes: int, mean: tuple[float, ...], std: tuple[float, ...], quick: bool, seed: int) -> nn.Module:
    return ResNet18(classes, width=4 if quick else 64, mean=mean, std=std, seed=seed)


def _narrow(classes: int, mean: tuple[float, ...], std: tuple[float, ...], quick: bool, seed: int) -> nn.Module:
    return ResNet18(classes, width=4 if quick else 16, mean=mean, std=std, seed=seed)


def _transformer(classes: int, mean: tuple[float, ...], std: tuple[float, ...], quick: bool, seed: int) -> nn.Module:
    width, depth = (16, 2) if quick else (192, 9)
    return VisionTransformer(classes, width=width, depth=depth, mean=mean, std=std, seed=seed)


def _narrow_transformer(
    classes: int, mean: tuple[float, ...], std: tuple[float, ...], quick: bool, seed: int
) -> nn.Module:
    width, depth = (16, 2) if quick else (96, 4)
    return VisionTransformer(classes, width=width, depth=depth, mean=mean, std=std, seed=seed)


def _places(depth: int) -> list[str]:
    """Up to four blocks, evenly spread, the last one among them."""
    count = min(4, depth)
    return [f"blocks.{(i + 1) * depth // count - 1}" for i in range(count)]


def _colour(images: Images, count: int | None) -> Tensor:
    """32 × 32 pixels of three channels, in [0, 1]."""
    some = images.images[:count]
    some = unit(some) if some.shape[-1] == 32 else resized(some, 32)
    return some.expand(-1, 3, -1, -1)


def _short(recipe: ClassifierRecipe, quick: bool) -> ClassifierRecipe:
    """The recipe, or a rough version for few data."""
    return replace(recipe, epochs=5, batch_size=32, learning_rate=recipe.learning_rate / 4) if quick else recipe
