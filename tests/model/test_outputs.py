"""The tensor that is meant is found in whatever was returned, and a wrong key says what there is."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from capture_nets import Output
from hidden_uncertainty.model.outputs import Key, select, select_masked

Pair = namedtuple("Pair", ["first", "second"])
A, B = torch.zeros(2, 3), torch.ones(2, 4)
PACKED = pack_sequence([torch.tensor([1.0]), torch.tensor([2.0, 3.0])], enforce_sorted=False)


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
        ((A, (B, A)), (1, 0), B),
        ((A, (B, A)), (-1, -1), A),
        ({"states": (A, {"last": B})}, ("states", 1, "last"), B),
        (Output(A), ("logits",), A),
        (PACKED, None, torch.tensor([[1.0, 0.0], [2.0, 3.0]])),
        ((PACKED, A), None, torch.tensor([[1.0, 0.0], [2.0, 3.0]])),
        ((A, PACKED), 1, torch.tensor([[1.0, 0.0], [2.0, 3.0]])),
    ],
)
def test_select(output: Any, key: Key | None, expected: Tensor) -> None:
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
        ((A, (B, B)), 1, TypeError, r"Choose another, or further inside, such as \(1, 0\)"),
        ((A, "text"), 1, TypeError, r"Choose another\.$"),
        ((A, (B, B)), (1, 2), ValueError, r"it returned tuple \{0: Tensor, 1: Tensor\}, which has no 2 for select="),
        ((A, B), (1, 0), ValueError, "returned an object of type Tensor, which has no 0"),
        (Output(None), None, ValueError, "no tensor"),  # type: ignore[arg-type]
        ("text", None, ValueError, "an object of type str"),
        (None, None, ValueError, "NoneType"),
    ],
)
def test_select_says_what_there_is(output: Any, key: Key | None, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        select(output, key, "it")


def test_steps_of_packed_sequences_are_known() -> None:
    mask = select_masked(PACKED, None, "it")[1]
    assert mask is not None and mask.tolist() == [[True, False], [True, True]]
    assert select_masked(A, None, "it")[1] is None
