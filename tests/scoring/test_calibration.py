from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from hidden_uncertainty.scoring.calibration import Calibration

few_values = st.lists(st.integers(-3, 4).map(float), min_size=1, max_size=60)  # many ties
many_values = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)


@given(few_values | many_values, st.lists(st.floats(-10, 10, width=32), max_size=5))
@settings(max_examples=60, deadline=None)
def test_p_value_counts_scores_at_least_as_high(scores: list[float], others: list[float]) -> None:
    calibration = Calibration().fit(torch.tensor(scores))
    new = scores + others
    expected = [(1 + sum(s >= t for s in scores)) / (len(scores) + 1) for t in new]
    torch.testing.assert_close(calibration.p_value(torch.tensor(new)), torch.tensor(expected))


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
def test_rounding_never_moves_the_threshold(n: int) -> None:
    calibration = Calibration().fit(torch.arange(float(n)))
    p_value = calibration.p_value(calibration.scores)
    for j in range(1, n + 1):
        alpha = j / (n + 1)
        threshold = calibration.threshold(alpha)
        assert threshold == n - j  # the (n + 1 - j)-th lowest
        assert (p_value <= alpha).sum() == n - 1 - threshold


@pytest.mark.parametrize(
    ("n", "alpha", "rank"), [(99, 0.29, 71), (99, 0.01, 99), (9, 0.1, 9), (10, 0.1, 10), (18, 0.1, 18)]
)
def test_rank_of_the_threshold(n: int, alpha: float, rank: int) -> None:
    assert Calibration().fit(torch.arange(1.0, n + 1)).threshold(alpha) == rank


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
        assert calibration.threshold(alpha, confidence=confidence) == working[0]
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
    torch.testing.assert_close(result, torch.full(shape, 3 / 5))


def test_infinite_scores_rank_last() -> None:
    calibration = Calibration().fit(torch.tensor([1.0, math.inf, -math.inf]))
    torch.testing.assert_close(calibration.p_value(torch.tensor([math.inf, -math.inf])), torch.tensor([0.5, 1.0]))


@given(st.floats(-2, 2))
@settings(max_examples=50, deadline=None)
def test_finer_scores_are_never_rounded_towards_the_alarm(score: float) -> None:
    coarse = torch.tensor([score, 0.1, 0.5, -1 / 3])
    exact = (1 + (coarse.double() >= score).sum()) / 5
    assert Calibration().fit(coarse).p_value(torch.tensor(score, dtype=torch.float64)).item() >= exact.float().item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.long])
def test_rebuilt_from_its_configuration(dtype: torch.dtype) -> None:
    calibration = Calibration().fit((100 * uniform(20).double()).to(dtype))
    rebuilt = Calibration.from_config(calibration.config())
    rebuilt.load_state_dict(calibration.state_dict(), strict=True)
    assert torch.equal(rebuilt.scores, calibration.scores)
    assert rebuilt.scores.dtype == calibration.scores.dtype


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
    torch.testing.assert_close(result, torch.tensor([0.1, 0.2, 1.0, 0.6, 0.1]))
