"""The paper's perceptron: numbers of its layers, and how it begins."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hidden_uncertainty import layers
from reproduction.nets.fcnet import FCNet

TABLE = ["Flatten", *["Linear", "ReLU", "Dropout"] * 4, "Linear"]


def test_layers_have_the_papers_numbers() -> None:
    network = FCNet()
    assert [type(module).__name__ for module in network] == TABLE
    found = layers(network, torch.zeros(2, 1, 28, 28), show=False)
    assert all(found[name].kind == "Linear" and found[name].width == 100 for name in FCNet.measured)
    assert [tuple(layer.weight.shape) for layer in network.linear] == [(100, 784), *[(100, 100)] * 3, (10, 100)]


def test_seeds_decide_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    same, other = FCNet(seed=3), FCNet(seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(same[1].weight, FCNet(seed=3)[1].weight) and not torch.equal(same[1].weight, other[1].weight)


def test_glorot_is_uniform_in_its_bound() -> None:
    network = FCNet(initialisation="glorot")
    for layer in network.linear:
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert layer.weight.abs().max() <= bound and not layer.bias.any()
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_dropout_is_for_training_mode() -> None:
    network = FCNet(dropout=0.5)
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(network.eval()(x), network(x)) and isinstance(network[3], nn.Dropout)


@pytest.mark.parametrize("options", [{"inputs": 0}, {"hidden": 0}, {"classes": 0}, {"initialisation": "zeros"}])
def test_errors_say_what_is_wrong(options: dict) -> None:
    with pytest.raises(ValueError, match=r"at least 1|must be one of"):
        FCNet(**options)
