"""Decoders: shapes, symmetry, how they begin, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from reproduction.nets.reconstruction import DenseDecoder, ResidualDecoder


def build(kind: str, seed: int = 0) -> tuple[nn.Module, tuple[int, ...], tuple[int, ...]]:
    if kind == "dense":
        return DenseDecoder(6, 5, (1, 4, 4), layers=3, seed=seed), (6,), (1, 4, 4)
    stacks = {"up": 2, "same": 0}[kind]
    size = 16 >> stacks
    return ResidualDecoder((8, size, size), (3, 16, 16), seed=seed), (8, size, size), (3, 16, 16)


@pytest.mark.parametrize("kind", ["dense", "up", "same"])
def test_from_activations_to_inputs_with_gradients_everywhere(kind: str) -> None:
    decoder, latent, output = build(kind)
    z = torch.randn(4, *latent, generator=torch.Generator().manual_seed(0), requires_grad=True)
    made = decoder(z)
    assert made.shape == (4, *output)
    made.square().sum().backward()
    assert z.grad is not None and z.grad.abs().sum() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in decoder.parameters())


@pytest.mark.parametrize("kind", ["dense", "up"])
def test_the_seed_decides_and_the_global_generator_is_left_alone(kind: str) -> None:
    before = torch.get_rng_state()
    one, same, other = build(kind)[0], build(kind)[0], build(kind, seed=1)[0]
    assert torch.equal(before, torch.get_rng_state())
    states = [torch.cat([p.detach().flatten() for p in d.parameters()]) for d in (one, same, other)]
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])
    for layer in one.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            area = math.prod(layer.weight.shape[2:])
            bound = math.sqrt(6 / (area * (layer.weight.shape[0] + layer.weight.shape[1])))
            assert 0.8 * bound < layer.weight.abs().max() <= bound
            assert layer.bias is None or not layer.bias.any()


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_as_many_linear_layers_as_asked_and_no_relu_after_the_last(layers: int) -> None:
    decoder = DenseDecoder(6, 5, (2, 3), layers=layers)
    z = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    expected = z
    for i, linear in enumerate(decoder.linear):
        expected = expected @ linear.weight.T + linear.bias
        expected = expected.clamp(min=0) if i < layers - 1 else expected
    assert len(decoder.linear) == layers
    torch.testing.assert_close(decoder(z), expected.view(3, 2, 3))
    assert [linear.out_features for linear in decoder.linear] == [5] * (layers - 1) + [6]


def test_widths_may_be_listed() -> None:
    decoder = DenseDecoder(4, (6, 8), (10,))
    assert [(layer.in_features, layer.out_features) for layer in decoder.linear] == [(4, 6), (6, 8), (8, 10)]


def test_stacks_double_the_size_and_halve_the_channels() -> None:
    decoder = ResidualDecoder((64, 4, 4), (3, 32, 32))
    sizes = []
    for unit in decoder.body:
        unit.register_forward_hook(lambda module, args, output: sizes.append(tuple(output.shape[1:])))
    decoder(torch.zeros(2, 64, 4, 4))
    assert decoder.stacks == 3
    assert sizes == [(32, 8, 8)] * 2 + [(16, 16, 16)] * 2 + [(8, 32, 32)] * 2
    assert len(ResidualDecoder((64, 4, 4), (3, 32, 32), units=1).body) == 3
    narrow = ResidualDecoder((4, 2, 2), (3, 16, 16))  # never fewer channels than the image has
    assert narrow.image.in_channels == 3


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: DenseDecoder(6, 5, (4,)), "layers must be at least 1, got None"),
        (lambda: DenseDecoder(6, 5, (4,), layers=0), "layers must be at least 1, got 0"),
        (lambda: DenseDecoder(6, (5,), (4,), layers=3), "makes 2 layers, got layers=3"),
        (lambda: DenseDecoder(6, (0,), (4,)), "must be at least 1"),
        (lambda: DenseDecoder(6, (5,), ()), "must be at least 1"),
        (lambda: DenseDecoder(6, (5,), (4,))(torch.zeros(2, 7)), r"activations of 6 numbers, got \(2, 7\)"),
        (lambda: ResidualDecoder((8, 10, 10), (3, 32, 32)), "from 10 × 10 to 32 × 32"),
        (lambda: ResidualDecoder((8, 8, 8), (3, 24, 24)), "not a number of doublings"),
        (lambda: ResidualDecoder((8, 8, 8), (3, 32, 16)), "not a number of doublings"),
        (lambda: ResidualDecoder((8, 64, 64), (3, 32, 32)), "not a number of doublings"),
        (lambda: ResidualDecoder((8,), (3, 32, 32)), "use DenseDecoder for vectors"),
        (lambda: ResidualDecoder((8, 8, 8), (3, 32, 32), units=0), "units must be at least 1"),
        (lambda: ResidualDecoder((8, 4, 4), (3, 8, 8))(torch.zeros(2, 8, 5, 5)), r"\(n, 8, 4, 4\), got \(2, 8, 5, 5\)"),
    ],
)
def test_errors_say_what_is_wrong(build: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        build()
