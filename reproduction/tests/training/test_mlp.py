"""Perceptrons: their blocks, and training in a stack against training one by one with torch's own modules."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import layers
from reproduction.training import MLP, mlp, train_mlps


def weights(network: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in network.parameters()])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def curve(x: Tensor, seed: int = 9) -> Tensor:
    return torch.sin(2 * x[..., 0]) + x[..., 1] + 0.3 * draw(*x.shape[:-1], seed=seed)


def build(count: int = 3, **options: Any) -> list[MLP]:
    return [MLP(2, (8, 6), seed=seed, **options).double() for seed in range(count)]


def reference(
    network: MLP,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    loss: nn.Module | None = None,
    validation: tuple[Tensor, Tensor] | None = None,
    patience: int = 10**9,
    weight_decay: float = 0.0,
) -> tuple[Tensor, int]:
    """One network, full batch, by torch's modules, schedule and optimiser: its weights and the epochs it took."""
    network = copy.deepcopy(network)

    def value(x: Tensor, y: Tensor) -> Tensor:
        output = network(x)
        if isinstance(loss, nn.GaussianNLLLoss):
            return loss(output[:, :1], y[:, None], output[:, 1:].exp())
        return nn.functional.mse_loss(output[:, 0], y)

    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    lowest, best, since = math.inf, weights(network), 0
    for epoch in range(epochs):
        optimiser.zero_grad()
        value(x, y).backward()
        optimiser.step()
        schedule.step()
        if validation is not None:
            with torch.no_grad():
                now = float(value(*validation))
            lowest, best, since = (now, weights(network), 0) if now < lowest else (lowest, best, since + 1)
            if since == patience:
                return best, epoch + 1
    return (best if validation is not None else weights(network)), epochs


def same(networks: Sequence[MLP], expected: Sequence[Tensor]) -> None:
    for network, values in zip(networks, expected, strict=True):
        torch.testing.assert_close(weights(network), values, rtol=1e-8, atol=1e-10)
        assert not network.training
        assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())


def test_blocks_have_names_and_the_last_hidden_one_comes_after_its_rectifier() -> None:
    network = MLP(3, dropout=0.2)
    tree = layers(network, torch.zeros(2, 3), show=False)
    assert {name: tree[name].width for name in ("hidden1", "hidden2", "hidden3", "hidden4", "output")} == {
        "hidden1": 100,
        "hidden2": 100,
        "hidden3": 100,
        "hidden4": 100,
        "output": 1,
    }
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    z = network.eval().get_submodule("hidden3")(network.hidden2(network.hidden1(x)))  # type: ignore[operator]
    z = network.get_submodule(network.penultimate)(z)
    assert network.penultimate == "hidden4"
    assert (z >= 0).all() and (z == 0).any()
    assert torch.equal(network.output(z), network(x))


def test_the_seed_decides_the_weights_and_nothing_global_changes() -> None:
    before = torch.random.get_rng_state()
    one, alike, other = (weights(MLP(2, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one, alike)
    assert not torch.equal(one, other)
    assert torch.equal(weights(MLP(2, dropout=0.5, seed=1)), one)
    train_mlps(build(dropout=0.1), draw(20, 2), draw(20), epochs=2, batch_size=5)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_shared_data_in_full_batches_is_plain_training(weight_decay: float) -> None:
    x = draw(40, 2)
    networks = build()
    expected = [reference(network, x, curve(x), epochs=30, weight_decay=weight_decay)[0] for network in networks]
    found = train_mlps(networks, x, curve(x), epochs=30, batch_size=None, learning_rate=1e-2, weight_decay=weight_decay)
    assert all(one is other for one, other in zip(found, networks, strict=True))
    same(found, expected)


def test_each_network_has_its_own_data_and_stops_on_its_own_at_its_best() -> None:
    x, unseen = draw(5, 25, 2), draw(5, 12, 2, seed=1)
    y, held = curve(x), (unseen, curve(unseen, seed=2))
    networks = build(5)
    expected, stopped = zip(
        *(
            reference(network, x[i], y[i], epochs=150, validation=(held[0][i], held[1][i]), patience=4)
            for i, network in enumerate(networks)
        ),
        strict=True,
    )
    assert len(set(stopped)) > 2 and min(stopped) < 150  # or nothing is tested
    found = train_mlps(networks, x, y, validation=held, epochs=150, batch_size=None, learning_rate=1e-2, patience=4)
    same(found, expected)


def test_gaussian_networks_maximise_the_likelihood() -> None:
    x = draw(60, 2)
    networks = build(outputs=2)
    expected = [reference(n, x, curve(x), epochs=30, loss=nn.GaussianNLLLoss(eps=1e-6))[0] for n in networks]
    same(train_mlps(networks, x, curve(x), loss="gaussian", epochs=30, batch_size=None, learning_rate=1e-2), expected)


def test_gaussian_networks_find_the_noise_of_each_input() -> None:
    x = draw(4000, 2)
    deviation = 0.1 + 0.4 * (x[:, 0] > 0)
    y = x[:, 1] + deviation * draw(4000, seed=1)
    networks = [MLP(2, (30, 30), 2, seed=seed).double() for seed in range(2)]
    train_mlps(networks, x, y, loss="gaussian", epochs=40, learning_rate=1e-2)
    clear = x[:, 0].abs() > 0.3
    with torch.no_grad():
        for network in networks:
            mean, log_variance = network(x).unbind(1)
            assert float((mean - x[:, 1])[clear].square().mean().sqrt()) < 0.1
            for side in (x[:, 0] > 0, x[:, 0] < 0):
                found = float((log_variance[clear & side] / 2).exp().median())
                assert found == pytest.approx(float(deviation[side][0]), rel=0.15)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("rows", [4000, 14])  # all in one stack; two at a time
def test_a_network_comes_out_alike_alone_and_beside_others(
    dropout: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlp, "_ROWS", rows)
    x, held = draw(30, 2), (draw(10, 2, seed=1), draw(10, seed=2))
    options: dict[str, Any] = {"validation": held, "epochs": 20, "batch_size": 7, "patience": 3}
    alone = [weights(train_mlps([network], x, curve(x), **options)[0]) for network in build(5, dropout=dropout)]
    same(train_mlps(build(5, dropout=dropout), x, curve(x), **options), alone)
    assert not torch.equal(alone[0], alone[1])


def test_several_numbers_are_predicted_at_once() -> None:
    x = draw(30, 2)
    y = torch.stack([x[:, 0], -x[:, 1], curve(x)], dim=1)
    networks = build(2, outputs=3)
    expected = []
    for network in copy.deepcopy(networks):
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(2):
            optimiser.zero_grad()
            nn.functional.mse_loss(network(x), y).backward()
            optimiser.step()
            optimiser.param_groups[0]["lr"] /= 2  # half a cosine of two steps
        expected.append(weights(network))
    same(train_mlps(networks, x, y, epochs=2, batch_size=None), expected)
    same(train_mlps(build(2, outputs=3), x.expand(2, -1, -1), y.expand(2, -1, -1), epochs=2, batch_size=None), expected)


def test_a_network_that_diverges_says_so_and_none_is_changed() -> None:
    x = draw(30, 2)
    networks = build()
    before = [weights(network) for network in networks]
    with pytest.raises(
        RuntimeError, match=r"the loss of 3 networks is not finite after \d+ epochs: lower learning_rate"
    ):
        train_mlps(networks, x, curve(x), learning_rate=1e200, epochs=10)
    assert all(torch.equal(weights(network), values) for network, values in zip(networks, before, strict=True))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((30, 3), (30,)),
        ((30, 2), (29,)),
        ((30, 2), (30, 2)),
        ((3, 30, 2), (3, 30)),
        ((2, 30, 2), (30,)),
        ((30,), (30,)),
        ((0, 2), (0,)),
        ((30, 2), (30, 1, 1)),
    ],
)
def test_shapes_that_do_not_fit(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    for given in ({"x": draw(*x), "y": draw(*y)}, {"x": draw(9, 2), "y": draw(9), "validation": (draw(*x), draw(*y))}):
        with pytest.raises(
            ValueError, match=r"got x .* and y .*; 2 networks of 2 inputs that predict 1 numbers need x"
        ):
            train_mlps(build(2), **given)


def test_what_cannot_be_trained() -> None:
    x, y = draw(9, 2), draw(9)
    network = MLP(2, (8, 6)).double()
    with pytest.raises(ValueError, match="networks is empty"):
        train_mlps([], x, y)
    with pytest.raises(
        ValueError, match=r"must have one architecture .*, got widths \(2, 5, 1\).*; widths \(2, 8, 6, 1\)"
    ):
        train_mlps([network, MLP(2, (5,)).double()], x, y)
    with pytest.raises(ValueError, match="contains one network twice"):
        train_mlps([network, network], x, y)
    with pytest.raises(ValueError, match=r"loss must be one of \('squared', 'gaussian'\), not 'mse'"):
        train_mlps([network], x, y, loss="mse")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got networks with outputs=1: pass outputs=2 to MLP"):
        train_mlps([network], x, y, loss="gaussian")
    with pytest.raises(TypeError, match=r"y \(9,\) of torch.float64; the networks are of torch.float32"):
        train_mlps([MLP(2)], x, y)
    with pytest.raises(ValueError, match="x and y: all numbers must be finite"):
        train_mlps([network], x, y / 0)
    for name in ("epochs", "batch_size", "patience"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got -1"):
            train_mlps([network], x, y, **{name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"hidden": ()}, {"hidden": (5, 0)}, {"inputs": 0}, {"outputs": 0}])
def test_perceptrons_that_are_none(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least one unit per layer, got inputs="):
        MLP(**({"inputs": 2} | arguments))


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_dropout_is_a_share(dropout: float) -> None:
    with pytest.raises(ValueError, match="dropout must be a share, at least 0 and below 1, got"):
        MLP(2, dropout=dropout)
