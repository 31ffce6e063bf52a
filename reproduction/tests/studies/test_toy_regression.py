from __future__ import annotations

import json

from reproduction.render import render
from reproduction.studies import load


def test_the_toy_study_runs_when_quick(tmp_path) -> None:
    study = load("toy-regression")(quick=True)
    found = {(row["method"], row["region"], row["metric"]): row for row in study.rows}
    methods = ("flow", "joint-mixture", "ensemble", "gaussian-process")
    for method in methods:
        for region in ("gap", "outside"):
            assert 0.5 < found[method, region, "auroc"]["mean"] <= 1
        assert found[method, "inside", "rmse"]["mean"] < found[method, "gap", "rmse"]["mean"]
    assert found["flow", "grid", "rank correlation with gaussian-process"]["n"] == 1
    assert found["gaussian-process", "train", "length scale"]["paper_mean"] == 0.164
    assert set(study.curves) == {"x", *methods}
    assert all(min(study.curves[name]) == 0 and max(study.curves[name]) == 1 for name in methods)
    path = study.write(tmp_path, "a command")
    assert (tmp_path / "toy-regression.png").stat().st_size > 10_000
    table = render(json.loads(path.read_text(encoding="utf-8")))
    assert all(f"| {method} | " in table for method in methods)
