"""The paper's residual network: numbers of its layers, what they compute, and how it begins."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hidden_uncertainty import layers
from hidden_uncertainty.model.capture import run
from reproduction.nets.resnet import ResNet

# Index and layer, as the paper's appendix lists them.
START = ["Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d", "Add"]
BLOCK = ["Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "Conv2d", "BatchNorm2d", "BatchNorm2d", "Add"]
TABLE = [*START, "Dropout", "ReLU", *[*BLOCK, "Dropout", "ReLU"] * 2, "AdaptiveAvgPool2d", "Flatten", "Linear"]


def test_layers_have_the_papers_numbers_and_widths() -> None:
    found = layers(ResNet(), torch.zeros(1, 3, 32, 32), show=False)
    assert [found[str(i)].kind for i in range(1, 35)] == TABLE
    assert {i: found[i].width for i in ("1", "9", "19", "29", "34")} == {
        "1": 65536,
        "9": 65536,
        "19": 32768,
        "29": 16384,
        "34": 10,
    }
    assert all(found[str(i)].calls == 1 for i in range(1, 35))


def test_blocks_add_what_came_in() -> None:
    network = ResNet((3, 4, 5)).eval()
    x = torch.rand(2, 3, 8, 8)
    _, read = run(network, {str(i): torch.clone for i in (3, 8, 9, 11, 17, 18, 19, 31, 34)}, (x,), {})
    torch.testing.assert_close(read["9"], read["8"] + read["3"])
    torch.testing.assert_close(read["19"], read["17"] + read["18"])
    shortcut = network.get_submodule("18")(network.get_submodule("16")(read["11"]))
    torch.testing.assert_close(read["18"], shortcut)
    torch.testing.assert_close(read["34"], F.linear(read["31"].mean((2, 3)), *network.get_submodule("34").parameters()))


def test_seeds_decide_and_glorot_is_uniform_in_its_bound() -> None:
    before = torch.get_rng_state()
    one, same, other = ResNet((3, 4, 5), seed=1), ResNet((3, 4, 5), seed=1), ResNet((3, 4, 5), seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    weights = [network.get_submodule("1").weight for network in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    conv = ResNet(initialisation="glorot").get_submodule("12")
    assert isinstance(conv, nn.Conv2d) and conv.bias is None
    bound = math.sqrt(6 / (9 * 64 + 9 * 128))
    assert conv.weight.abs().max() <= bound
    assert conv.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("options", [{"widths": (1, 2)}, {"widths": (0, 1, 2)}, {"classes": 0}])
def test_errors_say_what_is_wrong(options: dict) -> None:
    with pytest.raises(ValueError, match="three widths"):
        ResNet(**options)
