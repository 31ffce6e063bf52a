"""The small network: its blocks, and training that repeats."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import layers
from hidden_uncertainty.demo import DigitsNet, digits, train


def weights(network: nn.Module) -> Tensor:
    return torch.cat([value.flatten() for value in network.state_dict().values()])


def test_blocks_have_the_widths_they_say() -> None:
    tree = layers(DigitsNet(classes=7), torch.zeros(2, 1, 8, 8), show=False)
    widths = {name: tree[name].width for name in ("conv1", "conv2", "conv3", "hidden", "output")}
    assert widths == {"conv1": 1024, "conv2": 512, "conv3": 256, "hidden": 256, "output": 7}


def test_the_seed_decides_the_weights_and_nothing_global_changes() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (weights(DigitsNet(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_training_learns_to_read_unseen_digits() -> None:
    data = digits()
    network = train(DigitsNet(), data.train.images, data.train.labels, epochs=6)
    with torch.no_grad():
        right = (network(data.test.images).argmax(1) == data.test.labels).float().mean().item()
    assert right > 0.93
    assert not network.training


@pytest.mark.parametrize("dropout", [False, True])
def test_training_repeats_whatever_the_global_generator_does(dropout: bool) -> None:
    data = digits()
    images, labels = data.train.images[:128], data.train.labels[:128]

    def trained(seed: int) -> Tensor:
        network = DigitsNet()
        if dropout:
            network.hidden.append(nn.Dropout(0.5))
        return weights(train(network, images, labels, epochs=2, seed=seed))

    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = trained(0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(trained(0), first)
    assert not torch.equal(trained(1), first)
