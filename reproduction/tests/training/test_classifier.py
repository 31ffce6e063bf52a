"""Training of single classifiers: that they learn, crops and flips, and networks that are found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from reproduction.nets import TextTransformer
from reproduction.training.classifier import BORDER, ClassifierRecipe, augmented, train_classifiers

RECIPE = ClassifierRecipe(epochs=6, batch_size=20, learning_rate=0.05)


def bars(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images with a bright bar, upright or lying, anywhere."""
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 80, (n, 1, 12, 12), generator=random, dtype=torch.uint8)
    labels = torch.arange(n) % 2
    for image, label, place in zip(images, labels, torch.randint(12, (n,), generator=random), strict=True):
        (image[0] if label else image[0].T)[place] = 255
    return images, labels


def convolutions(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 8, 5), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(8, 2))


def accuracy(network: nn.Module, x: Tensor, labels: Tensor) -> float:
    return float((network(x).argmax(1) == labels).float().mean())


def train_classifier(
    network: nn.Module, x: Tensor, y: Tensor, recipe: ClassifierRecipe, *, seed: int = 0, path: Path | None = None, **of
) -> nn.Module:
    return train_classifiers([network], x, y, recipe, seeds=[seed], paths=None if path is None else [path], **of)[0]


def test_images_are_learnt_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "work" / "bars-0.safetensors"
    images, labels = bars(200, seed=0)
    about = {"data": "a digest"}
    network = train_classifier(convolutions(), images, labels, RECIPE, path=path, about=about)
    unseen, truth = bars(200, seed=1)
    assert accuracy(network, unseen.float() / 255, truth) > 0.9 and not network.training
    again = train_classifier(convolutions(), images, labels, RECIPE)  # the same seed
    found = train_classifier(convolutions(1), images, labels, RECIPE, path=path, about=about)
    other = train_classifier(convolutions(), images, labels, RECIPE, seed=1)
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]) and torch.equal(weight, found.state_dict()[name])
    assert not torch.equal(network.state_dict()["0.weight"], other.state_dict()["0.weight"])
    for recipe, what in ((replace(RECIPE, epochs=7), about), (RECIPE, {"data": "another"})):
        with pytest.raises(ValueError, match=r"bars-0.safetensors' holds a network trained differently"):
            train_classifier(convolutions(), images, labels, recipe, path=path, about=what)


def test_networks_side_by_side_are_those_trained_alone(tmp_path: Path) -> None:
    images, labels = bars(100, seed=0)
    recipe = replace(RECIPE, epochs=2)
    paths = [tmp_path / f"bars-{seed}.safetensors" for seed in (0, 1)]
    alone = [train_classifier(convolutions(seed), images, labels, recipe, seed=seed) for seed in (0, 1)]
    train_classifier(convolutions(1), images, labels, recipe, seed=1, path=paths[1])
    both = train_classifiers([convolutions(0), convolutions(0)], images, labels, recipe, seeds=[0, 1], paths=paths)
    for network, expected in zip(both, alone, strict=True):
        assert not network.training
        for name, weight in network.state_dict().items():
            assert torch.equal(weight, expected.state_dict()[name])


def test_texts_are_learnt() -> None:
    random = torch.Generator().manual_seed(0)
    words = torch.randint(1, 9, (200, 6), generator=random)
    labels = (words[:, :3] == 4).any(1).long()
    recipe = replace(RECIPE, epochs=15, optimiser="adamw", learning_rate=3e-3, warm_up=0.1)
    network = train_classifier(TextTransformer(9, 6, 2, width=32, depth=1), words, labels, recipe)
    assert accuracy(network, words, labels) > 0.9


def test_crops_and_flips_are_those_of_the_padded_image() -> None:
    images = torch.arange(1, 1 + 40 * 2 * 30, dtype=torch.float32).view(40, 2, 5, 6)
    found = augmented(images, torch.Generator().manual_seed(0))
    moves = set()
    for image, changed in zip(images, found, strict=True):
        padded = nn.functional.pad(image, (BORDER,) * 4)
        places = [
            (down, right, mirrored)
            for down in range(2 * BORDER + 1)
            for right in range(2 * BORDER + 1)
            for mirrored in (False, True)
            if torch.equal(_cut(padded, down, right, mirrored), changed)
        ]
        assert len(places) == 1
        moves.update(places)
    assert len(moves) > 25 and {mirrored for _, _, mirrored in moves} == {False, True}


def _cut(padded: Tensor, down: int, right: int, mirrored: bool) -> Tensor:
    cut = padded[:, down : down + 5, right : right + 6]
    return cut.flip(2) if mirrored else cut


def test_the_global_random_state_is_left_alone() -> None:
    images, labels = bars(40, seed=0)
    network = convolutions()
    before = torch.get_rng_state()
    train_classifier(network, images, labels, replace(RECIPE, epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [(19, 19, "at least 20 inputs, with as many labels, got 19 and 19"), (30, 29, "got 30 and 29")],
)
def test_what_cannot_be_trained_on(images: int, labels: int, message: str) -> None:
    x, y = bars(30, seed=0)
    with pytest.raises(ValueError, match=message):
        train_classifier(convolutions(), x[:images], y[:labels], RECIPE)


def test_weights_that_are_not_finite_raise() -> None:
    images, labels = bars(40, seed=0)
    with pytest.raises(RuntimeError, match="Sequential of seed 3 diverged: lower the learning rate"):
        train_classifier(convolutions(), images, labels, replace(RECIPE, learning_rate=1e38), seed=3)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch_size": 0}, {"warm_up": 1.0}])
def test_wrong_recipes(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"epochs and batch_size are at least 1, warm_up is in \[0, 1\)"):
        ClassifierRecipe(**wrong)
