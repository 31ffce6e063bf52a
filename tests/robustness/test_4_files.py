"""Files."""

import io
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import zipfile

import pytest
import torch

from hidden_uncertainty import GaussianMixture, LatentDensity
from tried import tried


@pytest.fixture
def saved(trained, data, tmp_path):
    path = tmp_path / "detector.safetensors"
    detector = LatentDensity(trained, "hidden", GaussianMixture(1)).fit(data["train"], calibration=data["unseen"][:1])
    detector.threshold(0.1)
    detector.save(path)
    return path, detector.predict(data["test"][:1])


def loads(path, model, data, expected):
    """Whether the file loads; if so it must be the right detector."""
    try:
        detector = LatentDensity.load(path, model)
    except ValueError as error:
        if path.name not in str(error):
            raise  # an error that does not name the file is no clear one
        return False
    u = detector.predict(data["test"][:1])
    assert torch.equal(u.epistemic, expected.epistemic) and torch.equal(u.p_value, expected.p_value)
    assert u.threshold == expected.threshold
    return True


@tried("a file cut short at any byte", "error that says where it ends and where it should")
def test_truncation(trained, data, saved, untouched):
    untouched(trained)
    path, expected = saved
    whole = path.read_bytes()
    for length in [*range(0, len(whole), max(1, len(whole) // 400)), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert not loads(path, trained, data, expected)
    path.write_bytes(whole)
    assert loads(path, trained, data, expected)


@tried("random bits flipped", "error, or the right detector; never another one")
def test_bit_flips(trained, data, saved, untouched):
    untouched(trained)
    path, expected = saved
    whole = path.read_bytes()
    draw = random.Random(0)
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2, 8])):
            broken[draw.randrange(len(broken))] ^= 1 << draw.randrange(8)
        path.write_bytes(broken)
        loads(path, trained, data, expected)


class Bomb:
    """Runs code when unpickled."""

    def __reduce__(self):
        return os._exit, (3,)


@tried("pickles, archives and other files in its place", "error; nothing in them is run")
def test_foreign(trained, data, tmp_path, untouched):
    untouched(trained)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    path = tmp_path / "detector.safetensors"
    for content in (pickle.dumps(Bomb()), archive.getvalue(), b"\x08\0\0\0\0\0\0\0{}      ", b"text", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"detector\.safetensors"):
            LatentDensity.load(path, trained)


@tried("a detector of another network", "error with the parameter that differs; other weights: a warning")
def test_other_model(trained, saved, untouched):
    untouched(trained)
    path, _ = saved
    with pytest.raises(ValueError, match="was fitted for another model"):
        LatentDensity.load(path, torch.nn.Linear(2, 3))


SAVER = """
import sys, torch
from torch import nn
from hidden_uncertainty import GaussianMixture, LatentDensity
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 64), nn.Linear(64, 3))
detector = LatentDensity(model, "0", GaussianMixture(1), task="classification").fit([torch.randn(300, 2)])
torch.save(model.state_dict(), sys.argv[2])
detector.save(sys.argv[1])
print("saved", flush=True)
while True:
    detector.save(sys.argv[1])
"""


@tried("a saver killed at any moment", "the old file or the new one, whole")
def test_killed(tmp_path):
    path, weights = tmp_path / "detector.safetensors", tmp_path / "weights.pt"
    process = subprocess.Popen([sys.executable, "-c", SAVER, path, weights], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "saved\n"
    time.sleep(random.Random(0).random() / 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Linear(64, 3))
    model.load_state_dict(torch.load(weights, weights_only=True))
    assert LatentDensity.load(path, model)(torch.randn(2, 2)).epistemic.isfinite().all()


@tried("a full disc, or a folder that cannot be written", "error; the old file stays and nothing is left beside it")
def test_failing_write(trained, data, saved, untouched, monkeypatch):
    untouched(trained)
    path, expected = saved
    detector = LatentDensity(trained, "hidden", GaussianMixture(2)).fit(data["train"])

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        detector.save(path)
    monkeypatch.undo()
    assert loads(path, trained, data, expected)
    assert [file.name for file in path.parent.iterdir()] == ["detector.safetensors"]
