"""Metrics of regression against scikit-learn, scipy, brute force and their own symmetries."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import trapezoid
from sklearn.metrics import root_mean_squared_error

from hidden_uncertainty import metrics

INF = float("inf")
PAIRS: list[Callable[..., Any]] = [
    metrics.rmse,
    metrics.rank_correlation,
    lambda a, b: metrics.sparsification(uncertainty=a, error=b),
    lambda a, b: metrics.ause(uncertainty=a, error=b),
]

# A few integers give many ties.
pairs = st.lists(st.tuples(st.integers(0, 3).map(float), st.integers(-3, 3).map(float)), min_size=1, max_size=40)
numbers = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=40)
properties = settings(max_examples=60, deadline=None)


def columns(rows: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.array(rows).T
    return first, second


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(numbers)
@properties
def test_rmse_is_that_of_scikit_learn(rows: list[tuple[float, float]]) -> None:
    prediction, target = columns(rows)
    assert metrics.rmse(prediction, target) == pytest.approx(root_mean_squared_error(target, prediction), rel=1e-12)
    assert metrics.rmse(target, target) == 0


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_squares_neither_overflow_nor_vanish(size: float) -> None:
    error = torch.tensor([3.0, -4.0], dtype=torch.float64) * size
    assert metrics.rmse(error, torch.zeros(2)) == pytest.approx(size * math.sqrt(12.5), rel=1e-12)
    assert metrics.sparsification(uncertainty=[0, 1], error=error)[1].tolist() == pytest.approx(
        [size * math.sqrt(12.5), size * 3]
    )
    areas = [metrics.ause(uncertainty=[1, 0], error=each) for each in (error, [3, 4])]
    assert areas[0] == pytest.approx(areas[1], rel=1e-12)


@given(st.one_of(pairs, numbers))
@properties
def test_rank_correlation_is_that_of_scipy(rows: list[tuple[float, float]]) -> None:
    a, b = columns(rows)
    if len(set(a)) == 1 or len(set(b)) == 1:
        with pytest.raises(ValueError, match=r"^[ab] holds \d+ times the value .*, which has no order"):
            metrics.rank_correlation(a, b)
        return
    found = metrics.rank_correlation(a, b)
    assert found == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    assert metrics.rank_correlation(b, a) == found
    assert metrics.rank_correlation(-a, b) == -found


def test_rank_correlation_sees_nothing_but_the_order() -> None:
    a = normal(1000)
    assert metrics.rank_correlation(a, a.exp()) == 1.0
    assert metrics.rank_correlation(a, -(a**3)) == -1.0
    assert metrics.rank_correlation([-INF, 0.0, 1e300, INF], [1, 2, 3, 4]) == 1.0


@given(pairs)
@properties
def test_sparsification_is_the_mean_over_orders_of_ties(rows: list[tuple[float, float]]) -> None:
    rows = rows[:6]
    orders = [order for order in permutations(rows) if list(order) == sorted(order, key=lambda row: -row[0])]
    squares = np.array([[error**2 for _, error in order] for order in orders])  # (orders, n), the first to go first
    expected = [math.sqrt(squares[:, k:].mean()) for k in range(len(rows))]

    uncertainty, error = columns(rows)
    removed, rest = metrics.sparsification(uncertainty=uncertainty, error=error)
    np.testing.assert_allclose(removed, np.arange(len(rows)) / len(rows))
    np.testing.assert_allclose(rest, expected, atol=1e-12)


@given(st.one_of(pairs, numbers), st.randoms(use_true_random=False))
@properties
def test_no_order_of_removal_beats_the_oracle(rows: list[tuple[float, float]], random: Any) -> None:
    uncertainty, error = columns(rows)
    _, rest = metrics.sparsification(uncertainty=uncertainty, error=error)
    _, best = metrics.sparsification_oracle(error)
    assert (rest >= best * (1 - 1e-12)).all()
    largest_first = np.sort(np.abs(error))[::-1]
    expected = [math.sqrt(np.mean(largest_first[k:] ** 2)) for k in range(len(error))]
    np.testing.assert_allclose(best, expected, rtol=1e-9, atol=1e-9)

    area = metrics.ause(uncertainty=uncertainty, error=error)
    uncertainty, error = columns(random.sample(rows, len(rows)))
    assert metrics.ause(uncertainty=uncertainty, error=error) == pytest.approx(area, abs=1e-9)
    assert metrics.ause(uncertainty=np.abs(error), error=error) == 0


def test_ause_is_the_area_between_the_two_curves_on_a_fine_grid() -> None:
    error = normal(400)
    uncertainty = error.abs() + 0.7 * normal(400, seed=1).abs()

    def curve(order: np.ndarray) -> np.ndarray:
        squares = error.numpy()[np.argsort(order)] ** 2
        rest = np.sqrt(squares.cumsum() / np.arange(1, 401))[::-1]  # removed 0, 1, … 399
        return np.append(rest / rest[0], 0.0)  # and with nothing left no error

    both = curve(uncertainty.numpy()) - curve(np.abs(error.numpy()))
    area = metrics.ause(uncertainty=uncertainty, error=error)
    assert area == pytest.approx(trapezoid(both, dx=1 / 400), abs=1e-12)


def test_ause_orders_oracle_informed_chance_and_adversary() -> None:
    error = normal(4000)
    informed, chance = error.abs() + normal(4000, seed=1).abs(), normal(4000, seed=2)
    scores = (error.abs(), informed, chance, -error.abs())
    areas = [metrics.ause(uncertainty=score, error=error) for score in scores]
    assert areas == sorted(areas)
    assert areas[0] == 0
    # What is kept at random has the error of all; the oracle leaves the share p smallest of |N(0, 1)|.
    p = np.linspace(0, 1, 20_001)[1:]
    q = stats.norm.ppf((1 + p[:-1]) / 2)
    oracle = np.append(np.sqrt(1 - 2 * q * stats.norm.pdf(q) / p[:-1]), 1)
    assert areas[2] == pytest.approx(1 - oracle.mean(), abs=0.02)
    assert metrics.ause(uncertainty=torch.zeros(4000), error=error) == pytest.approx(1 - oracle.mean(), abs=0.02)


def test_no_error_at_all_is_the_perfect_order() -> None:
    assert metrics.ause(uncertainty=[3.0, 1.0], error=[0.0, 0.0]) == 0
    assert metrics.sparsification(uncertainty=[3.0, 1.0], error=[0.0, 0.0])[1].tolist() == [0, 0]


@pytest.mark.parametrize("metric", PAIRS)
def test_every_kind_of_input_gives_the_same(metric: Callable[..., Any]) -> None:
    a = torch.randint(0, 9, (4, 3, 5), generator=torch.Generator().manual_seed(0))
    b = a + torch.randint(0, 5, (4, 3, 5), generator=torch.Generator().manual_seed(1))
    expected = metric(a.flatten().tolist(), b.flatten().tolist())
    read_only = b.numpy().astype(np.float32)
    read_only.flags.writeable = False
    for kind in [(a, b), (a.half(), b.bfloat16()), (a.float().requires_grad_(), b.double()), (a.numpy(), read_only)]:
        got = metric(*kind)
        if isinstance(expected, tuple):
            assert all(torch.equal(x, y) and x.dtype == torch.float64 for x, y in zip(got, expected, strict=True))
        else:
            assert got == expected
            assert type(got) is float


@pytest.mark.parametrize("metric", PAIRS)
def test_bad_input_is_refused(metric: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="is empty"):
        metric([], [])
    with pytest.raises(ValueError, match="holds 1 NaN among 2 values"):
        metric([1.0, 0.0], torch.tensor([1.0, torch.nan]))
    # Broadcasting (n,) with (n, 1) is the error that passes unseen.
    with pytest.raises(ValueError, match=r"must have the same shape, got .*\(3,\).* \(3, 1\)"):
        metric(torch.zeros(3), torch.zeros(3, 1))


def test_infinite_errors_are_refused() -> None:
    for call in (
        lambda: metrics.rmse([0.0, INF], [0.0, 0.0]),
        lambda: metrics.rmse([0.0, 1.0], [0.0, -INF]),
        lambda: metrics.sparsification(uncertainty=[0.0, 1.0], error=[0.0, INF]),
        lambda: metrics.sparsification_oracle([0.0, -INF]),
        lambda: metrics.ause(uncertainty=[0.0, 1.0], error=[0.0, INF]),
    ):
        with pytest.raises(ValueError, match="holds 1 infinite among 2 values"):
            call()
