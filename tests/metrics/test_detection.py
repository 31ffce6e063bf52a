"""Metrics of detection against scikit-learn, brute force and their own symmetries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from sklearn.calibration import calibration_curve

from hidden_uncertainty import metrics

INF = float("inf")
BY_NAME: list[Callable[..., Any]] = [metrics.auroc, metrics.average_precision, metrics.fpr_at_tpr, metrics.roc_curve]
PAIRS: list[Callable[..., Any]] = [lambda low, high, f=f: f(negative=low, positive=high) for f in BY_NAME]
RANKED: list[Callable[..., Any]] = [metrics.accuracy_rejection, metrics.aurc, metrics.expected_calibration_error]

# A few integers give many ties.
tied = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=30)
spread = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30)
scores = st.one_of(tied, spread)
answers = st.lists(st.tuples(st.integers(0, 3).map(float), st.booleans()), min_size=1, max_size=40)
properties = settings(max_examples=60, deadline=None)


def as_labels(negative: list[float], positive: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.r_[np.zeros(len(negative)), np.ones(len(positive))], np.r_[negative, positive]


@given(scores, scores)
@properties
def test_detection_metrics_are_those_of_scikit_learn(negative: list[float], positive: list[float]) -> None:
    label, score = as_labels(negative, positive)
    fpr, tpr, _ = sklearn_metrics.roc_curve(label, score, drop_intermediate=False)

    area, precision, _, ours = (metric(negative, positive) for metric in PAIRS)
    assert area == pytest.approx(sklearn_metrics.roc_auc_score(label, score), abs=1e-12)
    assert precision == pytest.approx(sklearn_metrics.average_precision_score(label, score), abs=1e-12)
    np.testing.assert_allclose(ours[0], fpr, atol=1e-12)
    np.testing.assert_allclose(ours[1], tpr, atol=1e-12)
    for rate in (0.05, 0.5, 0.95, 1.0):
        caught = metrics.fpr_at_tpr(negative=negative, positive=positive, tpr=rate)
        assert caught == pytest.approx(fpr[tpr >= rate][0], abs=1e-12)


@given(scores, scores)
@properties
def test_auroc_counts_pairs_and_its_two_directions_sum_to_one(negative: list[float], positive: list[float]) -> None:
    wins = np.sign(np.subtract.outer(np.array(positive), np.array(negative)))
    area, other = (metrics.auroc(negative=a, positive=b) for a, b in [(negative, positive), (positive, negative)])
    assert area == pytest.approx(((wins + 1) / 2).mean(), abs=1e-12)
    assert area + other == pytest.approx(1, abs=1e-15)


@given(tied, tied)
@properties
def test_only_the_ranking_matters_and_infinities_rank(negative: list[float], positive: list[float]) -> None:
    ranks = {-3.0: -INF, -2.0: -1e30, -1.0: -1e-30, 0.0: 0.0, 1.0: 7.0, 2.0: 1e300, 3.0: INF}
    moved = [ranks[s] for s in negative], [ranks[s] for s in positive]
    for metric in PAIRS[:3]:
        assert metric(*moved) == metric(negative, positive)


@pytest.mark.parametrize("positives", [1, 7, 20, 100, 300])
def test_fpr_at_tpr_catches_exactly_the_share_that_decimals_say(positives: int) -> None:
    # Negatives equal positives, so the share of negatives at the threshold is the share of positives caught.
    ladder = torch.arange(positives)
    for percent in range(1, 101):
        caught = metrics.fpr_at_tpr(negative=ladder, positive=ladder, tpr=percent / 100) * positives
        assert round(caught) == -(-percent * positives // 100)


@given(answers)
@properties
def test_accuracy_rejection_is_the_mean_over_orders_of_ties(pairs: list[tuple[float, bool]]) -> None:
    pairs = pairs[:6]
    orders = [order for order in permutations(pairs) if list(order) == sorted(order, key=lambda pair: pair[0])]
    right = np.array([[answer for _, answer in order] for order in orders], dtype=float)  # (orders, n)
    steps = np.arange(1, len(pairs) + 1)

    kept, accuracy = metrics.accuracy_rejection(*zip(*pairs, strict=True))
    np.testing.assert_allclose(kept, steps / len(pairs))
    np.testing.assert_allclose(accuracy, (right.cumsum(1) / steps).mean(0), atol=1e-12)


@given(answers, st.randoms(use_true_random=False))
@properties
def test_aurc_does_not_depend_on_the_order_of_the_input(pairs: list[tuple[float, bool]], random: Any) -> None:
    shuffled = random.sample(pairs, len(pairs))
    before, after = (metrics.accuracy_rejection(*zip(*p, strict=True)) for p in (pairs, shuffled))
    assert torch.equal(before[1], after[1])
    assert before[1][-1] == pytest.approx(np.mean([answer for _, answer in pairs]), abs=1e-15)

    error = metrics.aurc(*zip(*pairs, strict=True))
    assert error == pytest.approx(float(1 - before[1].mean()), abs=1e-12)
    assert metrics.aurc([0.0] * len(pairs), [p[1] for p in pairs]) == pytest.approx(1 - float(before[1][-1]), abs=1e-12)


def test_aurc_orders_oracle_chance_and_adversary() -> None:
    correct = torch.rand(2000, generator=torch.Generator().manual_seed(0)) < 0.8
    noise = torch.rand(2000, generator=torch.Generator().manual_seed(1))
    rate = 1 - correct.double().mean()
    # Kept in the best order, errors r come last: the area tends to r + (1 - r) log(1 - r).
    best = float(rate + (1 - rate) * (1 - rate).log())
    assert metrics.aurc(~correct, correct) == pytest.approx(best, abs=1e-3)
    assert metrics.aurc(noise, correct) == pytest.approx(float(rate), abs=0.03)
    assert metrics.aurc(correct, correct) > 2 * float(rate)


def guo(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    """Equation 3 of Guo et al. with a loop over bins, the first closed on the left."""
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = (confidence > low) & (confidence <= high) | ((b == 0) & (confidence == 0))
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return total


# Eighths fall on the edges of eight bins and are exact in binary.
confidences = st.one_of(st.floats(0, 1), st.integers(0, 8).map(lambda i: i / 8))


@given(st.lists(st.tuples(confidences, st.booleans()), min_size=1, max_size=40), st.sampled_from([1, 2, 8, 16]))
@properties
def test_expected_calibration_error_is_the_paper_s(pairs: list[tuple[float, bool]], bins: int) -> None:
    confidence, correct = (np.array(column) for column in zip(*pairs, strict=True))
    ours = metrics.expected_calibration_error(confidence, correct, bins=bins)
    assert ours == pytest.approx(guo(confidence, correct, bins), abs=1e-12)


@pytest.mark.parametrize("bins", [3, 10, 15, 20, 100])
def test_a_confidence_at_the_end_of_a_bin_is_in_it(bins: int) -> None:
    for b in range(1, bins):  # two in one bin, one right and one wrong, whose gaps cancel in part
        inside = (b - 0.5) / bins
        ours = metrics.expected_calibration_error([b / bins, inside], [True, False], bins=bins)
        assert ours == pytest.approx(abs(1 - b / bins - inside) / 2, abs=1e-12)


def test_expected_calibration_error_is_the_gap_of_the_calibration_curve() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(5000, generator=generator, dtype=torch.float64)
    correct = torch.rand(5000, generator=generator) < confidence**2
    accuracy, stated = calibration_curve(correct, confidence, n_bins=15)
    share = np.histogram(confidence, bins=np.linspace(0, 1, 16))[0] / 5000
    expected = (share * np.abs(accuracy - stated)).sum()
    ours = metrics.expected_calibration_error(confidence.requires_grad_(), correct)
    assert ours == pytest.approx(expected, abs=1e-12)
    assert metrics.expected_calibration_error([1.0 + 5e-7, 0.0], [True, False]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("metric", PAIRS)
def test_every_kind_of_input_gives_the_same(metric: Callable[..., Any]) -> None:
    negative = torch.randint(0, 9, (4, 3, 5), generator=torch.Generator().manual_seed(0))
    positive = torch.randint(3, 12, (6, 7), generator=torch.Generator().manual_seed(1))
    expected = metric(negative.flatten().tolist(), positive.flatten().tolist())
    read_only = positive.numpy().astype(np.float32)[::-1]
    read_only.flags.writeable = False
    kinds = [
        (negative, positive),
        (negative.half(), positive.bfloat16()),
        (negative.float().requires_grad_(), positive.double()),
        (negative.numpy(), read_only),
    ]
    for kind in kinds:
        got = metric(*kind)
        if isinstance(expected, tuple):
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
            assert not got[0].requires_grad
            assert got[0].dtype == torch.float64
        else:
            assert got == expected
            assert type(got) is float


def test_precision_of_lists_and_of_float64_is_kept() -> None:
    assert metrics.auroc(negative=[1.0], positive=[1.0 + 1e-12]) == 1.0
    above = torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    assert metrics.auroc(negative=torch.tensor([1.0]), positive=above) == 1.0


@pytest.mark.parametrize("metric", PAIRS + RANKED)
def test_what_cannot_be_ranked_is_refused(metric: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="is empty"):
        metric([], [1.0])
    with pytest.raises(ValueError, match="is empty"):
        metric([1.0], torch.zeros(0, 3))
    with pytest.raises(ValueError, match="holds 1 NaN among 2 values"):
        metric([1.0, float("nan")], [1.0, 0.0])
    with pytest.raises(ValueError, match="holds 1 NaN among 2 values"):
        metric([1.0, 0.0], torch.tensor([1.0, torch.nan]))


@pytest.mark.parametrize("metric", RANKED)
def test_one_answer_per_input(metric: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"must have the same shape, got \(3,\) and \(3, 1\)"):
        metric(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"must have the same shape, got \(3,\) and \(2,\)"):
        metric([0.0, 0.0, 0.0], [True, False])
    with pytest.raises(ValueError, match=r"booleans, or 0 and 1, got 0\.5"):
        metric([0.0, 0.0, 0.0], [0, 0.5, 1])


def test_arguments_out_of_range_are_refused() -> None:
    for tpr in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match="tpr must be above 0"):
            metrics.fpr_at_tpr(negative=[0.0], positive=[1.0], tpr=tpr)
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        metrics.expected_calibration_error([0.5], [True], bins=0)
    for wrong in (-0.1, 1.1, INF):
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
            metrics.expected_calibration_error([0.5, wrong], [True, True])


@pytest.mark.parametrize("metric", BY_NAME)
def test_scikit_learn_s_order_is_refused_with_what_to_write(metric: Callable[..., Any]) -> None:
    label, score = [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]
    name = metric.__name__
    with pytest.raises(
        TypeError, match=rf"{name} takes arguments by name: write {name}\(negative=\.\.\., positive="
    ) as one:
        metric(label, score)
    with pytest.raises(TypeError, match=r"scikit-learn's order is \(y_true, y_score\)") as other:
        metric(label, positive=score)
    assert str(one.value) == str(other.value)


def test_arguments_that_could_be_swapped_have_names() -> None:
    calls: dict[str, Callable[..., Any]] = {
        r"sparsification\(uncertainty=\.\.\., error=\.\.\.\)\.$": lambda: metrics.sparsification([1.0], [2.0]),
        r"ause\(uncertainty=\.\.\., error=\.\.\.\)\.$": lambda: metrics.ause([1.0], [2.0]),
    }
    for message, call in calls.items():
        with pytest.raises(TypeError, match=message):
            call()
