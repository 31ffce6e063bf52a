from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hidden_uncertainty import io

HEADER: dict[str, Any] = {"layers": {"b": [1, 2.5], "a": None}, "task": "Größe 🙂 \ud800", "ok": True}
TENSORS = {"mean": torch.arange(3.0), "count": torch.tensor(7), "mask": torch.tensor([True, False])}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "detector.safetensors"


def assert_same(result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(result) == set(expected)
    for name, tensor in expected.items():
        assert result[name].dtype == tensor.dtype
        assert result[name].shape == tensor.shape
        assert torch.equal(result[name], tensor)


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join(path: Path, preamble: object, data: bytes) -> None:
    text = json.dumps(preamble).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (3,), (2, 3, 1)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_round_trip(path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (4 * torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).to(dtype)
    io.write(path, HEADER, {"x": tensor})
    header, tensors = io.read(path)
    assert header == HEADER
    assert list(header["layers"]) == ["b", "a"]
    assert_same(tensors, {"x": tensor})


def test_what_a_killed_save_left_is_removed(path: Path) -> None:
    def left(name: str, age: float) -> Path:
        file = path.with_name(name)
        file.touch()
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime - age))
        return file

    stale = left(f".{path.name}.0123456789abcdef.tmp", 3600)
    kept = [
        left(f".{path.name}.123456789abcdef0.tmp", 5),  # another process may be writing it
        left(".other.safetensors.0123456789abcdef.tmp", 3600),
        left(f".{path.name}.mine.tmp", 3600),
    ]
    io.write(path, HEADER, TENSORS)
    assert not stale.exists()
    assert {*path.parent.iterdir()} == {path, *kept}


def test_numbers_that_are_not_finite_survive_in_tensors(path: Path) -> None:
    tensor = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    io.write(path, {}, {"x": tensor})
    assert torch.equal(io.read(path)[1]["x"].view(torch.int32), tensor.view(torch.int32))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), json_values, max_size=4), st.lists(st.text(st.characters(codec="utf-8")), unique=True)
)
@settings(max_examples=40, deadline=None)
def test_any_header_and_names(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], names: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    tensors = {name: torch.full((i,), i) for i, name in enumerate(names) if name != io.METADATA}
    io.write(path, header, tensors)
    result = io.read(path)
    assert result[0] == header
    assert_same(result[1], tensors)


def test_strides_and_sharing_are_no_matter(path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "base": base,
        "same": base,
        "transposed": base.T,
        "column": base[:, 1],
        "expanded": torch.ones(1, 3).expand(2, 3),
        "parameter": torch.nn.Parameter(base),
        "channels": torch.rand(1, 2, 3, 3).to(memory_format=torch.channels_last),
    }
    io.write(path, {}, tensors)
    result = io.read(path)[1]
    assert_same(result, tensors)
    result["base"].zero_()
    assert result["same"].sum() == 66


def test_same_content_same_bytes(path: Path, tmp_path: Path) -> None:
    io.write(path, HEADER, TENSORS)
    other = tmp_path / "other"
    for _ in range(10):
        io.write(other, HEADER, dict(reversed(TENSORS.items())))
        assert other.read_bytes() == path.read_bytes()


def test_safetensors_reads_it_too(path: Path) -> None:
    io.write(path, HEADER, TENSORS)
    assert_same(safetensors.torch.load_file(path), TENSORS)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "hidden-uncertainty"
    assert metadata["version"] == "2"
    assert json.loads(metadata["header"]) == HEADER


def test_device(path: Path) -> None:
    io.write(path, {}, TENSORS)
    assert io.read(str(path), device="meta")[1]["mean"].is_meta


@pytest.mark.parametrize(
    ("header", "error", "text"),
    [
        ({"x": float("nan")}, ValueError, "JSON"),
        ({"x": [float("inf")]}, ValueError, "JSON"),
        ({"x": torch.zeros(1)}, ValueError, "Tensor is not JSON serializable"),
        ({"x": (1, 2)}, ValueError, "not tuples"),
        ({1: 2}, ValueError, "text as keys"),
        ([1], TypeError, "dictionary, not list"),
    ],
)
def test_header_that_is_not_json(path: Path, header: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        io.write(path, header, TENSORS)
    assert not any(path.parent.iterdir())


@pytest.mark.parametrize(
    ("tensors", "error", "text"),
    [
        ({"x": torch.eye(2).to_sparse()}, RuntimeError, "memory format"),
        ({"x": torch.zeros(2, device="meta")}, NotImplementedError, "meta"),
        ({"x": torch.zeros(2, dtype=torch.complex128)}, ValueError, "complex128"),
    ],
)
def test_what_cannot_be_held(path: Path, tensors: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        io.write(path, {}, tensors)
    assert not any(path.parent.iterdir())


def test_folders(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist: make"):
        io.write(tmp_path / "none" / "x.safetensors", {}, {})
    with pytest.raises(ValueError, match="is a folder"):
        io.write(tmp_path, {}, {})
    with pytest.raises(ValueError, match="is a folder"):
        io.read(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        io.read(path)


def test_every_truncation_is_noticed(path: Path) -> None:
    io.write(path, HEADER, TENSORS)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="cut short"):
            io.read(path)


def test_truncation_says_how_much_is_missing(path: Path) -> None:
    io.write(path, {}, {"x": torch.zeros(10_000)})
    size = path.stat().st_size
    os.truncate(path, 12_288)
    with pytest.raises(
        ValueError, match=rf"ends after 12,288 of {size:,} bytes: the file is cut short\. Save it again"
    ):
        io.read(path)


def test_added_bytes_are_noticed(path: Path) -> None:
    io.write(path, HEADER, TENSORS)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=f"is damaged: it has {size + 1} bytes instead of {size}"):
        io.read(path)


def test_bit_flips_are_noticed(path: Path) -> None:
    io.write(path, HEADER, TENSORS)
    content = path.read_bytes()
    flips = random.Random(0).sample(range(8 * len(content)), 400)
    for flip in flips:
        changed = bytearray(content)
        changed[flip // 8] ^= 1 << flip % 8
        path.write_bytes(changed)
        try:
            header, tensors = io.read(path)
        except ValueError:
            continue
        assert header == HEADER
        assert_same(tensors, TENSORS)


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=100, deadline=None)
def test_noise_is_refused(tmp_path_factory: pytest.TempPathFactory, noise: bytes, with_length: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.safetensors"
    path.write_bytes(len(noise).to_bytes(8, "little") + noise if with_length else noise)
    with pytest.raises(ValueError):
        io.read(path)


@pytest.mark.parametrize(
    "content",
    [b"PK\x03\x04 an archive of pickles", b"\x89PNG\r\n\x1a\n and a picture", b"some text", b"\2" + b"\0" * 7 + b"[]"],
)
def test_other_files(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        io.read(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_safetensors_of_others(path: Path, metadata: dict[str, str] | None) -> None:
    safetensors.torch.save_file(TENSORS, path, metadata)
    with pytest.raises(ValueError, match="not one of hidden-uncertainty"):
        io.read(path)


def test_newer_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "FORMAT_VERSION", 3)
    io.write(path, HEADER, TENSORS)
    assert io.read(path)[0] == HEADER
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"newer version \(format 3, this one reads 2\): upgrade hidden-uncertainty"):
        io.read(path)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("__metadata__", "version"), "one"),
        (("__metadata__", "version"), "0"),
        (("__metadata__", "version"), None),
        (("__metadata__", "header"), "{"),
        (("__metadata__", "header"), "{}"),
        (("__metadata__", "header"), None),
        (("__metadata__", "digest"), "0" * 64),
        (("__metadata__", "digest"), 3),
        (("mean",), 3),
        (("mean", "data_offsets"), [0]),
        (("mean", "data_offsets"), [0, "x"]),
        (("mean", "data_offsets"), [-4, 8]),
        (("mean", "data_offsets"), [8, 0]),
        (("mean", "shape"), [2**62, 2**62]),
        (("mean", "shape"), [-3]),
        (("mean", "shape"), [1, 3]),
        (("mean", "dtype"), "I32"),
        (("mean", "dtype"), "Z9"),
    ],
)
def test_impossible_preamble(path: Path, where: tuple[str, ...], value: object) -> None:
    io.write(path, HEADER, TENSORS)
    preamble, data = parts(path)
    place = preamble
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    join(path, preamble, data)
    with pytest.raises(ValueError, match="is damaged"):
        io.read(path)


def test_swapped_names_are_noticed(path: Path) -> None:
    io.write(path, {}, {"a": torch.zeros(2), "b": torch.ones(2)})
    preamble, data = parts(path)
    preamble["a"], preamble["b"] = preamble["b"], preamble["a"]
    join(path, preamble, data)
    with pytest.raises(ValueError, match="digest"):
        io.read(path)


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
def test_failed_write_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    io.write(path, {"version": "old"}, TENSORS)

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(failure)):
        io.write(path, {"version": "new"}, TENSORS)
    assert list(path.parent.iterdir()) == [path]
    assert io.read(path)[0] == {"version": "old"}


def test_content_is_on_disk_before_it_replaces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, move = os.fsync, os.replace

    def fsync(file: int) -> None:
        steps.append("fsync")
        sync(file)

    def replace(source: Path, target: Path) -> None:
        steps.append("replace")
        assert source.parent == target.parent
        move(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    io.write(path, HEADER, TENSORS)
    assert steps == ["fsync", "replace"]


def test_overwrites_through_a_link(path: Path, tmp_path: Path) -> None:
    io.write(path, {"version": "old"}, {})
    link = tmp_path / "latest"
    link.symlink_to(path)
    io.write(link, {"version": "new"}, {})
    assert link.is_symlink()
    assert io.read(path)[0] == {"version": "new"}


def test_permissions_are_those_of_any_new_file(path: Path, tmp_path: Path) -> None:
    io.write(path, {}, {})
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


# Forks after one import: starting Python with torch for each kill would take most of a minute.
KILLED_SAVER = """
import os, random, signal, sys, time
import torch
from hidden_uncertainty import io

torch.set_num_threads(1)
path, moments = sys.argv[1], random.Random(0)
io.write(path, {"round": 0}, {"x": torch.zeros(20_000)})
seen, begun = set(), time.monotonic()
kills = 0
while kills < 20 or (len(seen) < 6 and time.monotonic() - begun < 40):  # a busy machine saves seldom
    kills += 1
    child = os.fork()
    if child == 0:
        start = io.read(path)[0]["round"]
        for i in range(start + 1, start + 100_000):
            io.write(path, {"round": i}, {"x": torch.full((20_000,), float(i))})
    time.sleep(moments.uniform(0.005, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    header, tensors = io.read(path)
    assert tensors["x"].eq(header["round"]).all()
    seen.add(header["round"])
print(len(seen))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_saver_leaves_a_readable_file(path: Path) -> None:
    command = [sys.executable, "-c", KILLED_SAVER, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 5  # kills came between saves that went through


def test_special_files_are_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        mode = path.stat().st_mode
        with pytest.raises(ValueError, match="is a device, a pipe or a socket"):
            io.write(path, {}, {})
        with pytest.raises(ValueError, match="is a device, a pipe or a socket"):
            io.read(path)
        assert path.stat().st_mode == mode
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o400])
def test_a_replaced_file_keeps_its_mode(path: Path, mode: int) -> None:
    path.touch()
    path.chmod(mode)
    io.write(path, HEADER, TENSORS)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_numbers_of_numpy_are_pythons(path: Path) -> None:
    header = {"seed": np.int64(3), "share": np.float32(0.05), "wide": np.float64(0.1), "on": np.bool_(True)}
    io.write(path, header, {})
    found = io.read(path)[0]
    assert found == {"seed": 3, "share": float(np.float32(0.05)), "wide": 0.1, "on": True}
    assert [type(value) for value in found.values()] == [int, float, float, bool]
    with pytest.raises(ValueError, match="ndarray is not JSON serializable"):
        io.write(path, {"x": np.zeros(2)}, {})


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999"])
def test_numbers_that_are_not_finite_in_a_preamble(path: Path, number: str) -> None:
    io.write(path, HEADER, TENSORS)
    preamble, data = parts(path)
    preamble["__metadata__"]["version"] = "NUMBER"
    text = json.dumps(preamble).replace('"NUMBER"', number).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    with pytest.raises(ValueError, match=f"is damaged: its header is not JSON .{number} is no finite number"):
        io.read(path)


def test_blame_goes_to_the_file() -> None:
    for error in (KeyError("terms"), TypeError("x"), OverflowError("x"), AssertionError(), RuntimeError("x.")):
        text = r"^'some' is damaged: its content does not fit together: .+\. Save it"
        with pytest.raises(ValueError, match=text), io.blaming("some"):
            raise error
    for other in (io.Unusable("of another model"), MemoryError(), KeyboardInterrupt(), UserWarning()):
        with pytest.raises(type(other)) as caught, io.blaming("some"):
            raise other
        assert caught.value is other
