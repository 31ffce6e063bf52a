"""Training dense networks: losses, views of images, steps against a plain loop, and what is found again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reproduction.nets.deeplab import DeepLab
from reproduction.nets.efficientnet import EfficientNetLite0
from reproduction.nets.monodepth import MonoDepth
from reproduction.training.dense import DenseRecipe, class_loss, depth_loss, train_dense
from reproduction.training.dense.augment import augment
from reproduction.training.dense.lane import DenseLane

PLAIN = DenseRecipe(epochs=3, batch_size=2, flip=False)


class Tiny(nn.Module):
    """Two convolutions with a norm between them."""

    def __init__(self, seed: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Conv2d(3, 4, 3, padding=1, bias=False),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Conv2d(4, 3, 1),
            )

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (7, 3, 8, 12), dtype=torch.uint8, generator=generator)
    classes = images.argmax(1).byte()
    classes[:, 0, 0] = 255
    return images, classes


# Losses


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_class_loss_is_the_mean_of_valid_pixels(share: float) -> None:
    logits, classes = torch.randn(2, 4, 5, 6), torch.randint(4, (2, 5, 6))
    classes[torch.rand(2, 5, 6) < share] = 255
    torch.testing.assert_close(class_loss(logits, classes.byte()), F.cross_entropy(logits, classes, ignore_index=255))


def test_losses_of_nothing_are_zero_with_finite_gradients() -> None:
    logits = torch.randn(2, 4, 5, 6, requires_grad=True)
    class_loss(logits, torch.full((2, 5, 6), 255)).backward()
    assert logits.grad is not None and not logits.grad.any()
    depth = torch.rand(2, 1, 5, 6, requires_grad=True)
    loss = depth_loss(depth, torch.full((2, 5, 6), math.nan))
    loss.backward()
    assert loss < 1e-3 and depth.grad is not None and not depth.grad.any()


def test_depth_loss_against_its_formula() -> None:
    random = np.random.default_rng(0)
    depth, target = random.uniform(0.5, 9, (2, 2, 5, 6))
    target[0, 1:3] = np.nan
    expected = []
    for one, other in zip(depth, target, strict=True):
        gap = np.log(one)[~np.isnan(other)] - np.log(other)[~np.isnan(other)]
        expected.append(math.sqrt((gap**2).mean() - gap.mean() ** 2 / 2))
    got = torch.tensor(depth[:, None], requires_grad=True)
    loss = depth_loss(got, torch.tensor(target))
    assert float(loss.detach()) == pytest.approx(np.mean(expected), rel=1e-6)
    loss.backward()
    assert got.grad is not None and bool(got.grad.isfinite().all()) and not got.grad[0, 0, 1:3].any()


# Views


def view(images: Tensor, targets: Tensor, seed: int = 0, **options: Any) -> tuple[Tensor, Tensor]:
    chosen = {"crop": None, "scale": (1.0, 1.0), "flip": False, "colour": 0.0, "distances": False} | options
    return augment(images, targets, generator=torch.Generator().manual_seed(seed), **chosen)


def ramps(count: int = 40, height: int = 16, width: int = 24) -> tuple[Tensor, Tensor]:
    """Images whose colours say where their pixels are, with the first of them as target."""
    x = torch.linspace(0.1, 0.9, width).expand(count, height, width)
    y = torch.linspace(0.1, 0.9, height)[:, None].expand(count, height, width)
    return torch.stack([x, y, (x + y) / 2], 1), x


def test_nothing_changes_by_default() -> None:
    images = torch.rand(3, 3, 5, 7)
    classes = torch.randint(256, (3, 5, 7), dtype=torch.uint8)
    same, labels = view(images, classes)
    torch.testing.assert_close(same, images, atol=1e-5, rtol=0)
    assert torch.equal(labels, classes)


def test_every_other_image_is_mirrored() -> None:
    images, classes = torch.rand(60, 3, 5, 7), torch.randint(256, (60, 5, 7), dtype=torch.uint8)
    views, labels = view(images, classes, flip=True)
    mirrored = (labels == classes.flip(2)).all((1, 2))
    assert bool((mirrored | (labels == classes).all((1, 2))).all()) and 15 < int(mirrored.sum()) < 45
    expected = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
    torch.testing.assert_close(views, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [(1.0, 2.0), (0.5, 1.0)], ids=str)
@pytest.mark.parametrize("crop", [None, (8, 12)])
def test_targets_follow_images(scale: tuple[float, float], crop: tuple[int, int] | None) -> None:
    images, numbers = ramps()
    views, seen = view(images, numbers, scale=scale, crop=crop, flip=True)
    _, row = view(images, images[:, 1], scale=scale, crop=crop, flip=True)
    size = crop or (16, 24)
    assert views.shape == (40, 3, *size) and seen.shape == (40, *size)
    known = ~seen.isnan()
    # Away from the image's rim, where colours mix with the grey outside; half a pixel is as near as nearest comes.
    inner = known & (seen > 0.2) & (seen < 0.8) & (row > 0.2) & (row < 0.8)
    assert int(inner.sum()) > 1000
    assert float((views[:, 0] - seen)[inner].abs().max()) < 0.8 / 23
    if scale[0] >= 1:
        assert bool(known.all())
    elif crop is None:
        assert 0.3 < float(known.float().mean()) < 0.9
        outside = F.max_pool2d(known.float()[:, None], 3, 1, 1)[:, 0] == 0
        torch.testing.assert_close(views.movedim(1, -1)[outside], torch.full((int(outside.sum()), 3), 0.5))


def test_outside_has_no_class_and_half_sizes_fit() -> None:
    images, classes = torch.rand(20, 3, 16, 24), torch.ones(20, 8, 12, dtype=torch.uint8)
    _, labels = view(images, classes, scale=(0.5, 0.6), crop=(12, 20))
    assert labels.shape == (20, 6, 10) and labels.dtype == torch.uint8
    assert labels.unique().tolist() == [1, 255]


def test_distances_shrink_as_things_grow() -> None:
    images, _ = ramps()
    target = torch.full((40, 16, 24), 6.0)
    _, seen = view(images, target, scale=(1.0, 3.0), distances=True)
    each = seen.flatten(1)
    assert bool((each == each[:, :1]).all()) and 2 <= float(each.min()) < 3 < 5 < float(each.max()) <= 6
    _, plain = view(images, target, scale=(1.0, 3.0))
    assert plain.unique().tolist() == [6.0]


def test_colours_change_within_bounds() -> None:
    images = torch.full((50, 3, 4, 4), 0.4)
    views, _ = view(images, torch.zeros(50, 4, 4), colour=0.2)
    assert 0.4 * 0.8**2 <= float(views.min()) < 0.35 and 0.45 < float(views.max()) <= 0.4 * 1.2**2 + 1e-5


# Training


@pytest.mark.parametrize("schedule", ["cosine", "poly"])
def test_rates(schedule: Any) -> None:
    rates = DenseRecipe(epochs=10, learning_rate=2.0, warm_up=0.1, schedule=schedule).rates(10)
    assert rates[:10].tolist() == pytest.approx([0.2 * (i + 1) for i in range(10)])
    t = np.arange(90) / 90
    expected = 1 + np.cos(math.pi * t) if schedule == "cosine" else 2 * (1 - t) ** 0.9
    assert rates[10:].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_steps_against_a_plain_loop(optimiser: Any, data: tuple[Tensor, Tensor]) -> None:
    images, classes = data
    recipe = replace(PLAIN, optimiser=optimiser, learning_rate=0.05, weight_decay=0.1)
    (trained,) = train_dense([Tiny(3)], images, classes, class_loss, recipe, device="cpu")
    network = Tiny(3).train()
    kernels = [p for p in network.parameters() if p.dim() > 1]
    others = [p for p in network.parameters() if p.dim() == 1]
    groups = [{"params": kernels, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    plain = torch.optim.SGD(groups, momentum=0.9, lr=1.0) if optimiser == "sgd" else torch.optim.AdamW(groups)
    rates, losses = iter(recipe.rates(3).tolist()), []
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        for rows in torch.randperm(7, generator=generator)[:6].view(3, 2):
            rate = next(rates)
            for group in plain.param_groups:
                group["lr"] = rate
            plain.zero_grad()
            loss = F.cross_entropy(network(images[rows] / 255), classes[rows].long(), ignore_index=255)
            loss.backward()
            plain.step()
            losses.append(loss.item())
    for one, other in zip(trained.network.state_dict().values(), network.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert trained.losses == pytest.approx(np.reshape(losses, (3, 3)).mean(1).tolist(), rel=1e-4)


def test_same_seed_same_network_and_nothing_else_changes(data: tuple[Tensor, Tensor]) -> None:
    recipe = replace(PLAIN, flip=True, scale=(0.5, 2.0), crop=(6, 6), colour=0.2)
    given = Tiny(1, dropout=0.3)
    before, state = torch.get_rng_state(), {name: value.clone() for name, value in given.state_dict().items()}
    one, two = train_dense([given, Tiny(2, dropout=0.3)], *data, class_loss, recipe, device="cpu")
    assert torch.equal(torch.get_rng_state(), before) and given.training
    assert all(torch.equal(value, state[name]) for name, value in given.state_dict().items())
    torch.manual_seed(99)
    (again,) = train_dense([Tiny(2, dropout=0.3)], *data, class_loss, recipe, device="cpu")
    assert again.losses == two.losses != one.losses
    for a, b in zip(again.network.parameters(), two.network.parameters(), strict=True):
        assert torch.equal(a, b)
    assert isinstance(two.network.body[3], nn.Dropout)


@pytest.mark.parametrize("kind", ["classes", "depth"])
def test_networks_learn(kind: str) -> None:
    """Bright halves of images: their class, and that they are near."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(100, (8, 3, 32, 32), dtype=torch.uint8, generator=generator)
    images[:4, :, :, :16] += 120
    images[4:, :, :16] += 120
    bright = (images[:, 0].float() > 110).byte()
    recipe = DenseRecipe(epochs=25, batch_size=4, learning_rate=1e-2)
    if kind == "classes":
        network: nn.Module = DeepLab(2, encoder=EfficientNetLite0(dilated=True, width=0.25), width=16)
        targets, loss = F.max_pool2d(bright.float(), 5, 1, 2).byte(), class_loss
    else:
        network = MonoDepth(encoder=EfficientNetLite0(width=0.25))
        targets, loss = 4 - 2 * F.max_pool2d(bright.float(), 5, 1, 2)[:, ::2, ::2], depth_loss  # type: ignore[assignment]
        targets[:, :2, :2] = math.nan
    (trained,) = train_dense([network], images, targets, loss, recipe, device="cpu")
    assert trained.losses[-1] < trained.losses[0] / 2
    with torch.no_grad():
        output = trained.network(images)
    right = output.argmax(1) == targets if kind == "classes" else (output[:, 0] - targets).abs() < 1
    assert float(right.float().mean()) > 0.85


def test_outputs_are_brought_to_the_size_of_targets() -> None:
    images, depth = torch.rand(2, 3, 32, 48), torch.rand(2, 32, 48) + 1
    seen: list[torch.Size] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(output.shape)
        return depth_loss(output, target)

    network = MonoDepth(encoder=EfficientNetLite0(width=0.1))
    train_dense([network], images, depth, loss, replace(PLAIN, epochs=1), device="cpu")
    assert seen == [(2, 1, 32, 48)]


@pytest.mark.parametrize("kind", [DeepLab, MonoDepth])
def test_half_precision_as_on_a_gpu(kind: Any) -> None:
    """The same step in bfloat16 and in float32: about the same loss, and weights stay in float32."""
    images = torch.randint(256, (8, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    network = kind(encoder=EfficientNetLite0(width=0.25))
    targets, loss = (images[:, 0] % 19, class_loss) if kind is DeepLab else (torch.ones(8, 32, 32), depth_loss)
    losses = []
    for autocast in (False, True):
        lane = DenseLane(network, images, targets, loss, replace(PLAIN, epochs=1), record=True)
        lane.autocast = autocast
        losses.append(lane.epoch())
        assert {value.dtype for value in lane.state().values()} == {torch.float32, torch.long}
    # Each layer rounds to 8 bits; errors that are independent add up with the root of their number.
    layers = sum(isinstance(module, nn.Conv2d) for module in network.modules())
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=2**-8 * layers**0.5)


def test_finished_networks_are_found_again(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "folder": tmp_path / "new", "name": "tiny", "about": {"data": "abc"}}
    first = train_dense([Tiny(0)], *data, class_loss, PLAIN, **options)[0]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tiny-0.safetensors"]

    def fail(output: Tensor, target: Tensor) -> Tensor:
        raise AssertionError("trained again")

    fail.__name__ = "class_loss"
    found = train_dense([Tiny(0)], *data, fail, PLAIN, **options)[0]
    assert found.losses == first.losses and found.seconds == first.seconds and not found.network.training
    for one, other in zip(found.network.state_dict().values(), first.network.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    both = train_dense([Tiny(0), Tiny(1)], *data, class_loss, PLAIN, **options)
    assert both[0].losses == first.losses != both[1].losses
    for changed in ({"recipe": replace(PLAIN, epochs=4)}, {"about": {"data": "xyz"}}, {"loss": depth_loss}):
        with pytest.raises(ValueError, match=r"tiny-0.safetensors' holds a network trained differently"):
            train_dense([Tiny(0)], *data, **({"loss": class_loss, "recipe": PLAIN} | options | changed))


def test_a_loss_that_is_not_finite_stops(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"loss of network 0 became nan in epoch 1: lower learning_rate \(=0.001\)"):
        train_dense([Tiny()], *data, lambda y, _: y.sum() * math.nan, PLAIN, device="cpu", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("networks", "images", "targets", "message"),
    [
        ([], torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4), "attribute `seed`"),
        ([nn.Conv2d(3, 1, 1)], torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4), r"got \[None\]"),
        ([Tiny(1), Tiny(1)], torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4), r"got \[1, 1\]"),
        ([Tiny()], torch.rand(2, 3, 4, 4), torch.rand(3, 4, 4), r"got \(2, 3, 4, 4\) and \(3, 4, 4\)"),
        ([Tiny()], torch.rand(0, 3, 4, 4), torch.rand(0, 4, 4), "expected images"),
        ([Tiny()], torch.rand(2, 3, 4, 4), torch.zeros(2, 4, 4).long(), "expected targets of uint8"),
    ],
)
def test_wrong_input(networks: list[nn.Module], images: Tensor, targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_dense(networks, images, targets, class_loss, PLAIN, device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "at least 1"),
        ({"optimiser": "adam"}, "optimiser must be"),
        ({"schedule": "linear"}, "schedule 'cosine' or 'poly'"),
        ({"warm_up": 1.0}, "warm_up"),
        ({"scale": (2.0, 1.0)}, "scale must be"),
        ({"crop": (0, 4)}, "crop must be"),
    ],
)
def test_wrong_recipe(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DenseRecipe(**options)
