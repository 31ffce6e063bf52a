from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hidden_uncertainty.model.batches import Batch, batches, called, count, dtype_of, require_repeatable, unpack

X, Y, MASK = torch.arange(12.0).reshape(3, 4), torch.tensor([0, 1, 2]), torch.ones(3, 4, dtype=torch.bool)
Pair = namedtuple("Pair", ["image", "label"])


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.equal(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or bool(a == b)


@pytest.mark.parametrize(
    ("item", "args", "kwargs", "label"),
    [
        (X, (X,), {}, None),
        ((X,), (X,), {}, None),
        ([X], (X,), {}, None),
        ((X, Y), (X,), {}, Y),
        ([X, Y], (X,), {}, Y),
        (Pair(X, Y), (X,), {}, Y),
        ((X, None), (X,), {}, None),
        ((X, [0, 1, 2]), (X,), {}, Y),
        ((X, np.array([0, 1, 2])), (X,), {}, Y),
        (([X, MASK], Y), (X, MASK), {}, Y),
        ({"x": X}, (), {"x": X}, None),
        ({"x": X, "labels": Y}, (), {"x": X}, Y),
        ({"label": Y, "x": X, "flag": True}, (), {"x": X, "flag": True}, Y),
        (UserDict(x=X, labels=Y), (), {"x": X}, Y),
        (({"x": X}, Y), (), {"x": X}, Y),
        (({"x": X, "labels": Y},), (), {"x": X}, Y),
        (({"x": X, "labels": Y}, None), (), {"x": X}, Y),
        (X.numpy(), (X,), {}, None),
        (X.numpy()[::-1], (X.flip(0),), {}, None),
        (X.numpy().astype(">f4"), (X,), {}, None),
        ((np.broadcast_to(X.numpy(), X.shape), Y.numpy()), (X,), {}, Y),  # which cannot be written to
        (([X.numpy(), {"m": MASK.numpy()}], Y), (X, {"m": MASK}), {}, Y),
        ({"x": X.numpy(), "labels": Y.numpy()}, (), {"x": X}, Y),
        ((pd.DataFrame(X.numpy()), pd.Series(Y.numpy(), index=[7, 5, 9])), (X,), {}, Y),
    ],
)
def test_what_loaders_give(item: Any, args: tuple[Any, ...], kwargs: dict[str, Any], label: Tensor | None) -> None:
    batch = unpack(item)
    assert same(batch.args, args)
    assert same(batch.kwargs, kwargs)
    assert same(batch.label, label)
    assert len(batch) == 3


def test_the_users_dictionary_is_not_emptied() -> None:
    item = {"x": X, "labels": Y}
    unpack(item)
    assert list(item) == ["x", "labels"]


@pytest.mark.parametrize(
    ("inputs", "args", "kwargs"),
    [
        (X, (X,), {}),
        ((X, MASK), (X, MASK), {}),
        ({"x": X, "labels": Y}, (), {"x": X, "labels": Y}),  # what the function returns is taken at its word
    ],
)
@pytest.mark.parametrize("label", [Y, None])
def test_an_adapter_decides(inputs: Any, args: Any, kwargs: Any, label: Tensor | None) -> None:
    batch = unpack("anything", lambda item: (inputs, label))
    assert same((batch.args, batch.kwargs, batch.label), (args, kwargs, label))


@pytest.mark.parametrize(
    ("item", "error", "match"),
    [
        ((X, MASK, Y), TypeError, r"the loader gave a tuple of 3 \(Tensor, Tensor, Tensor\). Pass unpack="),
        ((), TypeError, "a tuple of 0"),
        (np.array([["a"]] * 3), TypeError, r"ndarray of shape \(3, 1\) holds <U1, which no tensor can"),
        (pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), TypeError, r"DataFrame of shape \(2, 2\) holds object"),
        ("text", TypeError, r"'text' \(str\)"),
        (3, TypeError, r"3 \(int\)"),
        (["a", "b"], TypeError, r"'a' \(str\)"),
        ({"x": [1, 2]}, TypeError, "without a tensor"),
        ({}, TypeError, "without a tensor"),
        (object(), TypeError, "an object of type object"),
        (torch.tensor(1.0), ValueError, "without dimensions"),
        ((X, Y[:2]), ValueError, r"3 samples, but its label is of shape \(2,\)"),
        (pack_sequence([X, X]), TypeError, r"a packed sequence .* as \(\(x, lengths\), y\)"),
        ((pack_sequence([X, X]), Y[:2]), TypeError, "a packed sequence does not count its samples"),
        ((X[0], 1), ValueError, r"4 samples, but its label is of shape \(\)"),
        ((X, ["a", "b", "c"]), TypeError, "label is a list of 3.*unpack=lambda batch"),
        ((X, [{"boxes": X}] * 3), TypeError, "cannot be a tensor"),
        ({"x": X, "label": Y, "labels": Y}, ValueError, r"more than one label: \['labels', 'label'\]"),
        (({"x": X, "label": Y}, Y), ValueError, r"more than one label: \['label'\]"),
    ],
)
def test_what_cannot_be_understood(item: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        unpack(item)


@pytest.mark.parametrize("result", [X, {"x": X}, (X,), (X, Y, Y), None])
def test_an_adapter_must_return_a_pair(result: Any) -> None:
    with pytest.raises(TypeError, match=r"unpack= returned .*must return \(inputs, label\)"):
        unpack(X, lambda item: result)


def test_moving_reaches_nested_tensors_and_leaves_the_rest() -> None:
    batch = Batch((X, [X, "text"]), {"pair": Pair(X, Y), "nested": {"x": (X,)}, "flag": True}, Y)
    moved = batch.to("meta")
    tensors = [moved.args[0], moved.args[1][0], moved.kwargs["pair"].image, moved.kwargs["nested"]["x"][0], moved.label]
    assert all(isinstance(tensor, Tensor) and tensor.device.type == "meta" for tensor in tensors)
    assert moved.args[1][1] == "text"
    assert moved.kwargs["flag"] is True
    assert isinstance(moved.kwargs["pair"], Pair)
    assert batch.args[0].device.type == "cpu"
    assert len(moved) == 3


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]),
    data=st.data(),
)
def test_digests_depend_on_content_alone(seed: int, dtype: torch.dtype, data: st.DataObject) -> None:
    n = 12
    x = torch.randint(0, 2, (n, 3, 5), generator=torch.Generator().manual_seed(seed)).to(dtype)
    order = torch.tensor(data.draw(st.permutations(range(n))))
    cut = data.draw(st.integers(1, n - 1))
    whole = unpack(x).digests()
    assert whole.dtype == np.uint64
    parts = [unpack((part, torch.zeros(len(part)))).digests() for part in (x[order][:cut], x[order][cut:])]
    assert (np.concatenate(parts) == whole[order.numpy()]).all()
    rows = x.flatten(1)
    for i in range(n):
        assert ((whole == whole[i]) == (rows == rows[i]).all(1).numpy()).all()


def test_digests_of_layouts_and_padding() -> None:
    x = torch.randn(4, 3, 8, 8)
    assert (unpack(x).digests() == unpack(x.to(memory_format=torch.channels_last)).digests()).all()
    ids = torch.tensor([[5, 7, 0], [5, 0, 7]])
    padded = torch.cat([ids, torch.zeros(2, 4, dtype=torch.int64)], 1)
    assert (
        unpack({"ids": ids, "mask": ids > 0}).digests() == unpack({"mask": padded > 0, "ids": padded}).digests()
    ).all()
    assert len(set(unpack(ids).digests())) == 2


def test_digests_look_at_every_input_and_not_at_the_label() -> None:
    first = unpack({"a": X, "b": MASK, "scale": torch.tensor(2.0), "labels": Y}).digests()
    assert (first == unpack({"b": MASK, "a": X, "scale": torch.tensor(3.0), "labels": 2 - Y}).digests()).all()
    changed = MASK.clone()
    changed[1, 2] = False
    assert list(first == unpack({"a": X, "b": changed}).digests()) == [True, False, True]
    # what moves from the end of one input to the start of the next is another sample
    ones, zeros = torch.ones(1, 2), torch.zeros(1, 2)
    assert unpack(((ones, zeros), None)).digests() != unpack(((zeros, ones), None)).digests()


def test_digests_spread_evenly() -> None:
    digests = unpack(torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))).digests()
    share = (digests < np.uint64(2**64 // 10)).mean()
    assert abs(share - 0.1) < 4 * (0.1 * 0.9 / 4000) ** 0.5


def test_digests_of_nothing() -> None:
    assert unpack(torch.zeros(0, 4)).digests().shape == (0,)
    assert len(set(unpack(torch.zeros(3, 0)).digests())) == 1


def test_batches_of_loaders() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=2)
    given = list(batches(loader, device="meta"))
    assert [len(batch) for batch in given] == [2, 1]
    assert all(batch.args[0].device.type == "meta" for batch in given)
    adapted = list(batches([(X, MASK, Y)], adapter=lambda item: (item[:2], item[2])))
    assert same(adapted[0].args, (X, MASK))
    assert next(batches([X])).args[0] is X


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield X


@pytest.mark.parametrize("loader", [Stream(), [X], iter([X]), (item for item in [X]), {X}])
def test_any_iterable_is_a_loader(loader: Any) -> None:
    assert len(list(batches(loader))) == 1


@pytest.mark.parametrize(
    ("loader", "error", "match"),
    [
        ([], ValueError, "the loader gave no batches; a generator that was used before is empty"),
        (X, TypeError, r"wrap one batch as \[batch\]"),
        ("data", TypeError, "a loader gives batches, but 'data'"),
        (X.numpy(), TypeError, r"but ndarray of shape \(3, 4\) came; wrap one batch as \[batch\]"),
        (pd.DataFrame(X.numpy()), TypeError, r"but DataFrame of shape \(3, 4\) came; wrap one batch as \[batch\]"),
        ((X.numpy(), Y.numpy()), TypeError, "a pair of inputs and labels came"),
        ((pd.DataFrame(X.numpy()), pd.Series(Y.numpy())), TypeError, "a pair of inputs and labels came"),
        ((X, Y[:, None]), TypeError, "a pair of inputs and labels came"),
        (({"x": X}, Y), TypeError, "a pair of inputs and labels came"),
        ({"x": X}, TypeError, r"wrap one batch as \[batch\]"),
        ((X, Y), TypeError, r"a pair of inputs and labels came; wrap one batch as \[\(x, y\)\]"),
        (TensorDataset(X, Y), TypeError, r"TensorDataset gives single samples.*DataLoader\(dataset"),
    ],
)
def test_what_is_no_loader(loader: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        list(batches(loader))


def test_a_generator_is_read_once() -> None:
    generator = (item for item in [X])
    require_repeatable(generator, passes=1)
    require_repeatable([X], passes=3)
    require_repeatable(DataLoader(TensorDataset(X)), passes=3)
    with pytest.raises(TypeError, match=r"a generator, which can be read only once, but 2 passes"):
        require_repeatable(generator, passes=2)
    assert len(list(generator)) == 1  # asking did not read it


def test_loaders_over_streams_need_not_know_their_length() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[Tensor]:
            return iter(X)

        def __len__(self) -> int:
            raise NotImplementedError

    assert count(DataLoader(Stream(), batch_size=2)) is None


def test_inputs_without_a_tensor_are_said() -> None:
    with pytest.raises(TypeError, match=r"no tensor among the inputs.*torch.as_tensor"):
        len(Batch((["a", "b"],), {}, None))


def test_a_clone_shares_nothing() -> None:
    batch = Batch((X.clone(), [MASK.clone()]), {"more": {"x": X.clone()}}, Y.clone())
    copy = batch.clone()
    assert same(list(batch.args), list(copy.args)) and same(batch.kwargs, copy.kwargs)
    for tensor in (copy.args[0], copy.args[1][0], copy.kwargs["more"]["x"], copy.label):
        tensor.zero_()
    assert batch.args[0].equal(X) and batch.args[1][0].equal(MASK) and batch.label is not None and batch.label.equal(Y)
    assert batch.kwargs["more"]["x"].equal(X)


def test_batches_without_inputs_are_left_out_unless_there_are_no_others() -> None:
    x = torch.zeros(3, 4)
    assert [len(batch) for batch in batches([x[:0], x, x[:0], x[:1]])] == [3, 1]
    assert [len(batch) for batch in batches([x[:0], x[:0]])] == [0]


def test_arrays_in_floating_point_take_the_precision_of_the_model() -> None:
    item = {"x": X.double().numpy(), "ids": Y.numpy(), "mask": Y.numpy() > 0, "labels": X[:, 0].double().numpy()}
    for kind in (torch.float16, torch.float32, torch.float64):
        model = nn.Sequential(nn.Embedding(2, 2), nn.Linear(4, 2)).to(kind)
        assert dtype_of(model) == kind
        (batch,) = batches([item], dtype=kind)
        assert same(batch.kwargs, {"x": X.double().to(kind), "ids": Y, "mask": Y > 0})
        assert batch.label is not None and batch.label.dtype == torch.float64  # the network does not see it
    assert dtype_of(nn.Identity()) is None
    assert unpack(item).kwargs["x"].dtype == torch.float64
    tensors = unpack({"x": X.double()}, dtype=torch.float16)
    assert tensors.kwargs["x"].dtype == torch.float64  # tensors are the caller's business


def test_arrays_are_copied() -> None:
    array = X.numpy().copy()
    unpack(array).args[0].zero_()
    assert (array == X.numpy()).all()


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((X, Y), {}, ((X, Y), {}, None)),  # two inputs
        (((X, Y),), {}, ((X,), {}, Y)),  # a batch
        (([X, Y],), {}, ((X,), {}, Y)),
        (((X,),), {}, ((X,), {}, None)),
        (({"x": X, "labels": Y},), {}, ((), {"x": X}, Y)),
        ((), {"x": X, "labels": Y}, ((), {"x": X}, Y)),
        ((X.numpy(),), {"mask": MASK.numpy()}, ((X,), {"mask": MASK}, None)),
        ((["two", "texts"],), {}, ((["two", "texts"],), {}, None)),
        ((), {"texts": ["two", "texts"]}, ((), {"texts": ["two", "texts"]}, None)),
    ],
)
def test_what_calls_give(args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[Any, ...]) -> None:
    batch = called(args, kwargs)
    assert same((batch.args, batch.kwargs, batch.label), expected)


def test_adapters_see_batches_but_not_inputs() -> None:
    def adapter(item: Any) -> Any:
        return item[:2], item[2]

    assert same(called(((X, MASK, Y),), {}, adapter).args, (X, MASK))
    assert same(called((X,), {}, adapter).args, (X,))
    assert same(called((X.numpy(),), {}, adapter).args, (X,))
    assert same(called((), {"x": X, "labels": Y}, adapter).kwargs, {"x": X, "labels": Y})
    assert called((["abc", "de"],), {}, lambda texts: (torch.tensor([[len(text)] for text in texts]), None)).args[
        0
    ].tolist() == [[3], [2]]
    own = called((Own(X),), {}, lambda item: (item.x, None))
    assert same(own.args, (X,))


class Own:
    def __init__(self, x: Tensor) -> None:
        self.x = x
