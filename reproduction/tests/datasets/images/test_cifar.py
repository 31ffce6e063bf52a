"""CIFAR10 and CIFAR100 from small pickles of Python 2 and Python 3, and pickles that want to run something."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduction.datasets.images import cifar10, cifar100
from reproduction.datasets.images._pickled import parse

Write = Callable[[str, bytes], Path]
BATCHES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 3072), dtype=np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, (6, 4))


def python2(value: Any) -> bytes:
    """A pickle of protocol 2 as Python 2 wrote it, where strings are bytes."""

    def put(value: Any) -> bytes:
        if isinstance(value, dict):
            return b"}q\x01(" + b"".join(put(k) + put(v) for k, v in value.items()) + b"u"
        if isinstance(value, list):
            return b"]r\x02\x00\x00\x00(" + b"".join(map(put, value)) + b"e"
        if isinstance(value, int):
            return b"K" + bytes([value])
        if isinstance(value, np.ndarray):
            kind = b"cnumpy\ndtype\n" + put(b"u1") + b"K\x00K\x01\x87R(K\x03" + put(b"|")
            kind += b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
            shape = b"".join(b"M" + struct.pack("<H", side) for side in value.shape)
            head = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + put(b"b") + b"\x87R(K\x01"
            return head + shape + b"\x86" + kind + b"\x89" + put(value.tobytes()) + b"tb"
        return (b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))) + value

    return b"\x80\x02" + put(value) + b"."


def batch(k: int) -> dict[bytes, Any]:
    return {b"batch_label": b"one of six", b"labels": LABELS[k].tolist(), b"data": PIXELS[k], b"filenames": [b"a.png"]}


def python3(value: Any, protocol: int = 2) -> bytes:
    return pickle.dumps(value, protocol=protocol)


def fill(write: Write, dump: Callable[[Any], bytes] = python2) -> dict[str, bytes]:
    contents = {name: dump(batch(k)) for k, name in enumerate(BATCHES)}
    for name, content in contents.items():
        write(f"cifar-10-batches-py/{name}", content)
    return contents


@pytest.mark.parametrize("dump", [python2, python3, lambda value: python3(value, 3), lambda value: python3(value, 4)])
def test_both_parts(dump: Callable[[Any], bytes], write: Write, tmp_path: Path, noted: list[str]) -> None:
    fill(write, dump)
    train, test = cifar10(root=tmp_path), cifar10("test", root=tmp_path)
    assert np.array_equal(train.images.numpy(), PIXELS[:5].reshape(20, 3, 32, 32))
    assert np.array_equal(test.images.numpy(), PIXELS[5].reshape(4, 3, 32, 32))
    assert np.array_equal(train.labels, LABELS[:5].ravel()) and np.array_equal(test.labels, LABELS[5])
    assert not train.official and len(noted) == 1
    assert "data_batch_1, data_batch_2, data_batch_3 and 2 more" in noted[0]


def test_published_batches(write: Write, publish: Callable[..., None], tmp_path: Path, noted: list[str]) -> None:
    publish("cifar10", fill(write))
    assert cifar10(root=tmp_path).official and cifar10("test", root=tmp_path).official and noted == []


def test_text_keys_will_do(write: Write, tmp_path: Path) -> None:
    fill(write, lambda value: python3({key.decode(): entry for key, entry in value.items()}))
    assert len(cifar10(root=tmp_path)) == 20


class Run:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("call", [(os.mkdir,), (Path.mkdir,), (eval,), (np.memmap,), (os.path.join,)])
def test_nothing_in_a_pickle_is_run(call: tuple[Any, ...], protocol: int, write: Write, tmp_path: Path) -> None:
    victim = tmp_path / "made"
    fill(write)
    content = pickle.dumps({b"data": Run(*call, str(victim)), b"labels": []}, protocol=protocol)
    write("cifar-10-batches-py/test_batch", content)
    with pytest.raises(ValueError, match=r"test_batch' is damaged or not a batch .* none of it was run"):
        cifar10("test", root=tmp_path)
    assert not victim.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"(S'ls'\nios\nsystem\n.", "none of it was run"),  # INST
        (b"(cos\nsystem\nU\x02lso.", "names 'os.system'"),
        (b"\x80\x02cnumpy\ndtype\nU\x02u1\x85\x81.", "NEWOBJ"),
        (b"\x80\x02U\x01xQ.", "BINPERSID"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02U\x01x)R.", "calls bytes"),
        (b"\x80\x02}}b.", "fills dict"),
        (b"\x80\x02]U\x01xa", "STOP|exhausted"),
        (python3({b"data": np.zeros((2, 3072), np.float32)}), "an array of 'f4'"),
        (python3({b"data": np.zeros((2, 3), object)}), "an array of 'O8'"),
        (python2({b"data": PIXELS[0]})[:-40], "exhausted|remain"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(content)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.integers(-(2**31), 2**31 - 1) | st.binary(max_size=300) | st.text(max_size=5) | st.none() | st.booleans(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.binary(max_size=3), inner),
        max_leaves=20,
    ),
    st.sampled_from([2, 3, 4]),
)
def test_plain_data_are_read_as_python_would(value: Any, protocol: int) -> None:
    content = pickle.dumps(value, protocol=protocol)
    if b"\x8e" not in content and b"__builtin__" not in content:  # sets and empty bytes in protocol 2 are calls
        assert parse(content) == value


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_either_order(order: Any) -> None:
    values = np.asarray(PIXELS[0], order=order)
    assert np.array_equal(parse(python3(values)), values)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "holds a list, expected a dict"),
        ({b"data": PIXELS[0]}, r"has entries \['data'\], expected 'data' and 'labels'"),
        ({b"data": PIXELS[0, :, :3000], b"labels": [1] * 4}, r"is \(4, 3000\), expected bytes \(n, 3072\)"),
        ({b"data": b"12", b"labels": [1] * 4}, "is bytes, expected"),
        ({b"data": PIXELS[0], b"labels": [1] * 3}, "has 4 images, but 3 labels"),
        ({b"data": PIXELS[0], b"labels": [b"1"] * 4}, "must be a list of integers"),
        ({b"data": PIXELS[0], b"labels": [1, 2, 3, 11]}, "labels outside its 10 classes: 1, first 11"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_contents(value: Any, message: str, write: Write, tmp_path: Path) -> None:
    write("cifar-10-batches-py/test_batch", python2(value))
    with pytest.raises(ValueError, match=message):
        cifar10("test", root=tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 2, 100, 5000, -1])
def test_cut_short(keep: int, write: Write, tmp_path: Path) -> None:
    write("cifar-10-batches-py/test_batch", python2(batch(5))[:keep])
    with pytest.raises(ValueError, match="test_batch' is damaged or not a batch of CIFAR10"):
        cifar10("test", root=tmp_path)


def test_a_missing_batch(write: Write, tmp_path: Path) -> None:
    fill(write)
    (tmp_path / "cifar-10-batches-py/data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_4'.*data fetch cifar10$"):
        cifar10(root=tmp_path)


def hundred(k: int) -> dict[bytes, Any]:
    labels = {b"fine_labels": (9 * LABELS[k]).tolist(), b"coarse_labels": LABELS[k].tolist()}
    return {b"data": PIXELS[k], **labels, b"filenames": [b"a.png"]}


def test_a_hundred_classes_are_the_fine_ones(write: Write, tmp_path: Path, noted: list[str]) -> None:
    for k, name in enumerate(("train", "test")):
        write(f"cifar-100-python/{name}", python2(hundred(k)))
    for k, part in enumerate(("train", "test")):
        found = cifar100(part, root=tmp_path)  # type: ignore[arg-type]
        assert np.array_equal(found.images.numpy(), PIXELS[k].reshape(4, 3, 32, 32))
        assert np.array_equal(found.labels, 9 * LABELS[k]) and not found.official
    assert len(noted) == 1 and "cifar100" in noted[0]


def test_ten_classes_are_not_a_hundred(write: Write, tmp_path: Path) -> None:
    write("cifar-100-python/test", python2(batch(0)))
    with pytest.raises(ValueError, match="expected 'data' and 'fine_labels'"):
        cifar100("test", root=tmp_path)
    write("cifar-100-python/test", b"")
    with pytest.raises(ValueError, match="test' is damaged or not a batch of CIFAR100"):
        cifar100("test", root=tmp_path)
