"""The GPU benchmark runs, on a CPU in its place, and what it computes is right. No time is asserted."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest
import torch

from bench import gpu
from bench.gpu_timing import Device, kind

ROOT = Path(__file__).resolve().parents[2]
FITS = ("em-d100", "em-d512", "fit-d512", "fit-d512-no-shrinkage", "imagenet-full-fit", "imagenet-tied-fit")
STREAMED = "imagenet-streamed-fit"
SCORES = ("score-10k", "score-1m", "imagenet-full-score")
NAMES = {*FITS, *SCORES, STREAMED, "pca", "imagenet-tied-score"}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    def written():
        return {path.name: path.read_bytes() for path in (ROOT / "bench").glob("*.json*")}

    before, out, printed = written(), tmp_path_factory.mktemp("bench") / "gpu.json", io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert gpu.main(["--quick", "--out", str(out)]) == 0, printed.getvalue()
    assert written() == before and os.listdir(out.parent) == ["gpu.json"], "a quick run writes only where it is told to"
    found = json.loads(out.read_text())
    assert all(entry["name"] in printed.getvalue() for entry in found["entries"])
    return found


@pytest.fixture
def entries(result):
    return {entry["name"]: entry for entry in result["entries"]}


def test_every_case_is_there_beside_its_floor(result, entries):
    assert set(entries) == NAMES
    rates = result["ceilings"]
    for entry in entries.values():
        work = entry["necessary"]
        products = sum(work[f"{name}_gflop"] / rates[f"{name}_gflops"] for name in ("float32", "float64"))
        assert entry["floor_seconds"] == pytest.approx(max(products, work["gb"] / rates["bandwidth_gbs"]))
        assert entry["share_of_floor"] == pytest.approx(entry["floor_seconds"] / entry["seconds"])
        low, high = entry["seconds_range"]
        assert 0 < low <= entry["seconds"] <= high and len(entry["seconds_rounds"]) >= 2
        assert entry["kernels"] and 0.99 < sum(entry["holds"].values()) < 1.01
    assert result["machine"]["versions"]["torch"] == torch.__version__ and result["date"]


def test_fits_and_scores_are_right(entries):
    for name in ("em-d100", "em-d512"):
        assert entries[name]["largest_difference_to_float64"] < 0.01
        assert entries[name]["rows_with_weight"][0] == pytest.approx(0.2)  # k-means gives each row to one of five
    peer = entries["em-d100"]["beside"]["scikit-learn on the CPU"]
    assert entries["em-d100"]["log_likelihood"] == pytest.approx(peer["log_likelihood"], abs=1e-3)
    assert all(entries[name]["largest_relative_error"] < 1e-4 for name in SCORES)
    assert entries["fit-d512"]["steps"] >= 2 and entries["fit-d512"]["starts"] == 1
    peer = entries["pca"]["beside"]["torch.pca_lowrank"]
    assert entries["pca"]["captured"] >= peer["captured"] - 0.05
    for name in ("imagenet-full-fit", "imagenet-full-score"):
        (found,) = entries[name]["beside"].values()
        assert found.get("seconds", 0) > 0 or "pytorch" in found["note"]  # it need not be here


def test_the_work_of_a_score_is_half_a_product_per_row_and_gaussian(entries):
    entry = entries["score-1m"]
    expected = entry["rows"] * entry["gaussians"] * entry["dim"] ** 2
    assert entry["necessary"]["float32_gflop"] == pytest.approx(1e-9 * expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_whole_run_needs_a_gpu(capsys):
    assert gpu.main([]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err


def test_a_case_that_fails_is_noted_and_others_go_on():
    def broken(device):
        yield {"name": "first", "seconds": 1.0}
        raise RuntimeError("CUDA out of memory.\nmore")

    found = list(gpu.run(broken, "second", Device("cpu", size=8, copied=64)))
    assert found == [{"name": "first", "seconds": 1.0}, {"name": "second", "note": "failed: CUDA out of memory."}]
    assert "out of memory" in gpu.row(found[1])


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nn_align1>(Params)", "products"),
        ("void trsm_batch_left_kernel<double, 256, 4, true>", "factorisations"),
        ("void potrfBatched_kernel<double>", "factorisations"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "sums"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::addcmul_cuda_kernel>", "element by element"),
        ("something new", "other"),
    ],
)
def test_kernels_are_told_apart_by_name(kernel, expected):
    assert kind(kernel) == expected
