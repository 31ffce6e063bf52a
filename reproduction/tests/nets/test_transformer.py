"""Small transformers and ResNet-18: what they compute, and that their head is found."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hidden_uncertainty import suggest
from reproduction.nets import ResNet18, TextTransformer, VisionTransformer
from reproduction.nets.transformer import Block

random = torch.Generator().manual_seed(0)
IMAGES = torch.rand(6, 3, 32, 32, generator=random)
WORDS = torch.randint(1, 9, (6, 5), generator=random)


def test_attention_is_that_of_the_formula() -> None:
    block = Block(8, 2, dropout=0.0)
    x = torch.randn(3, 5, 8, generator=random)
    seen = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
    q, k, v = block.qkv(block.norm1(x)).split(8, dim=-1)
    read = torch.zeros_like(x)
    for h in (slice(0, 4), slice(4, 8)):
        scores = q[..., h] @ k[..., h].mT / math.sqrt(4)
        read[..., h] = scores.masked_fill(~seen[:, None], -math.inf).softmax(-1) @ v[..., h]
    middle = x + block.out(read)
    torch.testing.assert_close(block(x, seen), middle + block.mlp(block.norm2(middle)))


def test_padding_changes_nothing() -> None:
    short = TextTransformer(9, 5, 3, width=32, depth=2).eval()
    long = TextTransformer(9, 8, 3, width=32, depth=2).eval()
    state = short.state_dict()
    state["places"] = torch.cat([state["places"], torch.randn(1, 3, 32, generator=random)], 1)
    long.load_state_dict(state)
    padded = torch.cat([WORDS, torch.zeros(6, 3, dtype=torch.long)], 1)
    torch.testing.assert_close(long(padded), short(WORDS))


def test_stages_halve_the_image_and_double_the_channels() -> None:
    network = ResNet18(100, width=4).eval()
    x = network.stem(network.standardise(IMAGES))
    shapes = []
    for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
        x = stage(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]
    torch.testing.assert_close(network(IMAGES), network.fc(x.mean((2, 3))))
    assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == 17 + 3  # and the last layer: 18


@pytest.mark.parametrize(
    ("network", "x", "head", "width"),
    [
        (ResNet18(width=4), IMAGES, "fc", 32),
        (VisionTransformer(width=16, depth=3), IMAGES, "head", 16),
        (TextTransformer(9, 5, 3, width=16, depth=3), WORDS, "head", 16),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_the_default_reads_what_the_last_layer_reads(
    network: nn.Module, x: torch.Tensor, head: str, width: int
) -> None:
    *before, last = suggest(network.eval(), [x])
    assert (last.layer, last.read, last.width) == (head, "input", width)
    assert len(before) == 2 and all(choice.layer.startswith(("layer", "blocks")) for choice in before)


def test_a_seed_decides_the_weights() -> None:
    first, same, other = (VisionTransformer(width=16, depth=1, seed=seed).places for seed in (0, 0, 1))
    assert torch.equal(first, same) and not torch.equal(first, other)
