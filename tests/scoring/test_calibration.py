from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from hidden_uncertainty.scoring.calibration import Calibration
from hidden_uncertainty.uncertainty import Uncertainty

few_values = st.lists(st.integers(-3, 4).map(float), min_size=1, max_size=60)  # many ties
many_values = st.lists(st.floats(-1e6, 1e6, width=32, allow_subnormal=False), min_size=1, max_size=60)


@given(few_values | many_values, st.lists(st.floats(-10, 10, width=32, allow_subnormal=False), max_size=5))
@settings(max_examples=60, deadline=None)
def test_p_value_counts_scores_at_least_as_high(scores: list[float], others: list[float]) -> None:
    """Or a millionth below, of themselves or of the usual score."""
    calibration = Calibration().fit(torch.tensor(scores))
    sizes = np.abs(scores)
    usual = np.sort(sizes)[(len(scores) - 1) // 2] or sizes.max()
    near = 2e-6 * np.maximum(sizes, usual)
    for score, p in zip(scores + others, calibration.p_value(torch.tensor(scores + others)).tolist(), strict=True):
        counts = [1 + int((scores + more >= score).sum()) for more in (0 * near, near)]
        assert counts[0] / (len(scores) + 1) <= p <= counts[1] / (len(scores) + 1)


@given(few_values | many_values, st.data())
@settings(max_examples=200, deadline=None)
def test_above_threshold_exactly_when_p_value_at_most_the_rate(scores: list[float], data: st.DataObject) -> None:
    n = len(scores)
    share = data.draw(st.integers(1, n).map(lambda j: j / (n + 1)))
    beside = st.sampled_from([math.nextafter(share, 0), share, math.nextafter(share, 1)])
    alpha = data.draw(beside | st.integers(1, 99).map(lambda i: i / 100) | st.floats(1e-4, 0.9999))
    calibration = Calibration().fit(torch.tensor(scores, dtype=torch.float64))
    new = torch.tensor([*scores, min(scores) - 1, max(scores) + 1], dtype=torch.float64)
    surprising = calibration.p_value(new) <= alpha
    try:
        threshold = calibration.threshold(alpha)
    except ValueError:
        assert not surprising.any()
        assert 1 / (n + 1) > alpha
    else:
        assert torch.equal(new > threshold, surprising)


@pytest.mark.parametrize("n", [9, 49, 99, 100, 999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_never_moves_the_threshold(n: int, dtype: torch.dtype) -> None:
    """In a tensor and in a list of floats, for every rate that a p-value can have."""
    calibration = Calibration().fit(torch.arange(float(n), dtype=dtype))
    p_value = calibration.p_value(calibration.scores)
    assert p_value.dtype == torch.float64
    for j in range(1, n + 1):
        alpha = j / (n + 1)
        threshold = calibration.threshold(alpha)
        assert n - j <= threshold < n - j + 0.01  # the (n + 1 - j)-th lowest
        surprising = Uncertainty(prediction=p_value, epistemic=calibration.scores, threshold=threshold).surprising
        assert surprising.tolist() == [p <= alpha for p in p_value.tolist()] == (p_value <= alpha).tolist()
        assert surprising.sum() == j - 1


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=60), st.floats(0, 0.5), st.data())
@settings(max_examples=100, deadline=None)
def test_scores_of_another_precision_are_judged_alike(scores: list[float], margin: float, data: st.DataObject) -> None:
    """Calibrated in one precision and scored in another, also beside where a known score reaches to."""
    known, new = data.draw(st.permutations([torch.float32, torch.float64]))
    together = torch.tensor(scores, dtype=known)
    calibration = Calibration().fit(together, (together, together * (1 + margin / 4)))
    scored = torch.cat([together, calibration.reach]).to(new)
    beside = torch.cat([scored, *(scored.nextafter(scored.new_tensor(end)) for end in (-math.inf, math.inf))])
    alpha = data.draw(st.integers(1, len(scores))) / (len(scores) + 1)
    u = Uncertainty(prediction=beside, epistemic=beside, threshold=calibration.threshold(alpha))
    assert torch.equal(u.surprising, calibration.p_value(beside) <= alpha)


def test_ties_reach_as_far_as_scores_were_seen_to_differ() -> None:
    scores = torch.tensor([-8.0, 1.0, 2.0, 4.0, 1000.0])
    alone = scores + torch.tensor([0.0, 0.01, 0.0, -0.1, 0.0])
    calibration = Calibration().fit(scores, (scores, alone))
    assert calibration.margin == pytest.approx(4 * 0.1 / 4)
    torch.testing.assert_close(calibration.reach, torch.tensor([-7.2, 1.4, 2.4, 4.4, 1100.0]))
    calibration = Calibration().fit(scores, (scores[:2], torch.tensor([-8.0, 1.01])))
    assert calibration.margin == pytest.approx(4 * 0.01 / 4, rel=1e-4)  # beside the usual size, not beside 1
    for same in (None, (scores, scores), (scores[:0], scores[:0])):
        assert Calibration().fit(scores, same).margin == 1e-6


def test_one_extreme_score_does_not_blur_the_others() -> None:
    scores = torch.cat([torch.linspace(1, 2, 99), torch.tensor([1e30])])
    torch.testing.assert_close(Calibration().fit(scores).reach, scores, rtol=3e-6, atol=0)


@pytest.mark.parametrize("scores", [[0.0, 0.0, 0.0], [0.0, 0.0, 5.0], [3e38, 3.4e38, 1.0], [-3e38, 3e38]])
def test_ties_of_zeros_and_of_the_largest_numbers(scores: list[float]) -> None:
    known = torch.tensor(scores)
    calibration = Calibration().fit(known, (known, known + 1))
    assert calibration.reach.isfinite().all() and math.isfinite(calibration.margin)
    assert (calibration.p_value(known) >= Calibration().fit(known.double()).p_value(known.double())).all()
    assert calibration.p_value(torch.tensor(math.inf)) == 1 / (len(scores) + 1)


@pytest.mark.parametrize("number", [np.float32, np.float64, np.array, torch.tensor])
def test_numbers_of_other_libraries(number: Any) -> None:
    calibration = Calibration().fit(torch.arange(1000.0))
    assert calibration.threshold(number(0.25)) == calibration.threshold(0.25)
    assert calibration.threshold(number(0.25), number(0.75)) == calibration.threshold(0.25, 0.75)
    assert calibration.covering(number(0.75)) == calibration.covering(0.75) == calibration.threshold(0.25)
    with pytest.raises(TypeError, match="false_alarm must be a number between 0 and 1, not 'low'"):
        calibration.threshold("low")  # type: ignore[arg-type]


def test_p_values_and_intervals_are_those_of_crepes() -> None:
    crepes = pytest.importorskip("crepes")
    pytest.importorskip("crepes.base")
    random = np.random.default_rng(0)
    known, new = random.normal(size=199), random.normal(size=500)
    ours = Calibration().fit(torch.from_numpy(known)).p_value(torch.from_numpy(new)).numpy()
    np.testing.assert_array_equal(ours, crepes.base.p_values_batch(known, new, smoothing=False))
    for normal in (False, True):
        scale = random.uniform(0.5, 2, 199) if normal else None
        regressor = crepes.ConformalRegressor().fit(known, sigmas=scale)
        bounds = regressor.predict_int(np.zeros(1), sigmas=np.ones(1) if normal else None, confidence=0.75)
        errors = np.abs(known) / (1 if scale is None else scale)
        assert Calibration().fit(torch.from_numpy(errors)).covering(0.75) == pytest.approx(bounds[0, 1], rel=3e-6)


@pytest.mark.parametrize(
    ("n", "alpha", "rank"), [(99, 0.29, 71), (99, 0.01, 99), (9, 0.1, 9), (10, 0.1, 10), (18, 0.1, 18)]
)
def test_rank_of_the_threshold(n: int, alpha: float, rank: int) -> None:
    assert math.floor(Calibration().fit(torch.arange(1.0, n + 1)).threshold(alpha)) == rank


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_false_alarms_over_many_calibration_sets(alpha: float) -> None:
    trials, n, tests = 2000, 99, 100
    draws = uniform(trials, n + tests)
    rates = torch.stack(
        [(Calibration().fit(row[:n]).p_value(row[n:]) <= alpha).float().mean() for row in draws]
    )  # (trials,)
    error = rates.std() / math.sqrt(trials)
    assert rates.mean() <= alpha + 3 * error
    assert rates.mean() >= alpha - 3 * error  # (n + 1) α is whole, so the rate is α exactly


@pytest.mark.parametrize("levels", [2, 5, 30])
def test_ties_never_raise_the_false_alarm_rate(levels: int) -> None:
    trials, n, tests, alpha = 1500, 49, 50, 0.1
    draws = (uniform(trials, n + tests, seed=1) ** 3 * levels).floor()
    rates = torch.stack([(Calibration().fit(row[:n]).p_value(row[n:]) <= alpha).float().mean() for row in draws])
    assert rates.mean() <= alpha + 3 * rates.std() / math.sqrt(trials)


@pytest.mark.parametrize(("n", "alpha", "confidence"), [(200, 0.05, 0.9), (100, 0.1, 0.5)])
def test_confidence_holds_over_calibration_sets(n: int, alpha: float, confidence: float) -> None:
    trials = 2000
    draws = uniform(trials, n, seed=2).double()
    rates = torch.tensor([1 - Calibration().fit(row).threshold(alpha, confidence=confidence) for row in draws])
    kept = (rates <= alpha).double().mean().item()
    # The rank is whole, so the probability lies above the confidence by less than one step of the rank.
    probability = stats.beta.cdf(alpha, n + 1 - torch.arange(1, n + 1).numpy(), torch.arange(1, n + 1).numpy())
    attained = probability[probability >= confidence].min()
    error = math.sqrt(attained * (1 - attained) / trials)
    assert abs(kept - attained) <= 3 * error
    assert kept >= confidence - 3 * error


@given(st.integers(1, 400), st.floats(0.01, 0.9), st.floats(0.05, 0.999))
@settings(max_examples=100, deadline=None)
def test_confident_rank_is_the_lowest_that_works(n: int, alpha: float, confidence: float) -> None:
    probability = [stats.beta.cdf(alpha, n + 1 - k, k) for k in range(1, n + 1)]
    assume(min(abs(p - confidence) for p in probability) > 1e-9)
    working = [k for k, p in enumerate(probability, start=1) if p >= confidence]
    calibration = Calibration().fit(torch.arange(1.0, n + 1))
    if working:
        assert math.floor(calibration.threshold(alpha, confidence=confidence)) == working[0]
    else:
        with pytest.raises(ValueError, match="confidence"):
            calibration.threshold(alpha, confidence=confidence)


@pytest.mark.parametrize("confidence", [None, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("alpha", [0.29, 0.1, 1 / 49, 0.02, 0.01, 0.001])
def test_error_says_how_many_are_needed(alpha: float, confidence: float | None) -> None:
    with pytest.raises(ValueError, match="unseen data") as raised:
        Calibration().fit(torch.zeros(1)).threshold(alpha, confidence)
    needed = int(re.search(r"at least ([\d,]+)", str(raised.value)).group(1).replace(",", ""))  # type: ignore[union-attr]
    Calibration().fit(torch.arange(float(needed))).threshold(alpha, confidence)
    with pytest.raises(ValueError, match=f"at least {needed:,} calibration scores; there are {needed - 1:,}"):
        Calibration().fit(torch.arange(needed - 1.0)).threshold(alpha, confidence)


def test_coverage_has_errors_of_its_own() -> None:
    calibration = Calibration().fit(torch.arange(100.0))
    with pytest.raises(ValueError, match=r"a coverage of 0\.995 needs at least 199 .* 100\..*or ask for a lower one\."):
        calibration.covering(0.995)
    with pytest.raises(ValueError, match="coverage must lie between 0 and 1"):
        calibration.covering(1.0)


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, math.nan])
def test_rates_outside_the_interval(alpha: float) -> None:
    calibration = Calibration().fit(torch.arange(10.0))
    with pytest.raises(ValueError, match="false_alarm must lie between 0 and 1"):
        calibration.threshold(alpha)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        calibration.threshold(0.5, confidence=alpha)


@pytest.mark.parametrize("scores", [torch.zeros(0), torch.zeros(2, 2), torch.tensor(1.0)])
def test_scores_of_wrong_shape(scores: Tensor) -> None:
    with pytest.raises(ValueError, match="one score per input"):
        Calibration().fit(scores)


@pytest.mark.parametrize("kind", [list, np.array])
def test_scores_need_be_no_tensors(kind: Any) -> None:
    scores, others = [3.0, -1.5, 0.25, 8.0], [2.5, 3.0, 9.0]
    expected = Calibration().fit(torch.tensor(scores))
    with torch.device("meta"):  # whatever the default device is
        calibration = Calibration().fit(kind(scores))
        assert torch.equal(calibration.p_value(kind(others)), expected.p_value(torch.tensor(others, device="cpu")))
    assert calibration.scores.tolist() == sorted(scores)
    assert calibration.threshold(0.4) == pytest.approx(expected.threshold(0.4))
    assert Calibration().fit([1, 2, 3]).p_value([4]).tolist() == [0.25]
    with pytest.raises(ValueError, match=r"one score per input, .*; got shape \(2, 1\)"):
        Calibration().fit([[1.0], [2.0]])


def test_nan_is_refused() -> None:
    scores = torch.tensor([1.0, math.nan, 2.0])
    with pytest.raises(ValueError, match="1 of 3 scores are NaN"):
        Calibration().fit(scores)
    with pytest.raises(ValueError, match="1 of 3 scores are NaN"):
        Calibration().fit(torch.arange(5.0)).p_value(scores)


def test_unfitted_is_refused() -> None:
    for call in (lambda: Calibration().p_value(torch.zeros(1)), lambda: Calibration().threshold(0.1)):
        with pytest.raises(RuntimeError, match="call fit"):
            call()


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_p_value_of_any_shape(shape: tuple[int, ...]) -> None:
    scores = torch.full((*shape[:-1], *(2 * k for k in shape[-1:])), 2.0)[..., ::2] if shape else torch.tensor(2.0)
    result = Calibration().fit(torch.arange(4.0)).p_value(scores)
    torch.testing.assert_close(result, torch.full(shape, 3 / 5, dtype=torch.float64))


def test_infinite_scores_rank_last() -> None:
    calibration = Calibration().fit(torch.tensor([1.0, math.inf, -math.inf]))
    assert calibration.p_value(torch.tensor([math.inf, -math.inf])).tolist() == [0.5, 1.0]


@given(st.floats(-2, 2))
@settings(max_examples=50, deadline=None)
def test_finer_scores_are_never_rounded_towards_the_alarm(score: float) -> None:
    coarse = torch.tensor([score, 0.1, 0.5, -1 / 3])
    exact = (1 + int((coarse.double() >= score).sum())) / 5
    assert Calibration().fit(coarse).p_value(torch.tensor(score, dtype=torch.float64)).item() >= exact


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.long])
def test_rebuilt_from_its_configuration(dtype: torch.dtype) -> None:
    scores = (100 * uniform(20).double()).to(dtype)
    calibration = Calibration().fit(scores, (scores, 1.01 * scores))
    rebuilt = Calibration.from_config(calibration.config())
    rebuilt.load_state_dict(calibration.state_dict(), strict=True)
    assert torch.equal(rebuilt.scores, calibration.scores)
    assert rebuilt.scores.dtype == calibration.scores.dtype and torch.equal(rebuilt.reach, calibration.reach)
    old = {name: value for name, value in calibration.config().items() if name != "margin"}
    assert Calibration.from_config(old).margin == 1e-6


def test_exports() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calibration = Calibration().fit(torch.arange(9.0))

        def forward(self, scores: Tensor) -> Tensor:
            return self.calibration.p_value(scores)

    shapes = ({0: torch.export.Dim("batch", min=1)},)
    program = torch.export.export(Head(), (torch.zeros(4),), dynamic_shapes=shapes, strict=False)
    result = program.module()(torch.tensor([8.5, 8.0, -1.0, 4.0, math.nan]))
    assert result.tolist() == [0.1, 0.2, 1.0, 0.6, 0.1]
