"""The benchmark runs and its two sides agree. No time is asserted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RATIOS = ("em-d100", "em-d512", "init-d100", "init-d512", "score-d100", "score-d512")
HEADS = ("head-batch-1", "head-batch-256")
FLOWS = ("flow-step", "flow-grid")


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    def written():
        return {path.name: path.read_bytes() for path in (ROOT / "bench").glob("*.json*")}

    before, out = written(), tmp_path_factory.mktemp("bench") / "quick.json"
    command = [sys.executable, "-m", "bench", "--quick", "--out", str(out)]
    # Threads that wait for each other without spinning share two cores with the rest of the suite.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert written() == before, "a quick run writes only where it is told to"
    found = json.loads(out.read_text())
    for entry in found:
        assert entry["name"] in done.stdout
    return {(entry["name"], entry["threads"]): entry for entry in found}


def test_every_name_is_there_for_one_and_two_threads(entries):
    names = {*RATIOS, *HEADS, *FLOWS, *(f"{name}-pca100" for name in HEADS)}
    assert set(entries) == {(name, threads) for name in names for threads in (1, 2)} | {("pca-memory-gb", 2)}


def test_every_entry_has_its_number_and_says_where_it_was_made(entries):
    for (name, _), entry in entries.items():
        if name in RATIOS:
            assert entry["ratio"] > 0
            assert math.isclose(entry["ratio"], entry["sklearn_seconds"] / entry["seconds"])
            low, high = entry["ratio_range"]
            assert low <= entry["ratio"] <= high
            assert 0 < entry["ratio_to_their_best"] <= entry["ratio"]
            assert "init" in name or entry["share_of_peak"] > 0
        elif name in FLOWS:
            assert entry["seconds"] > 0 and entry["share_of_peak"] > 0
            if name == "flow-grid":
                assert entry["largest_relative_error"] < 1e-4
        else:
            assert entry["unit"] == ("GB" if name == "pca-memory-gb" else "%")
            assert math.isfinite(entry["value"])
        assert math.isfinite(entry.get("ratio", 0.0))
        assert entry["peak"]["float32_gflops"] > 0
        assert entry["machine"]["cpu"]
        assert entry["machine"]["cores"] >= 1
        assert set(entry["machine"]["versions"]) == {"python", "torch", "sklearn", "numpy", "scipy"}
        assert entry["date"]


@pytest.mark.parametrize("name", ["em-d100", "em-d512"])
def test_both_sides_of_em_arrive_at_one_likelihood(entries, name):
    for threads in (1, 2):
        entry = entries[name, threads]
        assert math.isclose(entry["log_likelihood"], entry["sklearn_log_likelihood"], abs_tol=1e-3)
        assert entry["largest_difference"] < 1e-3
        assert entry["rows_with_weight"][0] == pytest.approx(0.2)  # k-means gives each row to one of five


@pytest.mark.parametrize("name", ["init-d100", "init-d512"])
def test_both_starts_are_about_as_likely(entries, name):
    for threads in (1, 2):
        entry = entries[name, threads]
        assert entry["log_likelihood"] == pytest.approx(entry["sklearn_log_likelihood"], rel=0.2)


@pytest.mark.parametrize("name", HEADS)
def test_other_methods_are_beside_the_head(entries, name):
    for threads in (1, 2):
        others = entries[name, threads]["others"]
        assert {"ensemble", "mc-dropout", "multivariate-normal"} <= set(others)
        assert others["ensemble"]["extra"] > 1  # ten networks instead of one


@pytest.mark.parametrize("name", ["score-d100", "score-d512"])
def test_scores_are_those_of_float64(entries, name):
    for threads in (1, 2):
        assert entries[name, threads]["largest_relative_error"] < 1e-4


def test_principal_components_capture_what_scikit_learn_captures(entries):
    beside = entries["pca-memory-gb", 2]["beside"]
    assert beside["ours"]["captured"] == pytest.approx(beside["sklearn"]["captured"], abs=0.02)
    assert 0 < beside["sklearn"]["captured"] < 1
