"""Rows of the table come from fresh processes, and a run goes on where it was stopped."""

from __future__ import annotations

import json

import pytest

from bench import scale
from bench.render import fill


def test_two_processes_read_what_one_does(tmp_path, monkeypatch):
    out = tmp_path / "scale.json"
    monkeypatch.setattr(scale, "QUICK", {"pooled": ([600], [2])})
    assert scale.main(["--quick", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["rows"], row["processes"]) == ("pooled", 600, 2)
    assert row["seconds"] > 0 and row["peak_mb"] < 500
    monkeypatch.setattr(scale, "in_processes", lambda *row: pytest.fail("measured again"))
    assert scale.main(["--quick", "--out", str(out)]) == 0
    page = fill("<!-- bench:scale -->\n<!-- /bench -->", tmp_path)
    assert "| pooled | 600 | 2 |" in page and "512 dimensions" in page


def test_batches_are_drawn_alike_in_every_pass():
    one, other = (list(scale.Drawn(2500, seed=3)) for _ in range(2))
    assert [len(batch) for batch in one] == [1024, 1024, 452] == [len(batch) for batch in other]
    assert all((a == b).all() for a, b in zip(one, other, strict=True))
    assert len({int(c) for batch in one for c in scale.Handing()(batch).argmax(1)}) == scale.CLASSES
