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
