"""The pages about speed show what the committed files hold, and say what they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import default
from bench.growth import exponents
from bench.render import PAGES, PLACE, SECTIONS, _cpu, fill

ROOT = Path(__file__).resolve().parents[2]


def place(name: str) -> str:
    return f"before\n<!-- bench:{name} -->\nstale\n<!-- /bench -->\nafter"


def test_the_pages_show_the_committed_files():
    pages = {page: page.read_text(encoding="utf-8") for page in PAGES}
    assert sorted(match[2] for text in pages.values() for match in PLACE.finditer(text)) == sorted(SECTIONS)
    for page, text in pages.items():
        assert fill(text, ROOT / "bench") == text, f"{page.name}: run python -m bench.render"


SECTION_NAMES = ["cpu", "gpu", "training", "growth", "busy", "call", "default", "memory", "fit", "device"]
SECTION_NAMES += ["alarms", "delays", "scale", "export", "serve", "answer"]


@pytest.mark.parametrize("name", SECTION_NAMES)
def test_what_was_not_measured_says_so(name, tmp_path):
    page = fill(place(name), tmp_path)
    assert "Not measured yet" in page and "stale" not in page and page.startswith("before\n")
    assert fill(page, tmp_path) == page


def test_the_default_is_shown_beside_the_plain_network(tmp_path):
    default.main(["--quick", "--out", str(tmp_path / "default.json")])
    result = json.loads((tmp_path / "default.json").read_text(encoding="utf-8"))
    assert len(result["layers"]) == 3 and "read by the layer that gives" in result["layers"][-1]
    found = {(entry["name"], entry["batch"]): entry for entry in result["entries"]}
    assert list(found) == [("fit", 64), ("calibrate", 64), ("call", 256), ("call", 1)]
    for entry in found.values():
        assert entry["ratio"] == entry["seconds"] / entry["plain_seconds"] and entry["outside_percent"] > 0
        assert len(entry["plain_rounds"]) == len(entry["rounds_seconds"]) == entry["rounds"]
    page = fill(place("default"), tmp_path)
    fit, one = found["fit", 64], found["call", 1]
    assert "| fit, 640 images in batches of 64 |" in page and f"| {fit['ratio']:.2f} × |" in page
    assert "| a call with 1 image |" in page and f"| {100 * (one['ratio'] - 1):+.1f} % |" in page


def test_the_benchmark_of_the_default_tells_all_classes():
    bench = default.Default(default.QUICK["width"], 64, {"fit": 640, "calibrate": 320})
    said = bench.detector.predict(bench.train).prediction.bincount(minlength=10)
    assert int(said.min()) > 10


def test_times_stand_beside_floors_and_peers(tmp_path):
    entry = {
        "name": "em-d100",
        "seconds": 0.02,
        "seconds_rounds": [0.01, 0.02, 0.03],
        "floor_seconds": 0.005,
        "floor_set_by": "products",
        "share_of_floor": 0.25,
        "peak_gb": 1.25,
        **{"rows": 1000, "dim": 512},
        "holds": {"products": 0.6, "copies": 0.4, "other": 0.0},
        "beside": {"scikit-learn on the CPU": {"seconds": 2.0}, "another": {"note": "not on this machine."}},
    }
    result = {
        "command": "python -m bench.gpu",
        "date": "2026-01-02T00:00:00+00:00",
        "machine": {"device": "a GPU", "versions": {"torch": "3"}},
        "ceilings": {"float32_gflops": 50_000, "float64_gflops": 60_000, "bandwidth_gbs": 4321.0},
        "entries": [entry, {**entry, "name": "score-1m"}, {"name": "pca", "note": "failed: out of memory"}],
        **{"notes": ["a note."], "seconds": 99.0},
    }
    (tmp_path / "gpu.json").write_text(json.dumps(result))
    page = fill(place("gpu"), tmp_path)
    row = "| `em-d100` | 20 ms (10 ms to 30 ms) |  | 5 ms, products | 25% | 1.2 GB | products 60%, copies 40% |"
    assert row in page and "50.0 TFLOP/s in float32 and 60.0 in float64" in page and "4,321 GB/s" in page
    assert "scikit-learn on the CPU: 2.00 s, 100.0 × ours" in page and "another: not on this machine." in page
    assert "- `pca`: failed: out of memory" in page and "- a note." in page and "a GPU, torch 3, 99 s in all" in page
    short = fill(place("device"), tmp_path)
    assert "| score under that mixture | 1,000 × 512 | 20 ms | 1.2 GB |" in short and "pca" not in short


def test_the_run_before_stands_beside(tmp_path):
    machine = {"cpu": "a CPU", "cores": 2, "versions": {"torch": "3"}}
    about = {"threads": 1, "machine": machine, "date": "2026-01-02T00:00:00+00:00"}
    ratio = {"ratio": 3.0, "ratio_to_their_best": 2.0, "seconds": 0.5, "sklearn_seconds": 1.5}
    entries = [{"name": "em", **ratio, **about}, {"name": "head", "value": 2.5, "unit": "%", **about}]
    (tmp_path / "latest.json").write_text(json.dumps(entries))
    assert "| `em` | 1 | 500 ms | 1.50 s | 3.00 × |  | 2.00 × |" in fill(place("cpu"), tmp_path)
    runs = [{"em/1": 9.0, "head/1": 9.0}, {"em/1": 3.25, "head/1": 1.75}, {"em/1": 3.0, "head/1": 2.5}]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps({"numbers": each}) + "\n" for each in runs))
    page = fill(place("cpu"), tmp_path)
    assert "| 3.00 × | 3.25 × | 2.00 × |" in page and "| 2.50 % | 1.75 % |" in page


def test_growth_has_a_figure_exponents_and_what_was_left_out(tmp_path):
    points = [
        {
            "axis": "rows",
            "method": "ours",
            "value": v,
            "fit_seconds": 0.1 * v,
            "score_seconds": v**0.5,
            "fit_mb": v**2.0,
        }
        for v in (1, 2, 4)
    ]
    result = {
        "command": "python -m bench.growth",
        "date": "2026-01-02T00:00:00+00:00",
        "machine": {"cpu": "a CPU", "versions": {"torch": "3"}},
        "axes": {"rows": {"dim": 16, "classes": 10, "components": 5}},
        **{"points": points, "exponents": exponents(points), "complete": True, "seconds": 60.0},
        "notes": [{"method": "peer", "note": "not measured."}, {"method": "ours", "axis": "dim", "note": "left out."}],
    }
    (tmp_path / "growth.json").write_text(json.dumps(result))
    page = fill(place("growth"), tmp_path)
    assert "| rows | ours | 1.00 | 0.50 | 2.00 | 4 | 400 ms | 2.00 s | 16 MB |" in page and "images/growth.png" in page
    assert "- peer: not measured." in page and "- ours with more dimensions: left out." in page
    (tmp_path / "growth.json").write_text(json.dumps({**result, "complete": False}))
    assert "some points are missing" in fill(place("growth"), tmp_path)
    many = [{**points[-1], "value": 100_000}, {**points[-1], "value": 100_000, "method": "ours, one Gaussian"}]
    (tmp_path / "growth.json").write_text(json.dumps({**result, "points": points + many}))
    page = fill(place("fit"), tmp_path)
    assert "| 100,000 | 16 | 10 | 5 components | 400 ms | 2.00 s | 16 MB |" in page and page.count("100,000") == 2
    assert "| 100,000 | 16 | 10 | one Gaussian |" in page


def test_other_methods_stand_beside_the_head(tmp_path):
    entry = {
        **{"batch": 1, "dim": 512, "forward_seconds": 0.02},
        **{"name": "head-batch-1", "threads": 2, "value": 9.5, "unit": "%", "quartiles": [7.0, 12.0]},
        **{"outside_percent": 6.25, "limit": 0.5, "others": {"ensemble": {"extra": 9.0}, "gmm": {"extra": 0.12}}},
        "machine": {"cpu": "a CPU", "cores": 2, "versions": {}},
        "date": "2026-01-02T00:00:00+00:00",
    }
    text = _cpu([entry], {"head-batch-1/2": 12.0})
    assert "| `head-batch-1` | 2 | 9.50 % (7.00 to 12.00) | 12.00 % | 6.25 % | 0.5 % |" in text
    assert "| beside it | `head-batch-1`, 2 threads |" in text
    assert "| ensemble | 900% |" in text and "| gmm | 12% |" in text
    assert "beside it" not in _cpu([{**entry, "others": {}}], {})
    large = {**entry, "threads": 1, "batch": 256, "value": 1.4}
    memory = {
        "name": "pca-memory-gb",
        "threads": 1,
        "value": 0.36,
        "unit": "GB",
        "rows": 5000,
        "dim": 10_000,
        "keep": 64,
    }
    beside = {"beside": {"rows": 1000, "sklearn": {"gb": 1.5}}}
    (tmp_path / "latest.json").write_text(json.dumps([entry, {**entry, "threads": 1}, large, {**memory, **beside}]))
    page = fill(place("call"), tmp_path)
    assert (
        "| forward pass alone | 20 ms | 20 ms |" in page
        and "| `LatentDensity`, 512 dimensions | +10 % | +1 % |" in page
    )
    assert "| ensemble of ten networks | +900 % | +900 % |" in page
    page = fill(place("memory"), tmp_path)
    assert "5,000 × 10,000 numbers (0.2 GB) to 64 components takes 0.36 GB" in page and "1.50 GB for 1,000 rows" in page
