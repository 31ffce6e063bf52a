"""Areas of lift curves against brute force, closed forms and their own symmetries."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hidden_uncertainty import metrics

properties = settings(max_examples=60, deadline=None)
answers = st.lists(st.tuples(st.integers(0, 3).map(float), st.booleans()), min_size=2, max_size=40)
distinct = st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), min_size=2, max_size=40, unique_by=lambda x: x[0])


def brute_area(order: list[int], correct: list[bool]) -> float:
    """Area of the lift curve above 1, one kept input after the other."""
    overall = sum(correct) / len(correct)
    lifts = [sum(correct[i] for i in order[:k]) / k / overall for k in range(1, len(order) + 1)]
    return sum(lifts) / len(lifts) - 1


def mixed(correct: list[bool]) -> bool:
    return any(correct) and not all(correct)


@given(distinct.filter(lambda pairs: mixed([right for _, right in pairs])))
@properties
def test_raulc_by_brute_force(pairs: list[tuple[float, bool]]) -> None:
    scores, correct = [score for score, _ in pairs], [right for _, right in pairs]
    found = brute_area(sorted(range(len(scores)), key=scores.__getitem__), correct)
    best = brute_area(sorted(range(len(scores)), key=lambda i: not correct[i]), correct)
    assert metrics.raulc(scores, correct) == pytest.approx(found / best, abs=1e-9)


def test_the_oracle_is_the_best_of_all_orders_and_no_order_is_better_than_one() -> None:
    correct = [True, False, True, True, False, True]
    values = [metrics.raulc(list(order), correct) for order in permutations(range(6))]
    assert max(values) == pytest.approx(1, abs=1e-12) and np.mean(values) == pytest.approx(0, abs=1e-12)


@given(answers.filter(lambda pairs: mixed([right for _, right in pairs])))
@properties
def test_ties_are_in_no_order(pairs: list[tuple[float, bool]]) -> None:
    scores, correct = [score for score, _ in pairs], [right for _, right in pairs]
    assert metrics.raulc(scores[::-1], correct[::-1]) == pytest.approx(metrics.raulc(scores, correct), abs=1e-9)
    assert metrics.raulc([0.0] * len(scores), correct) == pytest.approx(0, abs=1e-9)
    assert metrics.raulc(scores, correct) <= 1 + 1e-9


def test_how_good_the_network_is_does_not_matter_to_one_that_knows_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    for share in (0.2, 0.9):
        correct = torch.rand(20_000, generator=generator) < share
        assert metrics.raulc(torch.rand(20_000, generator=generator), correct) == pytest.approx(0, abs=0.1)


def test_errors_say_what_came() -> None:
    with pytest.raises(ValueError, match="none of 2 predictions are right"):
        metrics.raulc([1.0, 2.0], [False, False])
    with pytest.raises(ValueError, match="all of 2 predictions are right"):
        metrics.raulc([1.0, 2.0], [True, True])
    with pytest.raises(ValueError, match=r"got \(2,\) and \(3,\)"):
        metrics.raulc([1.0, 2.0], [True, True, False])
