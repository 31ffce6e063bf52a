"""Tails of scores against shares that are counted, agreement against scikit-learn, and what files may hold."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from hidden_uncertainty.scoring.combination import LOWEST, PIECES, Combination, Standard, Tail, agreement

NAMES = ["conv", "fc", "outputs"]


def drawn(n: int = 4000, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).exp()


def test_within_the_known_scores_it_is_the_share_above() -> None:
    known, new = drawn(), drawn(500, seed=1)
    share = (known >= new[:, None]).double().mean(1)
    inside = share > 0.06
    found = Tail.fit(known, 1.0)(new)
    torch.testing.assert_close(found[inside].double(), -share[inside].log(), rtol=0.02, atol=LOWEST / PIECES / 2)


def test_beyond_them_the_tail_is_exponential() -> None:
    known = -torch.rand(
        100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).log()  # is exponential
    far = torch.tensor([5.0, 20.0, 300.0], dtype=torch.float64)
    tail = Tail.fit(known, 0.5)
    torch.testing.assert_close(tail.rarity(far), far, rtol=0.03, atol=0.0)
    beyond = far - math.log(20)
    torch.testing.assert_close(tail(far), 0.5 * far + 0.5 * beyond**2, rtol=0.06, atol=0.0)


def test_up_to_the_highest_5_percent_the_weight_decides() -> None:
    known = drawn()
    usual = known[known <= known.quantile(0.949)]
    tail = Tail.fit(known, 0.3)
    torch.testing.assert_close(tail(usual), (0.3 * tail.rarity(usual)).to(usual))
    assert (Tail.fit(known, 0.0)(usual) == 0).all() and (Tail.fit(known, 0.0)(known.max() + 1) > 0).all()


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60),
    st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20),
)
def test_higher_scores_are_never_less_rare(known: list[float], new: list[float]) -> None:
    tail = Tail.fit(torch.tensor(known), 0.7)
    tail.check()
    found = tail(torch.tensor(sorted(new)))
    assert found.isfinite().all() and (found >= 0).all() and (found.diff() >= -1e-5 * found[1:].abs()).all()


def test_scores_that_are_all_the_same() -> None:
    tail = Tail.fit(torch.full((50,), 3.0), 1.0)
    assert tail(torch.tensor([2.0, 3.0, 4.0, math.inf])).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_beyond_a_highest_score_that_many_share_inputs_are_still_ranked() -> None:
    tail = Tail.fit(torch.arange(100.0).clamp(max=80), 1.0)  # a fifth has the highest one
    found = tail(torch.tensor([40.0, 80.0, 80.0 + 1e-5, 100.0, 500.0]))
    assert (found.diff() > 0).all() and found[2] - found[1] < 1e-5


def test_the_unit_of_scores_does_not_matter() -> None:
    known, new = drawn(), drawn(50, seed=1)
    expected = Tail.fit(known, 1.0)(new)
    for scale in (1e-20, 1e20):
        torch.testing.assert_close(Tail.fit(scale * known, 1.0)(scale * new), expected, rtol=1e-4, atol=1e-5)


def test_parts_add_up_and_come_back_from_files() -> None:
    scores = {name: drawn(seed=seed) for seed, name in enumerate(NAMES)}
    weights = {"conv": 0.25, "fc": 0.9, "outputs": 1.0}
    learnt = Combination("fisher", NAMES).learn(scores, weights, unseen=True)
    assert learnt.learns and learnt.tails and learnt.leading == "outputs"
    parts = learnt.parts(scores)
    torch.testing.assert_close(learnt(scores), sum(parts.values()))
    for name, some in parts.items():
        torch.testing.assert_close(some, Tail.fit(scores[name], weights[name])(scores[name]))
    again = Combination.from_config(json.loads(json.dumps(learnt.config())), NAMES)
    assert again.unseen and torch.equal(again(scores), learnt(scores))
    alone = Combination("fisher", ["fc"])
    assert alone.single and not alone.tails and alone(scores) is scores["fc"]


@pytest.mark.parametrize("classes", [2, 3, 50])
def test_agreement_is_cohens_kappa(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    one = torch.randint(classes, (400,), generator=generator)
    other = torch.where(torch.rand(400, generator=generator) < 0.6, one, one.flip(0))
    assert agreement(one, other) == pytest.approx(cohen_kappa_score(one, other))
    assert agreement(one, one) == 1.0 and agreement(one * 0, one * 0) == 1.0
    assert agreement(torch.tensor([0, 1]), torch.tensor([1, 0])) == 0.0  # less than chance


def test_agreement_of_sets_of_labels() -> None:
    """Shares that are averaged over labels: where all have the same chance, the mean of their kappas."""
    generator = torch.Generator().manual_seed(0)
    one = torch.stack([torch.randperm(60, generator=generator) < 20 for _ in range(4)], 1).long()
    other = one.clone()
    for label, swaps in enumerate((0, 2, 5, 9)):  # as often as before, in other places
        ones, zeros = one[:, label].nonzero()[:swaps, 0], (one[:, label] == 0).nonzero()[:swaps, 0]
        other[ones, label], other[zeros, label] = 0, 1
    expected = [cohen_kappa_score(one[:, label], other[:, label]) for label in range(4)]
    assert agreement(one, other) == pytest.approx(sum(expected) / 4)
    assert agreement(one, one) == 1.0 and agreement(one, 1 - one) == 0.0
    never = torch.zeros(60, 1, dtype=torch.long)  # a label that nothing has changes nothing but the mean
    assert agreement(torch.cat([one, never], 1), torch.cat([other, never], 1)) == pytest.approx(sum(expected) / 4)


@pytest.mark.parametrize(
    ("learnt", "message"),
    [
        (Tail((0.0, 1.0), (0.0,), 1.0, 1.0), "not one height per knot"),
        (Tail((0.0, math.nan), (0.0, 1.0), 1.0, 1.0), "not a number"),
        (Tail((1.0, 0.0), (0.0, 1.0), 1.0, 1.0), "does not ascend"),
        (Tail((0.0, 1.0), (0.0, LOWEST), -1.0, 1.0), "does not ascend"),
        (Standard(0.0, 0.0), "not positive"),
    ],
)
def test_what_a_file_must_not_hold(learnt: Tail | Standard, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learnt.check()
