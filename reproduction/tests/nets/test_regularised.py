"""Regularised networks, stacked or alone, against a loop written out."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reproduction.nets.fcnet import FCNet
from reproduction.nets.reconstruction import DenseDecoder, ResidualDecoder
from reproduction.nets.regularised import Regularised
from reproduction.nets.resnet import ResNet
from reproduction.training.fcnet_lane import StackLane, stackable
from reproduction.training.lane import Data, Recipe
from reproduction.training.many import Group, train_many
from reproduction.training.module_lane import ModuleLane

RECIPE = Recipe(epochs=6, patience=2, batch_size=16, learning_rate=0.02, weight_decay=0.01)


def blobs(n: int = 90, held: int = 40, *, side: int = 3, channels: int = 1) -> Data:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (n + held,), generator=random)
    images = torch.rand(n + held, channels, side, side, generator=random)
    images[torch.arange(n + held), 0, labels, labels] += 0.4
    return Data(images[:n], labels[:n], images[n:], labels[n:])


def build(weight: float, seed: int = 0, *, layer: str = "10", dropout: float = 0.0) -> Regularised:
    layers = 1 + FCNet.measured.index(layer)
    decoder = DenseDecoder(6, 6, (1, 3, 3), layers=layers, seed=seed)
    return Regularised(FCNet(9, 6, 3, dropout=dropout, seed=seed), layer, decoder, weight)


def residual(weight: float, seed: int = 0) -> Regularised:
    decoder = ResidualDecoder((4, 4, 4), (3, 8, 8), units=1, seed=seed)
    return Regularised(ResNet((2, 4, 4), 3, seed=seed), "19", decoder, weight)


def alone(network: Regularised, data: Data, recipe: Recipe) -> dict[str, Tensor]:
    """Trained by torch's own optimiser and hooks of our own, and stopped by the classification loss."""
    net = copy.deepcopy(network).train()
    optimiser = torch.optim.Adam(net.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    random = torch.Generator().manual_seed(network.seed)
    kept: list[Tensor] = []
    net.network.get_submodule(net.layer).register_forward_hook(lambda module, args, output: kept.append(output))
    lowest, since = float("inf"), 0
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(data.images), generator=random).split(recipe.batch_size):
            if len(rows) == recipe.batch_size:
                x = data.images[rows]
                loss = F.cross_entropy(net.network(x), data.labels[rows])
                loss = loss + net.weight * F.mse_loss(net.decoder(kept[-1]), x)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        net.eval()
        with torch.no_grad():
            value = float(F.cross_entropy(net.network(data.held_images), data.held_labels))
        net.train()
        since = 0 if value < lowest else since + 1
        lowest = min(value, lowest)
        if since == recipe.patience:
            break
    return net.state_dict()


@pytest.mark.parametrize("layer", ["1", "10", "19"])
def test_each_comes_out_as_if_trained_alone(layer: str) -> None:
    data = blobs(side=8, channels=3) if layer == "19" else blobs()
    if layer == "19":
        networks = [residual(weight) for weight in (0.5, 20.0)]
    else:
        networks = [build(weight, seed, layer=layer) for weight in (0.0, 0.5, 20.0) for seed in range(2)]
    # Residual networks tell the order of a sum apart, when they learn fast.
    recipe = replace(RECIPE, epochs=2, learning_rate=0.002) if layer == "19" else RECIPE
    trained = train_many([Group("toy", networks, data, recipe, criteria=("loss",))], device="cpu")[0]
    for network, states in zip(networks, trained.states, strict=True):
        for name, value in alone(network, data, recipe).items():
            if not name.endswith("num_batches_tracked"):
                torch.testing.assert_close(states["loss", "last"][name], value, rtol=1e-3, atol=1e-4)
    sums = {float(states["loss", "last"]["network.1.weight"].sum()) for states in trained.states}
    assert len(sums) == len(networks)  # the weight makes a difference


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_weight_0_trains_the_plain_network_to_the_bit(dropout: float) -> None:
    data = blobs()
    plain = [FCNet(9, 6, 3, dropout=dropout, seed=seed) for seed in range(3)]
    regularised = [build(0.0, seed, dropout=dropout) for seed in range(3)]
    one, other = train_many([Group("a", plain, data, RECIPE), Group("b", regularised, data, RECIPE)], device="cpu")
    for states, own in zip(one.states, other.states, strict=True):
        for key, state in states.items():
            for name, value in state.items():
                assert torch.equal(own[key][f"network.{name}"], value)
    assert one.epochs == other.epochs


def test_weight_0_of_a_residual_network_too() -> None:
    data = blobs(side=8, channels=3)
    groups = [Group("a", [ResNet((2, 4, 4), 3)], data, RECIPE), Group("b", [residual(0.0)], data, RECIPE)]
    one, other = (trained.states[0]["loss", "last"] for trained in train_many(groups, device="cpu"))
    assert all(torch.equal(other[f"network.{name}"], value) for name, value in one.items())


def test_more_weight_reconstructs_better() -> None:
    data = blobs(400)
    networks = [build(weight) for weight in (0.01, 1.0, 100.0)]
    recipe = Recipe(epochs=20, patience=20, learning_rate=0.01)
    found = train_many([Group("toy", networks, data, recipe)], device="cpu")[0].networks(keep="last")
    errors = []
    for network in found:
        network.train()(data.held_images)
        errors.append(network.penalty.item() / network.weight)
    assert errors[0] > errors[1] > errors[2]


def test_it_computes_what_the_network_does_and_leaves_a_penalty_in_training_only() -> None:
    network, x = build(0.5), blobs().images
    kept: list[Tensor] = []
    logits = network(x)
    assert network.penalty is not None and network.penalty.shape == ()
    handle = network.network[10].register_forward_hook(lambda module, args, output: kept.append(output))
    assert torch.equal(network.network(x), logits)
    handle.remove()
    torch.testing.assert_close(network.penalty, 0.5 * F.mse_loss(network.decoder(kept[0]), x))
    copied = copy.deepcopy(network)  # although the penalty has a history
    assert copied.penalty is None
    assert torch.equal(network.eval()(x), logits) and network.penalty is None
    assert not any(module._forward_hooks for module in network.modules())


def test_what_is_finished_is_told_apart_by_weight_and_layer(tmp_path: Path) -> None:
    data, recipe = blobs(), Recipe(epochs=1)
    networks = [build(weight, seed) for weight in (0.1, 1.0) for seed in range(2)]
    first = train_many([Group("toy", networks, data, recipe)], device="cpu", folder=tmp_path)[0]
    assert len(list(tmp_path.iterdir())) == 4
    again = train_many([Group("toy", networks[1:3], data, recipe)], device="cpu", folder=tmp_path)[0]
    for states, other in zip(again.states, first.states[1:3], strict=True):
        assert all(torch.equal(value, other["loss", "last"][name]) for name, value in states["loss", "last"].items())
    elsewhere = Regularised(FCNet(9, 6, 3), "7", networks[0].decoder, 0.1)
    with pytest.raises(ValueError, match="trained differently"):
        train_many([Group("toy", [elsewhere], data, recipe)], device="cpu", folder=tmp_path)


def test_what_can_be_stacked() -> None:
    assert stackable([build(0.0), build(1.0)])
    assert not stackable([build(0.0), FCNet(9, 6, 3)])
    assert not stackable([build(0.0, layer="1"), build(0.0)])
    assert not stackable([residual(1.0)])
    rectified = Regularised(FCNet(9, 6, 3), "11", DenseDecoder(6, 6, (1, 3, 3), layers=4), 1.0)
    assert not stackable([rectified])
    group = Group("toy", [rectified], blobs(), Recipe(epochs=1))
    assert train_many([group], device="cpu")[0].networks()[0].layer == "11"  # on its own, all the same


def test_the_penalty_asks_the_host_for_nothing() -> None:
    asks = {"aten::item", "aten::_local_scalar_dense", "aten::nonzero"}
    counts = []
    for networks in ([FCNet(9, 6, 3), FCNet(9, 6, 3, seed=1)], [build(0.1), build(1.0)]):
        lane = StackLane(networks, blobs(), RECIPE)
        with torch.autograd.profiler.profile() as profile:
            lane.learn(lane.order[0])
        found = Counter(event.name for event in profile.function_events)
        # The optimiser has a step for every parameter, and indexing on a CPU asks for what it does not on a GPU.
        counts.append([found[name] / len(lane.parameters) ** ("item" in name or "scalar" in name) for name in asks])
    assert all(own <= plain for plain, own in zip(*counts, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_steps_are_the_steps_of_a_cpu() -> None:
    networks = [build(weight) for weight in (0.0, 10.0)]
    there, here = (
        train_many([Group("toy", networks, blobs(), RECIPE)], device=device)[0].states for device in ("cuda", "cpu")
    )
    for one, other in zip(there, here, strict=True):
        for name, value in other["loss", "last"].items():
            torch.testing.assert_close(one["loss", "last"][name], value, rtol=1e-3, atol=1e-3)


def test_a_step_in_bfloat16_reaches_every_weight() -> None:
    lane = ModuleLane(residual(1.0), ModuleLane.channels_last(blobs(side=8, channels=3)), RECIPE)
    lane.dtype = torch.bfloat16
    before = [p.detach().clone() for p in lane.parameters]
    lane.learn(lane.order[0])
    for one, other in zip(before, lane.parameters, strict=True):
        assert other.isfinite().all() and not torch.equal(one, other)


def test_every_weight_begins_where_tensor_cores_can_read_it() -> None:
    lane = ModuleLane(residual(1.0), ModuleLane.channels_last(blobs(side=8, channels=3)), RECIPE)
    places = {name: view.storage_offset() for name, view in lane._views(lane.flat)}
    assert any(lane.shapes[name].numel() % 64 for name in places)  # or there would be nothing to see
    assert all(place % 64 == 0 for place in places.values())


def test_two_of_one_weight_and_seed_are_refused() -> None:
    with pytest.raises(ValueError, match="or its own weight"):
        train_many([Group("toy", [build(0.1), build(0.1)], blobs())], device="cpu")


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_are_checked(weight: float) -> None:
    with pytest.raises(ValueError, match="finite and at least 0"):
        build(weight)


def test_layers_are_checked() -> None:
    with pytest.raises(ValueError, match="layer '99' is not in the model"):
        Regularised(FCNet(9, 6, 3), "99", nn.Identity(), 1.0)
