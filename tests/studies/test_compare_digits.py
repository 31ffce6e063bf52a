"""The comparison on digits, in its rough version."""

import json

import pytest

from hidden_uncertainty.comparison import FORWARD
from hidden_uncertainty.studies.compare_digits import SETTINGS, read, run


@pytest.fixture(scope="module")
def study():
    return run(quick=True, progress=False)


def test_every_method_is_there_with_everything(study):
    found = {(row["method"], row["ood"], row["metric"]): row["mean"] for row in study.rows}
    methods = {method for method, _, _ in found} - {FORWARD}
    assert len(methods) == 14 and "deep ensemble of 2" in methods and "MC dropout, 10 samples" in methods
    for method in methods:
        for ood in ("digits 8-9", "turned 90°", "noise 0.3"):
            assert all(0 <= found[method, ood, metric] <= 1 for metric in ("auroc", "average precision", "fpr95"))
        for metric in ("accuracy", "aurc epistemic", "ms per input", "times forward", "kept MiB", "train seconds"):
            assert found[method, None, metric] >= 0
    assert found["latent density", "digits 8-9", "auroc"] > 0.8
    # What must be so by construction.
    assert found["softmax entropy", None, "aurc epistemic"] == found["softmax entropy", None, "aurc aleatoric"]
    assert found["energy", None, "kept MiB"] == 0 < found["deep ensemble of 2", None, "kept MiB"]
    assert found["deep ensemble of 2", None, "train seconds"] > found["energy", None, "train seconds"]


def test_it_is_written_and_read_again(study, tmp_path):
    path = study.write(tmp_path, "a command")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["compare-digits.json", "compare-digits.png"]
    result = json.loads(path.read_text(encoding="utf-8"))
    assert (
        result["seeds"] == [0] and result["settings"]["k of nearest neighbours"] == SETTINGS["k of nearest neighbours"]
    )
    assert all({"train", "ood", "method", "metric", "mean", "std", "n"} == set(row) for row in result["rows"])
    text = str(read(result))
    assert "latent density, paper's setting" in text and "1 thread, on cpu" in text and result["hardware"] in text
