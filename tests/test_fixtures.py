"""Detectors that earlier versions saved load, and score as they did then; `fixtures/make.py` made them."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fixtures.networks import network, scores
from hidden_uncertainty import Detector

EXPECTED = ".expected.safetensors"
FILES = sorted(Path(__file__).parent.glob(f"fixtures/*/*{EXPECTED}"))


def test_there_are_files():
    assert {file.parent.name for file in FILES} == {"0.1.0", "0.2.0"}
    assert all(file.stat().st_size < 60_000 for file in Path(__file__).parent.glob("fixtures/*/*.safetensors"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # an old file has old options
@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.name.removesuffix(EXPECTED)}")
def test_scores_as_it_did(file):
    case = file.name.removesuffix(EXPECTED)
    expected = load_file(file)
    x = expected.pop("x")
    model = network(case)
    weights = [name for name in expected if name.startswith("weights.")]
    model.load_state_dict({name.removeprefix("weights."): expected.pop(name) for name in weights})

    detector = Detector.load(file.with_name(f"{case}.safetensors"), model)

    with safe_open(file, "pt") as opened:
        assert str(detector.calibrated) == opened.metadata()["calibrated"]
    found = scores(detector, x)
    if detector.condition == "prediction":  # which tells nothing of labels, though version 0.1.0 said so
        assert not [name for name in found if name.endswith("expected_error")]
        expected = {name: value for name, value in expected.items() if not name.endswith("expected_error")}
    assert not expected.keys() - found.keys()
    for name, value in expected.items():
        # Scores near zero are differences of large ones, and a residual is one of squares, which costs more digits.
        scale = (10 if name.endswith(".residual") else 1) * float(value.double().abs().max())
        inexact = {"rtol": 1e-5, "atol": 1e-5 * scale} if value.is_floating_point() else {"rtol": 0, "atol": 0}
        same = found[name].to(value.dtype)  # p-values are in float64 since version 0.2
        torch.testing.assert_close(same, value, **inexact, msg=lambda text, name=name: f"{name}: {text}")
