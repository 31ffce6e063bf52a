"""All methods on digits, in the rough version."""

from __future__ import annotations

from hidden_uncertainty.comparison import FORWARD
from hidden_uncertainty.demo.measure import compare_methods


def test_every_method_is_there_with_everything() -> None:
    comparison = compare_methods(seeds=range(2), quick=True, progress=False)
    assert {row["n"] for row in comparison.rows} == {1}
    found = {(row["method"], row["ood"], row["metric"]): row["value"] for row in comparison.rows}
    methods = set(comparison.methods) - {FORWARD}
    assert len(methods) == 11 and "deep ensemble of 2" in methods and "MC dropout, 10 samples" in methods
    for method in methods:
        for ood in ("digits 8-9", "turned 90°", "noise 0.3"):
            assert all(0 <= found[method, ood, metric] <= 1 for metric in ("auroc", "average precision", "fpr95"))
        for metric in ("accuracy", "aurc epistemic", "ms per input", "times forward", "kept MiB", "train seconds"):
            assert found[method, None, metric] >= 0
    assert found["latent density", "digits 8-9", "auroc"] > 0.8
    # What must be so by construction.
    assert found["softmax entropy", None, "aurc epistemic"] == found["softmax entropy", None, "aurc aleatoric"]
    assert found["energy", None, "kept MiB"] < 0.01 < found["deep ensemble of 2", None, "kept MiB"]
    assert found["deep ensemble of 2", None, "train seconds"] > found["energy", None, "train seconds"]
