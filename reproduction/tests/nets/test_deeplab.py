"""DeepLab: sizes, the latent that is read, and gradients that reach every weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reproduction.nets.deeplab import DeepLab
from reproduction.nets.efficientnet import EfficientNetLite0


def small(**options: float) -> DeepLab:
    return DeepLab(5, encoder=EfficientNetLite0(dilated=True, width=0.1), width=16, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(32, 64), (37, 50), (16, 17), (1, 3)], ids=str)
@pytest.mark.parametrize("count", [1, 2])
@torch.no_grad()
def test_any_size_and_one_image(size: tuple[int, int], count: int) -> None:
    network = small()
    images = torch.rand(count, 3, *size)
    assert network.eval()(images).shape == (count, 5, *size)
    if min(size) > 16:
        assert network.train()(images).shape == (count, 5, *size)


def test_latent_is_the_last_layer_before_its_activation() -> None:
    network = small().eval()
    seen: list[Tensor] = []
    network.get_submodule(DeepLab.latent).register_forward_hook(lambda *args: seen.append(args[2]))
    images = torch.rand(2, 3, 40, 56)
    logits = network(images)
    (latent,) = seen
    assert latent.shape == (2, 16, 10, 14) and bool((latent < 0).any())
    own = network.decoder.logits(F.relu(latent))
    torch.testing.assert_close(F.interpolate(own, size=(40, 56), mode="bilinear"), logits)


def test_paper_size() -> None:
    network = DeepLab()
    assert network.decoder.logits.weight.shape == (19, 256, 1, 1)
    assert [view[0].dilation for view in network.pyramid.views] == [(1, 1), (6, 6), (12, 12), (18, 18)]  # type: ignore[index]
    assert network.encoder.dilated and network.config()["encoder"] == {"dilated": True, "width": 1.0, "weights": None}


def test_pyramid_sees_the_whole_image() -> None:
    """One pixel changed far away changes everything, by the view of the whole image."""
    network = small().double().eval()
    features = torch.randn(1, network.encoder.channels[4], 50, 50, dtype=torch.float64)
    other = features.clone()
    other[..., 49, 49] += 100
    changed = (network.pyramid(features) != network.pyramid(other)).any(1)
    assert bool(changed.all())


def test_gradients_reach_all_weights() -> None:
    network = small()
    network(torch.rand(2, 3, 64, 64)).square().sum().backward()
    assert [name for name, p in network.named_parameters() if p.grad is None] == []


def test_dropout_in_training_alone() -> None:
    network = small(dropout=0.5).eval()
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(network(images), network(images))
    network.decoder.dropout.train()
    assert not torch.equal(network(images), network(images))


def test_seed() -> None:
    one, same = (DeepLab(3, encoder=EfficientNetLite0(width=0.1), width=8, seed=4).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], same[name]) for name in one)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0 and 256"):
        DeepLab(0)
