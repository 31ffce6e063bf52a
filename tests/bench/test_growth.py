"""Growth is measured point by point, goes on after a stop, and its exponents are those of the curves."""

from __future__ import annotations

import json
from multiprocessing import Pipe

import pytest

from bench import growth, growth_point
from bench.growth import QUICK, exponents, too_long
from bench.growth_point import measure


def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # which a run sets for its children: put back after the test
    out, picture = tmp_path / "growth.json", tmp_path / "growth.png"
    options = ["--quick", "--out", str(out), "--picture", str(picture)]
    assert growth.main(options) == 0
    whole = json.loads(out.read_text())
    points = {(p["axis"], p["value"], p["method"]): p for p in whole["points"]}
    for axis, sizes in QUICK.items():
        for method in ("ours", "scikit-learn"):
            assert all((axis, value, method) in points for value in sizes["values"])
    assert all(p["fit_seconds"] > 0 and p["score_seconds"] > 0 and p["fit_mb"] >= 0 for p in points.values())
    assert whole["complete"] and picture.read_bytes().startswith(b"\x89PNG")
    kept = whole["points"][:-1]
    out.write_text(json.dumps({**whole, "complete": False, "points": kept}))
    asked = []

    def measured(context, method, size, limit):
        asked.append((method, size))
        return {"fit_seconds": 1.0, "score_seconds": 1.0, "fit_mb": 1.0}

    monkeypatch.setattr(growth, "_in_a_process", measured)
    assert growth.main(options[:3]) == 0
    again = json.loads(out.read_text())
    assert again["points"][:-1] == kept and len(again["points"]) == len(points) and again["complete"]
    assert len(asked) == 1 and asked[0][0] == whole["points"][-1]["method"]


def point(value: int, seconds: float, mb: float = 1.0, axis: str = "rows") -> dict:
    size = {"axis": axis, "value": value, "method": "ours"}
    return {**size, "fit_seconds": seconds, "score_seconds": seconds, "fit_mb": mb}


def test_exponents_are_slopes_of_the_upper_half():
    values = [1, 2, 4, 8, 16, 32]
    points = [point(v, max(9.0, v**1.5), 3.0 * v) for v in values]  # flat, where something else takes the time
    found = {e["quantity"]: e["exponent"] for e in exponents([point(v, v**1.5, 3.0 * v) for v in values])}
    assert found == {"fit_seconds": 1.5, "score_seconds": 1.5, "fit_mb": 1.0}
    assert {e["quantity"]: e["exponent"] for e in exponents(points)}["fit_seconds"] > 1.2
    assert exponents(points[:2]) == []  # two points lie on any line


@pytest.mark.parametrize(
    ("seconds", "value", "expected"),
    [([], 10, False), ([1.0], 10, False), ([3.0], 10, True), ([1.0, 4.0], 4, False), ([1.0, 8.0], 4, True)],
)
def test_points_that_would_take_too_long_are_left_out(seconds, value, expected):
    points = [point(v, s / 2) for v, s in zip((1, 2), seconds, strict=False)]  # a fit and a score
    assert too_long(points, value, limit=20) is expected


def test_memory_is_that_of_the_fit_and_not_of_the_data():
    size = {"rows": 200_000, "dim": 64, "classes": 2, "components": 1}
    mb = measure("ours, one Gaussian", size, 0.0)["fit_mb"]
    rows = 4e-6 * size["rows"] * size["dim"]
    assert 0.8 * rows < mb < 6 * rows  # a sorted copy at least; libraries that are loaded meanwhile are small beside it


def test_a_peer_that_is_not_there_is_an_answer(monkeypatch):
    def missing(*_):
        raise ImportError("No module named 'peer'")

    monkeypatch.setitem(growth_point.METHODS, "peer", missing)
    here, there = Pipe(duplex=False)
    growth_point.work("peer", {"rows": 10, "dim": 2, "classes": 2, "components": 1}, 0.0, there)
    assert here.recv() == {"missing": "No module named 'peer'"}
