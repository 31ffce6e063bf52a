"""Layers by name, parts of what they return, and where a model is."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capture_nets import Odd, Output
from hidden_uncertainty.capture import device_of, find, named, nearest, select


def test_find_names_the_nearest() -> None:
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.ModuleDict({f"layer{k}": nn.Sequential() for k in range(1, 5)})
            self.nothing = None

    model = Backbone()
    assert find(model, ["backbone.layer3", ""]) == {"backbone.layer3": model.backbone["layer3"], "": model}
    with pytest.raises(ValueError, match=r"layer 'layer3' is not in the model; nearest names: 'backbone.layer3'"):
        find(model, ["layer3"])
    with pytest.raises(
        ValueError, match=r"'net.backbone.layer2' .* nearest names: 'backbone.layer2'.*layers\(model, ex"
    ):
        find(model, ["net.backbone.layer2"])
    with pytest.raises(ValueError, match=r"nearest names: 'backbone\.layer"):
        find(model, ["backbone.layr3"])
    for odd in (".", "backbone.", "backbone..layer1", "nothing", "forward", "module.backbon"):
        with pytest.raises(ValueError, match="is not in the model; nearest"):
            find(model, [odd])
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, not function"):
        find(lambda x: x, ["layer"])  # type: ignore[arg-type]


def test_nearest_always_has_something_to_offer() -> None:
    assert nearest("zzz", ["", "a", "b"]) == ["a", "b"]
    assert nearest("fc", ["a.fc", "b.fc", "fd"])[:2] == ["a.fc", "b.fc"]


def test_named_lists_each_layer_once_in_order() -> None:
    model = Odd()
    model.again = model.lstm
    model.gap = nn.Sequential()
    assert [name for name, _ in named(model)] == [name for name, _ in model.named_modules()]


Pair = namedtuple("Pair", ["first", "second"])
A, B = torch.zeros(2, 3), torch.ones(2, 4)


@pytest.mark.parametrize(
    ("output", "key", "expected"),
    [
        (A, None, A),
        (A, "logits", A),
        ((A, B), None, A),
        ([None, B, A], None, B),
        ((A, B), 1, B),
        ((A, B), -1, B),
        (Pair(A, B), "second", B),
        (Pair(A, B), 1, B),
        (Pair(A, B), None, A),
        ({"a": A, "b": B}, "b", B),
        ({"a": A, "mask": None}, None, A),
        (OrderedDict(a=A, b=B), "a", A),
        (Output(A), None, A),
        (Output(A), "logits", A),
        (torch.max(B, 1), "values", B[:, 0]),
    ],
)
def test_select(output: Any, key: int | str | None, expected: Tensor) -> None:
    assert select(output, key, "it").equal(expected)


@pytest.mark.parametrize(
    ("output", "key", "error", "match"),
    [
        ({"a": A, "b": B}, None, ValueError, r"it returned dict \{'a': Tensor, 'b': Tensor\} with 2 tensors.*select="),
        ({"a": A}, "c", ValueError, r"has no 'c' for select="),
        ({"a": A}, "keys", ValueError, r"has no 'keys'"),
        ((A, B), 2, ValueError, "has no 2"),
        ((A, B), -3, ValueError, "has no -3"),
        ((None, "text"), None, ValueError, "with no tensor"),
        ((A, (B, B)), 1, TypeError, "select=1 of what it returned is a tuple, not a tensor"),
        (Output(None), None, ValueError, "no tensor"),  # type: ignore[arg-type]
        ("text", None, ValueError, "an object of type str"),
        (None, None, ValueError, "NoneType"),
    ],
)
def test_select_says_what_there_is(output: Any, key: int | str | None, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        select(output, key, "it")


def test_device_of() -> None:
    assert device_of(nn.ReLU()) is None
    assert device_of(nn.Linear(2, 2, device="meta")) == torch.device("meta")
    assert device_of(nn.BatchNorm1d(2, affine=False)) == torch.device("cpu")
