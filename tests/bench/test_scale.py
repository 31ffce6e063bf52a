"""All that is measured can be, and a run goes on where it was stopped."""

from __future__ import annotations

import json

import pytest
import torch

from bench import scale
from bench.render import fill


def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch):
    out, asked = tmp_path / "scale.json", []

    def measured(name, rows, processes):
        asked.append(processes)
        found = scale.measure(name, rows, rank=0, processes=1, folder=str(tmp_path))
        return {"name": name, "rows": rows, "processes": processes, **found}

    monkeypatch.setattr(scale, "in_processes", measured)
    for counts in ([1], [1, 2], [1, 2]):
        monkeypatch.setattr(scale, "QUICK", {"pooled": ([600], counts)})
        assert scale.main(["--quick", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert asked == [1, 2] == [row["processes"] for row in rows]
    assert all(row["seconds"] > 0 and row["peak_mb"] < 500 for row in rows)
    page = fill("<!-- bench:scale -->\n<!-- /bench -->", tmp_path)
    assert "| pooled | 600 | 2 |" in page and "512 dimensions" in page


def test_rows_of_a_gpu_and_of_processors_stand_side_by_side(tmp_path, monkeypatch):
    out = tmp_path / "scale.json"
    entry = {"seconds": 1.0, "peak_mb": 5.0, "processes": 1}
    monkeypatch.setattr(scale, "in_processes", lambda name, rows, processes: {"name": name, "rows": rows, **entry})
    monkeypatch.setattr(scale, "on_a_gpu", lambda name, rows: {"name": name + scale.GPU, "rows": rows, **entry})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    for kind in ("QUICK", "ON_A_GPU"):
        monkeypatch.setattr(scale, kind, {"pooled": ([600], [1])})
    for options in ([], ["--gpu"], []):
        assert scale.main(["--quick", *options, "--out", str(out)]) == 0
    assert [row["name"] for row in json.loads(out.read_text())["rows"]] == ["pooled", "pooled, on a GPU"]
    page = fill("<!-- bench:scale -->\n<!-- /bench -->", tmp_path)
    assert "| pooled, on a GPU | 600 | 1 |" in page and "a GPU, python" in page


@pytest.mark.parametrize("name", scale.NAMES)
def test_every_name_is_measured(name, tmp_path):
    found = scale.measure(name, 1500, rank=0, processes=1, folder=str(tmp_path))
    assert found["seconds"] > 0 and list(tmp_path.iterdir()) == []


def test_batches_are_drawn_alike_in_every_pass():
    one, other = (list(scale.Drawn(2500, seed=3)) for _ in range(2))
    assert [len(batch) for batch in one] == [1024, 1024, 452] == [len(batch) for batch in other]
    assert all((a == b).all() for a, b in zip(one, other, strict=True))
    assert len({int(c) for batch in one for c in scale.Handing(scale.CLASSES)(batch).argmax(1)}) == scale.CLASSES
