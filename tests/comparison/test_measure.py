"""Time and memory."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from hidden_uncertainty.comparison.measure import MIB, kept_memory, milliseconds


class Holder:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_memory_is_counted_once_and_without_the_network():
    network = nn.Linear(100, 10)
    other = copy.deepcopy(network)
    shared = torch.zeros(1000)
    holder = Holder(
        network=network,
        nested={"a": [shared, shared[:10]], "b": (np.zeros(50), Holder(again=shared))},
        others=[other, other],
        text="text",
        call=torch.zeros(7).sum,
    )
    holder.itself = holder
    own = sum(p.numel() for p in network.parameters())
    assert kept_memory(holder, network) * MIB == pytest.approx(4 * 1000 + 8 * 50 + 4 * own)
    assert kept_memory(holder) * MIB == pytest.approx(4 * 1000 + 8 * 50 + 8 * own)
    assert kept_memory(3) == 0.0


def test_sides_take_turns_after_a_call_that_does_not_count():
    calls = []
    found = milliseconds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "b", "a", "b", "a", "b"] and set(found) == {"a", "b"}
