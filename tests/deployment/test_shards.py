"""Scores of large sets: every input once, whatever stops a run."""

import os
import signal
import subprocess
import sys
import time

import pandas
import pytest
import torch
from torch import nn

from hidden_uncertainty import GaussianMixture, LatentDensity, write_scores


def build():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(600, 4, generator=generator)
    detector = LatentDensity(model, "0", GaussianMixture(1), task="classification")
    detector.fit(x[:400].split(100), calibration=[x[400:]]).threshold(0.05)
    return detector, torch.randn(1000, 4, generator=generator)


@pytest.fixture(scope="module")
def fitted():
    return build()


def test_every_input_once_in_order_with_names(fitted, tmp_path):
    detector, x = fitted
    batches = [(part, torch.zeros(len(part), dtype=torch.long)) for part in x.split(64)]
    file = write_scores(detector, batches, tmp_path / "new", names=lambda batch: [f"{v:.6f}" for v in batch[0][:, 0]])
    frame = pandas.read_parquet(file)
    assert file.name == "scores-00000-of-00001.parquet" and os.listdir(file.parent) == [file.name]
    assert frame["input"].tolist() == list(range(1000))
    assert frame["name"].tolist() == [f"{v:.6f}" for v in x[:, 0]]
    u = detector.predict(batches)
    assert frame["epistemic"].tolist() == u.epistemic.tolist()
    assert frame["surprising"].tolist() == u.surprising.tolist()


def test_shards_of_several_processes(fitted, tmp_path):
    detector, x = fitted
    for rank in range(3):
        write_scores(detector, x[rank::3].split(50), tmp_path, shard=(rank, 3), rows=120)
    frames = [pandas.read_parquet(file) for file in sorted(tmp_path.iterdir())]
    assert [len(frame) for frame in frames] == [334, 333, 333]
    found = sorted(value for frame in frames for value in frame["epistemic"])
    assert found == pytest.approx(sorted(detector(x).epistemic.tolist()), rel=1e-5)
    with pytest.raises(ValueError, match="another number of processes; this one has 1"):
        write_scores(detector, x.split(50), tmp_path, shard=(0, 1))


def test_names_that_begin_missing_or_whole(fitted, tmp_path):
    detector, x = fitted
    for kind, second in (("text", "a.png"), ("number", 0.5)):
        given = iter([None if kind == "text" else 1, second] * 10)
        file = write_scores(detector, x[:100].split(50), tmp_path / kind, names=lambda b: [next(given)] * 50, rows=50)  # noqa: B023
        names = pandas.read_parquet(file)["name"]
        assert names[99] == second and (pandas.isna(names[0]) if kind == "text" else names[0] == 1)


def test_torchrun_says_which_shard(fitted, tmp_path, monkeypatch):
    detector, x = fitted
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert write_scores(detector, [x[:10]], tmp_path).name == "scores-00002-of-00005.parquet"


class Stops:
    """A loader that fails after some batches, and counts what it gave."""

    def __init__(self, x, after):
        self.x, self.after, self.given = x, after, 0

    def __iter__(self):
        for place, part in enumerate(self.x.split(50)):
            if place == self.after:
                raise OSError("the disk is gone")
            self.given += 1
            yield part


def test_a_run_that_failed_goes_on(fitted, tmp_path, monkeypatch):
    detector, x = fitted
    with pytest.raises(OSError, match="the disk is gone"):
        write_scores(detector, Stops(x, 9), tmp_path, rows=100)
    assert [file.suffix for file in sorted(tmp_path.iterdir())] == [
        ".part-000000",
        ".part-000001",
        ".part-000002",
        ".part-000003",
    ]
    scored, call = [], type(detector).__call__
    monkeypatch.setattr(type(detector), "__call__", lambda self, item: scored.append(len(item)) or call(self, item))
    file = write_scores(detector, x.split(50), tmp_path, rows=100)
    assert sum(scored) == 600  # of 1,000: 400 stood in whole parts
    frame = pandas.read_parquet(file)
    assert frame["input"].tolist() == list(range(1000))
    assert frame["epistemic"].tolist() == detector.predict(x.split(50)).epistemic.tolist()
    assert write_scores(detector, x.split(50), tmp_path) == file and sum(scored) == 600


def test_going_on_needs_the_same_inputs_and_detector(fitted, tmp_path):
    detector, x = fitted
    with pytest.raises(OSError, match="the disk is gone"):
        write_scores(detector, Stops(x, 9), tmp_path, rows=100)
    with pytest.raises(ValueError, match="same inputs in the same order"):
        write_scores(detector, x.flip(0).split(50), tmp_path)
    with pytest.raises(ValueError, match="same inputs in the same order"):
        write_scores(detector, [x[:100]], tmp_path)
    other, _ = build()
    other.threshold(0.2)
    with pytest.raises(ValueError, match="another detector"):
        write_scores(other, x.split(50), tmp_path)
    again, _ = build()
    assert len(pandas.read_parquet(write_scores(again, x.split(50), tmp_path))) == 1000


def test_a_full_disk_leaves_nothing_half_written(fitted, tmp_path, monkeypatch):
    from pyarrow import parquet

    def full(table, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    detector, x = fitted
    monkeypatch.setattr(parquet, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        write_scores(detector, x.split(50), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_loses_nothing(fitted, tmp_path):
    detector, x = fitted
    slow = (
        "import runpy, sys, time\n"
        "from hidden_uncertainty import write_scores\n"
        "detector, x = runpy.run_path(sys.argv[2])['build']()\n"
        "def loader():\n"
        "    for part in x.split(10):\n"
        "        time.sleep(0.02)\n"
        "        yield part\n"
        "write_scores(detector, loader(), sys.argv[1], rows=50)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", slow, str(tmp_path), __file__])
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("scores*.part-*"))) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = list(tmp_path.glob("scores*.part-*"))
    assert len(before) >= 4
    frame = pandas.read_parquet(write_scores(detector, x.split(10), tmp_path))
    assert frame["input"].tolist() == list(range(1000))
    assert frame["epistemic"].tolist() == detector.predict(x.split(10)).epistemic.tolist()
    assert len(list(tmp_path.glob("scores*"))) == 1


def test_errors_say_what_to_do(fitted, tmp_path, monkeypatch):
    detector, x = fitted
    with pytest.raises(ValueError, match="names= gave 2 names for a batch of 50 inputs"):
        write_scores(detector, x.split(50), tmp_path / "a", names=lambda batch: ["a", "b"])
    with pytest.raises(ValueError, match="nothing to score"):
        write_scores(detector, [], tmp_path / "b")
    with pytest.raises(ValueError, match=r"such as \(0, 2\), not \(2, 2\)"):
        write_scores(detector, [x], tmp_path / "b", shard=(2, 2))
    with pytest.raises(RuntimeError, match="is not fitted"):
        write_scores(LatentDensity(nn.Linear(4, 2), ""), [x], tmp_path / "c")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"hidden-uncertainty\[parquet\]"):
        write_scores(detector, [x], tmp_path / "d")
