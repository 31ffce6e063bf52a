"""The simulation of monitors: what it compares with is what it says, and it runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import ks_2samp

from bench import monitor
from bench.render import SECTIONS

RANDOM = np.random.default_rng(0)


def test_batches_alarm_where_scipy_finds_a_difference():
    known, stream = RANDOM.standard_normal(50), RANDOM.standard_normal(1000) + np.linspace(0, 1.5, 1000)
    p = [ks_2samp(known, part, method="exact").pvalue for part in stream.reshape(-1, monitor.BATCH)]
    for rate in (0.5, 0.05, 1e-3, 1e-6):
        first = next((100 * (i + 1) for i, value in enumerate(p) if value <= rate / 10), None)
        assert monitor.batches(known, stream, rate, tests=10) == first


def test_what_each_way_is():
    known, stream = RANDOM.standard_normal(300), RANDOM.standard_normal(400) + 1
    found = {watch: watch(known, stream, 0.01, 4) for watch in monitor.METHODS.values()}
    assert all(alarm is not None and alarm <= 100 for alarm in found.values())
    assert found[monitor.higher] <= found[monitor.ours]  # what it does not stake on lower scores
    assert monitor.ours(known, -stream, 0.01, 4) + 10 < monitor.higher(known, -stream, 0.01, 4)
    other = np.sort(stream)  # counts know no order, but for when they are looked at
    assert monitor.counts(known, other[200:], 1e-9, 4) < monitor.counts(known, stream[200:], 1e-9, 4)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "monitor.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "QUICK", {"streams": 3, "inputs": 200, "delay_streams": 2, "quiet": 100, "longest": 100})
        assert monitor.main(["--quick", "--out", str(out)]) == 0
    return json.loads(out.read_text())


def test_a_run_and_its_tables(result):
    assert len(result["false_alarms"]) == 2 * (len(monitor.METHODS) - 1)
    assert len(result["delays"]) == 2 * len(monitor.SHIFTS) * (len(monitor.METHODS) + 1)
    for name, lines in {"alarms": len(monitor.METHODS) + 1, "delays": 2 * (2 + len(monitor.SHIFTS))}.items():
        text = SECTIONS[name][3](result, {})
        assert text.count("\n| ") + text.startswith("| ") >= lines - 2 and "python -m bench.monitor --quick" in text
