"""Layers that are chosen by running the network: what its head reads, whatever it is made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from hidden_uncertainty.model.batches import Batch
from hidden_uncertainty.model.choice import Choice, choose_layers


class Net(nn.Module):
    """Modules, and what to do with them."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def last(model: nn.Module, *shape: int, dtype: torch.dtype = torch.float32, output: Any = None) -> Choice:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return choose_layers(model.eval(), Batch((x,), {}, None), output)[-1]


def mlp(wrap: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Sequential:
    return nn.Sequential(wrap(nn.Linear(6, 8)), nn.ReLU(), wrap(nn.Linear(8, 3)))


@pytest.mark.parametrize("wrap", [spectral_norm, weight_norm], ids=["spectral", "weight"])
def test_weights_that_are_computed_from_others(wrap: Callable[[nn.Module], nn.Module]) -> None:
    choice = last(mlp(wrap), 9, 6)
    assert choice[:3] == ("2", "input", "flatten") and choice.reason.startswith("read by the layer that gives")


def test_quantised_layers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is moving these functions elsewhere
        model = torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}, dtype=torch.qint8)
    assert last(model, 9, 6)[:3] == ("2", "input", "flatten")


def test_layers_that_use_the_weights_of_their_parts() -> None:
    attention = nn.MultiheadAttention(6, 2, batch_first=True)  # which never calls its own projection
    model = Net(lambda net, x: net.head(net.mix(x, x, x)[0][:, 0]), mix=attention, head=nn.Linear(6, 3))
    x = torch.randn(9, 5, 6)
    assert [choice.layer for choice in choose_layers(model.eval(), Batch((x,), {}, None))] == ["mix", "head"]
    deep = Net(
        lambda net, x: net.head(net.two(net.one(x, x, x)[0])[:, 0]),
        one=attention,
        two=nn.Linear(6, 6),
        head=nn.Linear(6, 3),
    )
    assert [choice.layer for choice in choose_layers(deep.eval(), Batch((x,), {}, None))] == ["one", "head"]


@pytest.mark.parametrize("kind", ["recurrent", "attention"])
def test_of_a_head_that_mixes_tokens_the_output_is_read(kind: str) -> None:
    if kind == "recurrent":
        model = Net(lambda net, x: net.layer(x)[1][0][-1], layer=nn.LSTM(6, 4, batch_first=True))
        assert last(model, 9, 5, 6)[:5] == ("layer", "output", "tokens", "last", 4)
    else:
        model = Net(lambda net, x: net.layer(x, x, x)[0].mean(1), layer=nn.MultiheadAttention(6, 2, batch_first=True))
        assert last(model, 9, 5, 6)[:3] == ("layer", "output", "tokens")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_head_is_found_in_any_precision(dtype: torch.dtype) -> None:
    model = Net(
        lambda net, x: (net.head(net.body(x).relu()).softmax(1), net.other(net.body(x)))[0],
        body=nn.Linear(6, 8),
        head=nn.Linear(8, 3),
        other=nn.Linear(8, 3),  # as wide, and called later
    )
    with torch.no_grad():
        model.other.weight.mul_(5)
    assert last(model.to(dtype), 50, 6, dtype=dtype).layer == "head"


def test_the_head_of_a_network_that_predicts_pixels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))
    assert last(model, 9, 3, 8, 8)[:5] == ("2", "input", "channels", "mean", 8)


def test_what_no_layer_can_be_chosen_by() -> None:
    with pytest.raises(ValueError, match=r"at least one input, .* the network gave \(0, 3\): give a batch with inputs"):
        last(mlp(), 0, 6)
    model = Net(lambda net, x: (net.body(x).mean(), net.body(x)), body=mlp())
    with pytest.raises(ValueError, match=r"the network gave \(\): .* choose another output with output="):
        last(model, 9, 6)
    with pytest.raises(ValueError, match="no layer with weights was called once"):
        last(model, 9, 6, output=1)


class LowRank(nn.Module):
    """A layer with an adapter of low rank beside it, as libraries for fine-tuning wrap it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, layer.out_features, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2 * self.lora_B["default"](self.lora_A["default"](x))


def test_a_head_with_an_adapter() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU())
    model = nn.Sequential(body, LowRank(nn.Linear(8, 3), 2))
    x = torch.randn(9, 6)
    first, head = choose_layers(model, Batch((x,), {}, None))
    assert head[:5] == ("1.base_layer", "input", "flatten", "mean", 8)
    assert first.reason.startswith("after 1 of 2 layers")  # the adapter's own are no part of it
    adapted = nn.Sequential(*(LowRank(nn.Linear(*sizes), 2) for sizes in ((6, 9), (9, 8), (8, 3))))
    assert choose_layers(adapted, Batch((x,), {}, None))[-1].layer == "2.base_layer"


def test_a_network_inside_another_is_no_head() -> None:
    torch.manual_seed(0)
    inner = Net(lambda net, x: 3 * net.fc(net.body(x).relu()), body=nn.Linear(6, 5), fc=nn.Linear(5, 3))
    outer = Net(lambda net, x: net.inner(x), inner=inner)
    assert last(outer, 9, 6)[:3] == ("inner.fc", "input", "flatten")


@pytest.mark.parametrize("n", [7, 8])
def test_as_many_steps_as_inputs(n: int) -> None:
    """(time, inputs, width) is not taken for (inputs, time, width), however many there are."""
    torch.manual_seed(0)
    model = Net(
        lambda net, x: net.fc(net.two(net.one(x.transpose(0, 1))[0])[0][-1]),
        one=nn.LSTM(6, 5),
        two=nn.LSTM(5, 4),
        fc=nn.Linear(4, 3),
    )
    choices = choose_layers(model, Batch((torch.randn(n, 7, 6),), {}, None))
    assert [choice[:3] for choice in choices] == [("fc", "input", "flatten")]


def test_inputs_that_cannot_be_cut() -> None:
    model = Net(lambda net, x: net.fc(x[1] @ net.body(x[0])), body=nn.Linear(6, 5), fc=nn.Linear(5, 3))
    x, square = torch.randn(7, 7, 6), torch.eye(7)  # one for all inputs
    choices = choose_layers(model, Batch(((x, square),), {}, None))
    assert [choice.layer for choice in choices] == ["body", "fc"]


def test_blocks_in_a_list() -> None:
    """They are parts of the network also where they are not nearly all of it."""
    torch.manual_seed(0)

    def call(net: Any, x: Tensor) -> Tensor:
        x = net.one(net.two(x))
        for block in net.blocks:
            x = block(x)
        return net.fc(net.pooler(x).tanh())

    linear = {name: nn.Linear(6, 6) for name in ("one", "two", "pooler")}
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(4))
    model = Net(call, blocks=blocks, fc=nn.Linear(6, 3), **linear)
    choices = choose_layers(model, Batch((torch.randn(9, 6),), {}, None))
    assert [choice.layer for choice in choices] == ["one", "blocks.2", "fc"]
