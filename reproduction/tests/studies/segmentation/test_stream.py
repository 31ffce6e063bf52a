"""Metrics of a stream of pixels against the exact ones, which hold all scores at once."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from hidden_uncertainty import metrics
from hidden_uncertainty.metrics import Values
from reproduction.studies.segmentation.stream import Bounded, Confusion, PixelDetection

INF = float("inf")
TPRS = (0.05, 0.5, 0.95, 1.0)
Read = Callable[[PixelDetection], Bounded]
Exact = Callable[[Tensor, Tensor], float]


def exact_auroc(low: Values, high: Values) -> float:
    return metrics.auroc(negative=low, positive=high)


def exact_precision(low: Values, high: Values) -> float:
    return metrics.average_precision(negative=low, positive=high)


METRICS: list[tuple[Read, Exact]] = [
    (lambda meter: meter.auroc, exact_auroc),
    (lambda meter: meter.average_precision, exact_precision),
    *(
        (
            lambda meter, t=t: meter.fpr_at_tpr(t),
            lambda low, high, t=t: metrics.fpr_at_tpr(negative=low, positive=high, tpr=t),
        )
        for t in TPRS
    ),
]

few = st.sampled_from([-INF, -1e300, -1e30, -7.0, -1e-30, -5e-324, -0.0, 0.0, 1e-45, 1e-30, 7.0, 1e30, 1e300, INF])
near = st.integers(0, 2000).map(lambda step: 300 + step / 1000)  # several share a bin, some share a score
near_as_float32 = st.integers(0, 50).map(lambda step: 1 + step * 1e-9)  # equal as float32, but no tie
wild = st.floats(allow_nan=False)
pixels = st.one_of(
    *(st.lists(st.tuples(kind, st.booleans()), min_size=2, max_size=60) for kind in (few, near, near_as_float32, wild))
)
properties = settings(max_examples=80, deadline=None)


def split(pairs: list[tuple[float, bool]]) -> tuple[Tensor, Tensor]:
    """Scores and whether they are positives, with one of each at least."""
    scores = torch.tensor([score for score, _ in pairs], dtype=torch.float64)
    return scores, torch.tensor([i == 0 or (answer and i > 1) for i, (_, answer) in enumerate(pairs)])


def counted(scores: Tensor, positive: Tensor, bits: int = 12) -> PixelDetection:
    meter = PixelDetection(bits)
    meter.update(scores, positive)
    return meter


def assert_holds(meter: PixelDetection, scores: Tensor, positive: Tensor) -> None:
    for read, exact in METRICS:
        got, expected = read(meter), exact(scores[~positive], scores[positive])
        assert got.low <= got <= got.high
        assert got.low - 1e-12 <= expected <= got.high + 1e-12


@given(pixels)
@settings(properties, max_examples=160)
def test_the_exact_value_lies_within_the_bounds(pairs: list[tuple[float, bool]]) -> None:
    scores, positive = split(pairs)
    assert_holds(counted(scores, positive), scores, positive)


def arranged(scores: Tensor, first: Tensor, bits: int) -> Tensor:
    """Scores rounded to their bins, where those that are `first` come before the others if the bin holds several.

    By arithmetic instead of bits: nine bits are sign and exponent, the others the mantissa.
    """
    mantissa, exponent = torch.frexp(scores.double())
    steps = 2.0 ** (bits - 9 + 1)
    binned = torch.ldexp((mantissa * steps).trunc() / steps, exponent)
    mixed = ((binned[:, None] == binned) & (scores[:, None] != scores)).any(1)
    return binned + 1e-6 * scores.abs().max() * (mixed & first)


@given(st.lists(st.tuples(near, st.booleans()), min_size=2, max_size=60), st.sampled_from([-1.0, 1.0, 1e-9]))
@properties
def test_bounds_are_the_best_and_the_worst_order_within_bins(pairs: list[tuple[float, bool]], factor: float) -> None:
    scores, positive = split(pairs)
    scores = (factor * scores).float()
    meter = counted(scores, positive, bits=18)
    best, worst = arranged(scores, positive, bits=18), arranged(scores, ~positive, bits=18)
    for read, exact in METRICS:
        good, bad = (exact(order[~positive], order[positive]) for order in (best, worst))
        if exact is not exact_precision:
            assert [read(meter).low, read(meter).high] == pytest.approx(sorted([good, bad]), abs=1e-14)
        else:
            assert read(meter).high == pytest.approx(good, abs=1e-14)
            assert read(meter).low <= bad + 1e-14  # positives behind the negatives of their bin need not be tied


@given(st.lists(st.tuples(st.sampled_from([-INF, -3.0, -1e-30, -0.0, 0.0, 1.0, 2.0, INF]), st.booleans()), min_size=2))
@properties
def test_few_distinct_scores_have_no_error(pairs: list[tuple[float, bool]]) -> None:
    scores, positive = split(pairs)
    meter = counted(scores, positive)
    for read, exact in METRICS:
        got, expected = read(meter), exact(scores[~positive], scores[positive])
        assert got.low == got == got.high == pytest.approx(expected, abs=1e-14)
    recall, precision = meter.precision_recall()
    assert (recall.diff() >= 0).all()
    assert recall[-1] == 1
    assert precision[-1] == positive.double().mean()


def test_a_perfect_and_a_hopeless_order_in_one_bin_reach_the_bounds() -> None:
    positive = torch.tensor([False, False, True])
    meter = counted(torch.tensor([1.0, 1 + 1e-6, 1 + 2e-6]), positive)
    best, worst = ([1.0, 1.0], [2.0]), ([2.0, 2.0], [1.0])
    assert meter.auroc.high == exact_auroc(*best)
    assert meter.auroc.low == exact_auroc(*worst)
    assert meter.average_precision.high == exact_precision(*best)
    assert meter.average_precision.low == exact_precision(*worst)
    assert (meter.fpr_at_tpr().low, meter.fpr_at_tpr().high) == (0.0, 1.0)


def street(n: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores like those of a density, and rare objects that overlap with the rest."""
    generator = torch.Generator().manual_seed(seed)
    positive = torch.rand(n, generator=generator) < 0.01
    scores = 300 + 40 * torch.randn(n, generator=generator) + 80 * positive
    return scores, positive


def test_a_million_pixels_are_within_tight_bounds_and_agree_with_scikit_learn() -> None:
    scores, positive = street(1_100_000)  # more than are counted at once
    meter = counted(scores, positive, bits=22)
    assert_holds(meter, scores, positive)
    area, precision, rate = meter.auroc, meter.average_precision, meter.fpr_at_tpr()
    assert area.high - area.low < 2e-4
    assert precision.high - precision.low < 2e-3
    assert rate.high - rate.low < 1e-3
    # Errors of random orders within bins cancel out: they stay far inside the bounds.
    for got, expected in (
        (area, sklearn_metrics.roc_auc_score(positive, scores)),
        (precision, sklearn_metrics.average_precision_score(positive, scores)),
    ):
        assert abs(got - expected) < (got.high - got.low) / 20

    recall, curve = meter.precision_recall()
    assert len(recall) < 100_000
    steps = torch.nn.functional.pad(recall, (1, 0)).diff()
    assert precision.low < float((steps * curve).sum()) < precision.high
    exact_precision, exact_recall, _ = sklearn_metrics.precision_recall_curve(positive, scores)
    points = set(zip(exact_recall.tolist(), exact_precision.tolist(), strict=True))
    assert points.issuperset(zip(recall.tolist(), curve.tolist(), strict=True))


@pytest.mark.parametrize("size", [-1e-300, 1e-300, 1e-150, 1e-30, 1.0, 1e30, 1e200])
def test_scores_of_any_size_are_told_apart(size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    positive = torch.rand(20_000, generator=generator) < 0.3
    scores = size * (1 + torch.rand(20_000, generator=generator, dtype=torch.float64) + 0.3 * positive)
    meter = counted(scores, positive, bits=20)
    assert_holds(meter, scores, positive)
    expected = sklearn_metrics.roc_auc_score(positive, scores / abs(size))
    assert meter.auroc == pytest.approx(expected, abs=1e-3)
    bin_width = 2 ** (9 - 20) * (1 if 3e-39 < abs(size) < 1.8e19 else 32)
    assert meter.auroc.high - meter.auroc.low < 1.5 * bin_width


def test_a_stream_of_any_shapes_is_one_big_input() -> None:
    scores, positive = street(6000)
    whole = counted(scores, positive)
    meter, other = PixelDetection(12), PixelDetection(12)
    meter.update(scores[:1000].view(10, 100), positive[:1000].view(10, 100))
    meter.update(scores[1000:3000].view(2, 1, 20, 50).requires_grad_(), positive[1000:3000].view(2, 1, 20, 50))
    meter.update(scores[:0].view(0, 5), positive[:0].view(0, 5))
    array = scores[3000:].numpy()[::-1]
    array.flags.writeable = False
    other.update(array, positive[3000:].numpy()[::-1])
    for merged in (copy.deepcopy(meter).merge(other), PixelDetection(12).merge(other).merge(meter)):
        for read, _ in METRICS:
            assert read(merged) == read(whole)
            assert (read(merged).low, read(merged).high) == (read(whole).low, read(whole).high)
    assert meter.merge(PixelDetection(12)).auroc != whole.auroc


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_every_dtype_of_scores_counts(dtype: torch.dtype) -> None:
    scores, positive = street(3000)
    scores = (scores / 3).clamp(0, 255).to(dtype)
    meter = counted(scores, positive, bits=20)
    assert_holds(meter, scores.double(), positive)


def test_pixels_that_are_not_valid_do_not_count() -> None:
    scores, positive = street(3000)
    valid = torch.rand(3000, generator=torch.Generator().manual_seed(1)) < 0.5
    spoilt = scores.where(valid, torch.tensor([math.nan, INF, -INF]).repeat(1000))
    meter = PixelDetection(12)
    meter.update(spoilt, positive, valid=valid)
    meter.update(spoilt, ~positive, valid=torch.zeros(3000, dtype=torch.bool))
    for read, _ in METRICS:
        expected = read(counted(scores[valid], positive[valid]))
        assert (read(meter), read(meter).low, read(meter).high) == (expected, expected.low, expected.high)


def test_updates_in_and_out_of_inference_mode_mix() -> None:
    scores, positive = street(3000)
    meter = PixelDetection(12)
    with torch.inference_mode():
        meter.update(scores[:1000] + 0, positive[:1000])
    meter.update(scores[1000:2000], positive[1000:2000])
    with torch.inference_mode():
        meter.merge(counted(scores[2000:], positive[2000:]))
    assert meter.merge(PixelDetection(12)).auroc == counted(scores, positive).auroc


def test_a_number_with_bounds_is_a_number() -> None:
    area = Bounded(0.5, low=0.25, high=1.0)
    assert json.dumps({"auroc": area}) == '{"auroc": 0.5}'
    assert f"{area:.1%}" == "50.0%"
    again = copy.deepcopy(area)
    assert (again, again.low, again.high) == (0.5, 0.25, 1.0)


def test_bad_input_is_refused_and_changes_nothing() -> None:
    scores, positive = street(100)
    positive[0] = True
    meter = counted(scores, positive)
    before = meter.auroc
    with pytest.raises(ValueError, match="scores hold 2 NaN"):
        meter.update([1.0, math.nan, math.nan], [True, False, False])
    with pytest.raises(TypeError, match=r"positive must be booleans, got torch\.uint8"):
        meter.update(scores, positive.to(torch.uint8))
    with pytest.raises(ValueError, match=r"positive must have the shape of scores \(10, 10\), got \(100,\)"):
        meter.update(scores.view(10, 10), positive)
    with pytest.raises(ValueError, match=r"valid must have the shape of scores \(100,\), got \(1,\)"):
        meter.update(scores, positive, valid=[True])
    with pytest.raises(ValueError, match="meters of 12 and 13 bits"):
        meter.merge(PixelDetection(13))
    with pytest.raises(ValueError, match="tpr must be above 0"):
        meter.fpr_at_tpr(0)
    assert meter.auroc == before

    for bits in (9, 29):
        with pytest.raises(ValueError, match=f"bits must be from 10 to 28, got {bits}"):
            PixelDetection(bits)
    with pytest.raises(ValueError, match="got 0 negatives and 0 positives"):
        _ = PixelDetection(12).auroc
    with pytest.raises(ValueError, match="got 100 negatives and 0 positives"):
        counted(scores, positive & False).precision_recall()
    with pytest.raises(RuntimeError, match="counted nothing"):
        PixelDetection(12).all_reduce()


WORKER = """
import json, sys, torch
from pathlib import Path
from torch import distributed
from reproduction.studies.segmentation.stream import PixelDetection

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
store = distributed.FileStore(str(folder / "store"), 2)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
meter = PixelDetection(12, device="cpu")
if rank == 1:  # the other has no data
    meter.update(torch.arange(1000) / 7, torch.arange(1000) % 3 == 0)
meter.all_reduce().all_reduce()  # the second counts what both have by now
found = meter.auroc
(folder / f"{rank}.json").write_text(json.dumps([found, found.low, found.high, meter.average_precision]))
distributed.destroy_process_group()
"""


def test_processes_count_as_one(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [process.wait(100) for process in processes] == [0, 0]
    meter = counted(torch.arange(1000) / 7, torch.arange(1000) % 3 == 0)
    meter.merge(meter)
    expected = [meter.auroc, meter.auroc.low, meter.auroc.high, meter.average_precision]
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [expected, expected]
    assert meter.auroc.low < meter.auroc < meter.auroc.high


def test_nan_found_on_a_gpu_is_told_when_a_metric_is_read() -> None:
    meter = counted(*street(1000))
    assert meter._state is not None
    meter._state.missing.add_(3)  # what an update that does not wait leaves behind
    for read, _ in METRICS:
        with pytest.raises(ValueError, match="scores hold 3 NaN"):
            read(meter)
    with pytest.raises(ValueError, match="scores hold 3 NaN"):
        PixelDetection(12).merge(meter).precision_recall()


def test_ten_billion_pixels_do_not_overflow() -> None:
    meter = PixelDetection(12)
    meter.update([0.1, 0.2, 0.3, 0.4, 0.4001], torch.tensor([False, True, False, True, False]))
    few = meter.auroc
    for _ in range(32):
        meter.merge(meter)
    assert few.low < few.high
    assert [meter.auroc, meter.auroc.low, meter.auroc.high] == pytest.approx([few, few.low, few.high], rel=1e-12)


def test_lists_of_numbers_keep_their_digits() -> None:
    negative, positive = [-1e300, 1e200, 0.1], [1e300, 0.1 + 1e-9]
    meter = PixelDetection(12)
    meter.update([*negative, *positive], [False] * 3 + [True] * 2)
    assert meter.auroc.low <= exact_auroc(negative, positive) <= meter.auroc.high
    assert meter.auroc.low < meter.auroc.high  # in one bin as float32, but no ties


def test_arguments_that_could_be_swapped_have_names() -> None:
    mask = [True, False]
    with pytest.raises(TypeError, match=r"update\(prediction=\.\.\., label=\.\.\.\)\. scikit-learn"):
        Confusion(2).update([0], [1])
    with pytest.raises(TypeError, match=r"update\(scores, positive, valid=\.\.\.\)\.$"):
        PixelDetection(10).update([1.0, 2.0], mask, mask)
