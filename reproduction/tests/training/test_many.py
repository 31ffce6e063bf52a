"""Many classifiers at once against torch's own modules and optimisers, one by one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reproduction.nets.fcnet import FCNet
from reproduction.training.lane import Data, Recipe
from reproduction.training.many import Group, Trained, train_many
from reproduction.training.watch import Watch


def blobs(n: int = 90, held: int = 40, *, seed: int = 0) -> Data:
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n + held,), generator=random)
    images = torch.rand(n + held, 1, 3, 3, generator=random)
    images[torch.arange(n + held), 0, labels, labels] += 0.4
    return Data(images[:n], labels[:n], images[n:], labels[n:])


def build(count: int = 3, **options: Any) -> list[FCNet]:
    return [FCNet(9, 6, 3, seed=seed, **options) for seed in range(count)]


class Conv(nn.Module):
    """With a batch norm, so that buffers matter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Conv2d(1, 4, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def alone(network: nn.Module, data: Data, recipe: Recipe, seed: int) -> dict[tuple[str, str], dict[str, Tensor]]:
    """One network by torch's own loop, stopped by each criterion in turn."""
    kind = torch.optim.AdamW if recipe.decay == "decoupled" else torch.optim.Adam
    found = {}
    for criterion in ("loss", "accuracy"):
        net = copy.deepcopy(network).train()
        optimiser = kind(net.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
        random = torch.Generator().manual_seed(seed)
        lowest, since = float("inf"), 0
        for _ in range(recipe.epochs):
            order = torch.randperm(len(data.images), generator=random)
            for rows in order.split(recipe.batch_size):
                if len(rows) < recipe.batch_size:
                    continue
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(data.images[rows]), data.labels[rows]).backward()
                optimiser.step()
            net.eval()
            with torch.no_grad():
                logits = net(data.held_images)
            net.train()
            value = float(nn.functional.cross_entropy(logits, data.held_labels))
            if criterion == "accuracy":
                value = -float((logits.argmax(1) == data.held_labels).float().mean())
            state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            found[criterion, "last"] = state
            since += 1
            if value < lowest:
                lowest, since, found[criterion, "best"] = value, 0, state
            if since == recipe.patience:
                break
    return found


@pytest.mark.parametrize("decay", ["gradient", "decoupled"])
@pytest.mark.parametrize("kind", [FCNet, Conv])
def test_each_network_comes_out_as_if_trained_alone(decay: Any, kind: type) -> None:
    data = blobs()
    recipe = Recipe(epochs=12, patience=2, batch_size=16, learning_rate=0.03, weight_decay=0.01, decay=decay)
    networks = build() if kind is FCNet else [Conv(seed) for seed in range(2)]
    trained = train_many([Group("toy", networks, data, recipe)], device="cpu")[0]
    stopped = set()
    for i, network in enumerate(networks):
        expected = alone(network, data, recipe, i)
        for key, state in expected.items():
            for name, value in state.items():
                if not name.endswith("num_batches_tracked"):
                    torch.testing.assert_close(trained.states[i][key][name], value, rtol=1e-3, atol=2e-5)  # type: ignore[index]
        stopped.add(trained.epochs[i]["loss"])
    assert min(stopped) < 12  # early stopping was at work


def test_modules_are_new_and_compute_what_the_stack_did() -> None:
    data, networks = blobs(), build(2)
    before = copy.deepcopy(networks[0].state_dict())
    trained = train_many([Group("toy", networks, data, Recipe(epochs=15, learning_rate=0.02))], device="cpu")[0]
    assert all(torch.equal(before[name], value) for name, value in networks[0].state_dict().items())
    after = trained.networks()
    assert not after[0].training and after[0] is not networks[0]
    assert nn.functional.cross_entropy(after[0](data.held_images), data.held_labels) < nn.functional.cross_entropy(
        networks[0](data.held_images), data.held_labels
    )
    with pytest.raises(ValueError, match="no weights by 'accuracy'"):
        Trained(trained.group, [{("loss", "best"): before}], trained.epochs).networks("accuracy")


def test_dropout_is_at_work_and_repeats_by_seed() -> None:
    def weights(dropout: float) -> Tensor:
        group = Group("toy", build(2, dropout=dropout), blobs(), Recipe(epochs=2))
        return train_many([group], device="cpu")[0].states[0]["loss", "last"]["1.weight"]

    assert torch.equal(weights(0.5), weights(0.5)) and not torch.equal(weights(0.5), weights(0.0))


class Dropping(Conv):
    """With dropout, and a penalty of its own in training."""

    def __init__(self, seed: int, dropout: float = 0.0, weight: float = 0.0) -> None:
        super().__init__(seed)
        self.body.insert(3, nn.Dropout(dropout))
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if self.training and self.weight:
            self.penalty = self.weight * logits.square().mean()
        return logits


def test_dropout_of_any_module_repeats_by_seed_and_leaves_the_global_generator_alone() -> None:
    def weights(**options: float) -> Tensor:
        group = Group("toy", [Dropping(3, **options)], blobs(), Recipe(epochs=2))
        network = train_many([group], device="cpu")[0].networks("loss", "last")[0]
        assert isinstance(network.body[3], nn.Dropout)
        return network.body[0].weight

    before = torch.random.get_rng_state()
    assert torch.equal(weights(dropout=0.5), weights(dropout=0.5))
    assert not torch.equal(weights(dropout=0.5), weights(dropout=0.0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_penalty_that_a_network_leaves_is_added_to_its_loss() -> None:
    def logits(weight: float) -> Tensor:
        data = blobs()
        group = Group("toy", [Dropping(3, weight=weight)], data, Recipe(epochs=20, learning_rate=0.03))
        network = train_many([group], device="cpu")[0].networks("loss", "last")[0]
        assert not hasattr(network, "penalty")
        return network(data.held_images).square().mean()

    assert logits(100.0) < 0.1 * logits(0.0)


def test_what_is_finished_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, recipe = blobs(), Recipe(epochs=2)
    first = train_many([Group("toy", build(2), data, recipe)], device="cpu", folder=tmp_path)[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy-0.safetensors", "toy-1.safetensors"]
    again = train_many([Group("toy", build(3), data, recipe)], device="cpu", folder=tmp_path)[0]
    assert again.epochs[0] == first.epochs[0] and len(again.networks()) == 3
    for key, state in first.states[1].items():
        assert all(torch.equal(again.states[1][key][name], value) for name, value in state.items())
    with pytest.raises(ValueError, match="trained differently"):
        train_many([Group("toy", build(2), data, Recipe(epochs=3))], device="cpu", folder=tmp_path)
    with pytest.raises(ValueError, match=r"toy-0.safetensors' holds a network of another shape"):
        train_many([Group("toy", [FCNet(9, 5, 3)], data, recipe)], device="cpu", folder=tmp_path)
    with pytest.raises(ValueError, match="two networks would have the file 'other-0'"):
        train_many([Group("other", build(2), data, recipe)] * 2, device="cpu", folder=tmp_path)


def test_bytes_are_images_from_zero_to_one() -> None:
    data = blobs()
    whole = (data.images * 100).byte(), (data.held_images * 100).byte()
    groups = [
        Group(name, build(2), Data(held[0], data.labels, held[1], data.held_labels), Recipe(epochs=2))
        for name, held in (("bytes", whole), ("floats", (whole[0] / 255, whole[1] / 255)))
    ]
    one, other = train_many(groups, device="cpu")
    assert torch.equal(one.states[0]["loss", "last"]["1.weight"], other.states[0]["loss", "last"]["1.weight"])


def test_a_network_that_diverges_stops_without_touching_the_others() -> None:
    live = torch.zeros(2, 1)
    watch = Watch([live], patience=2, criteria=("loss",))
    for epoch, loss in enumerate([3.0, 2.0, 1.0, 0.5]):
        live.fill_(epoch)
        watch.update({"loss": torch.tensor([float("nan"), loss])})
    assert watch.epochs["loss"].tolist() == [2, 4] and not watch.done
    assert watch.kept["loss", "last"][0].flatten().tolist() == [1.0, 3.0]


@pytest.mark.parametrize("kind", [FCNet, Conv])
def test_networks_that_diverge_are_an_error_after_the_others_are_kept(kind: type, tmp_path: Path) -> None:
    data, recipe = blobs(), Recipe(epochs=5, patience=2)

    def networks() -> list[nn.Module]:
        return list(build(2)) if kind is FCNet else [Conv(seed) for seed in range(2)]

    broken = networks()
    with torch.no_grad():
        next(broken[0].parameters()).fill_(torch.nan)
    with pytest.raises(RuntimeError, match=r"1 of 2 networks diverged.*: toy-0\. Lower learning_rate"):
        train_many([Group("toy", broken, data, recipe)], device="cpu", folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy-1.safetensors"]
    again = train_many([Group("toy", networks(), data, recipe)], device="cpu", folder=tmp_path)[0]
    assert all(p.isfinite().all() for network in again.networks() for p in network.parameters())


class Halved(FCNet):
    """Computes something else than its layers say."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 2)


@pytest.mark.parametrize("other", [FCNet(9, 6, 3, dropout=0.5, seed=1), Halved(9, 6, 3, seed=1)])
def test_perceptrons_that_differ_are_trained_each_as_it_is(other: FCNet) -> None:
    recipe = Recipe(epochs=2)
    mixed, plain = train_many(
        [Group("mixed", [FCNet(9, 6, 3), other], blobs(), recipe), Group("plain", build(2), blobs(), recipe)],
        device="cpu",
    )
    for i, same in enumerate((True, False)):
        one, two = (each.states[i]["loss", "last"]["1.weight"] for each in (mixed, plain))
        assert torch.allclose(one, two, atol=1e-6) == same


def test_labels_and_criteria_are_checked() -> None:
    data = blobs()
    short = Data(data.images, data.labels[:80], data.held_images, data.held_labels)
    with pytest.raises(ValueError, match="90 images with 80 labels"):
        train_many([Group("toy", build(1), short)], device="cpu")
    with pytest.raises(ValueError, match=r"must be some of .*, got \('losses',\)"):
        train_many([Group("toy", build(1), data, criteria=("losses",))], device="cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("networks", "data", "match"),
    [
        ([], blobs(), "no networks"),
        (build(1) + build(1), blobs(), "needs its own `seed`"),
        ([FCNet(9, 6, 3), FCNet(9, 5, 3, seed=1)], blobs(), "2 shapes"),
        (build(1), blobs(held=0), "0 for early stopping"),
    ],
)
def test_errors_say_what_is_wrong(networks: list[nn.Module], data: Data, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        train_many([Group("toy", networks, data)], device="cpu")


@pytest.mark.parametrize("options", [{"epochs": 0}, {"patience": 0}, {"batch_size": 0}, {"decay": "none"}])
def test_recipes_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|decay must be"):
        Recipe(**options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_steps_are_the_steps_of_a_cpu() -> None:
    recipe = Recipe(epochs=3, batch_size=16, learning_rate=0.01)
    there, here = (
        train_many([Group("toy", build(), blobs(), recipe)], device=device)[0].states for device in ("cuda", "cpu")
    )
    for one, other in zip(there, here, strict=True):
        for name, value in other["loss", "last"].items():
            torch.testing.assert_close(one["loss", "last"][name], value, rtol=1e-3, atol=1e-4)
