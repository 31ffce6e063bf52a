"""MonoDepth: sizes, positive depth, the thin latent that is read, and what the output sees of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reproduction.nets.efficientnet import EfficientNetLite0
from reproduction.nets.monodepth import MonoDepth


def small(**options: float) -> MonoDepth:
    return MonoDepth(encoder=EfficientNetLite0(width=0.1), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(64, 32), (37, 50), (5, 3)], ids=str)
@torch.no_grad()
def test_half_of_any_size(size: tuple[int, int]) -> None:
    depth = small().eval()(torch.rand(2, 3, *size))
    assert depth.shape == (2, 1, -(-size[0] // 2), -(-size[1] // 2))
    assert bool((depth > 0).all())


def test_output_from_patches_of_144() -> None:
    network = small().eval()
    seen: list[Tensor] = []
    network.get_submodule(MonoDepth.latent).register_forward_hook(lambda *args: seen.append(args[2]))
    depth = network(torch.rand(2, 3, 32, 48))
    (latent,) = seen
    assert latent.shape == (2, 16, 16, 24) and bool((latent < 0).any())
    patches = F.unfold(F.relu(latent), 3, padding=1)  # (n, 144, positions)
    assert patches.shape[1] == 144
    own = torch.einsum("ncp,c->np", patches, network.output.weight.flatten()) + network.output.bias
    torch.testing.assert_close(F.softplus(own).view_as(depth), depth)


def test_gradients_reach_all_weights() -> None:
    network = small()
    network(torch.rand(2, 3, 64, 64)).log().sum().backward()
    assert [name for name, p in network.named_parameters() if p.grad is None] == []


def test_dropout_in_training_alone() -> None:
    network = small(dropout=0.5).eval()
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(network(images), network(images))
    network.dropout.train()
    assert not torch.equal(network(images), network(images))
    assert network.config() == {"dropout": 0.5, "encoder": {"dilated": False, "width": 0.1, "weights": None}}


def test_seeds_differ() -> None:
    one, same, other = (MonoDepth(encoder=EfficientNetLite0(width=0.1), seed=seed).output.weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
