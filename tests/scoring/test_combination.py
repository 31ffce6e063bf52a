"""Tails of scores against shares that are counted, agreement against scikit-learn, and what files may hold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score
from torch import Tensor

from hidden_uncertainty.scoring.combination import LOWEST, PIECES, Combination, Standard, Tail, agreement

NAMES = ["conv", "fc", "outputs"]


def drawn(n: int = 4000, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).exp()


def test_within_the_known_scores_it_is_the_share_above() -> None:
    known, new = drawn(), drawn(500, seed=1)
    share = (known >= new[:, None]).double().mean(1)
    inside = share > 0.06
    found = Tail.fit(known, 1.0).rarity(new)
    torch.testing.assert_close(found[inside], -share[inside].log(), rtol=0.02, atol=LOWEST / PIECES / 2)


def test_beyond_them_the_tail_is_exponential() -> None:
    known = -torch.rand(
        100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).log()  # is exponential
    far = torch.tensor([5.0, 20.0, 300.0], dtype=torch.float64)
    torch.testing.assert_close(Tail.fit(known, 0.5).rarity(far), far, rtol=0.03, atol=0.0)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60),
    st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20),
)
def test_higher_scores_are_never_less_rare(known: list[float], new: list[float]) -> None:
    tail = Tail.fit(torch.tensor(known), 0.7)
    tail.check()
    found = tail.rarity(torch.tensor(sorted(new)))
    assert found.isfinite().all() and (found >= 0).all() and (found.diff() >= -1e-5 * found[1:].abs()).all()


def test_scores_that_are_all_the_same() -> None:
    tail = Tail.fit(torch.full((50,), 3.0), 1.0)
    assert tail.rarity(torch.tensor([2.0, 3.0, 4.0, math.inf])).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_beyond_a_highest_score_that_many_share_inputs_are_still_ranked() -> None:
    tail = Tail.fit(torch.arange(100.0).clamp(max=80), 1.0)  # a fifth has the highest one
    found = tail.rarity(torch.tensor([40.0, 80.0, 80.0 + 1e-5, 100.0, 500.0]))
    assert (found.diff() > 0).all() and found[2] - found[1] < 1e-5


def test_the_unit_of_scores_does_not_matter() -> None:
    known, new = drawn(), drawn(50, seed=1)
    expected = Tail.fit(known, 1.0).rarity(new)
    for scale in (1e-20, 1e20):
        torch.testing.assert_close(Tail.fit(scale * known, 1.0).rarity(scale * new), expected, rtol=1e-4, atol=1e-5)


WEIGHTS = {"conv": 0.25, "fc": 0.9, "outputs": 1.0}


def taught() -> tuple[dict[str, Tensor], Combination]:
    scores = {name: drawn(seed=seed) for seed, name in enumerate(NAMES)}
    return scores, Combination("fisher", NAMES).learn(scores, WEIGHTS, unseen=True)


def test_a_score_is_high_where_one_of_two_questions_is_answered_by_yes() -> None:
    known, learnt = taught()
    assert learnt.learns and learnt.tails and learnt.unseen and learnt.leading == "outputs"
    rare = {name: Tail.fit(some, WEIGHTS[name]).rarity(some).numpy() for name, some in known.items()}
    near, far = (sum(w * t for w, t in zip(of, rare.values(), strict=True)) for of in (WEIGHTS.values(), [1.0] * 3))
    assert (far > learnt.far).mean() == pytest.approx(0.1, abs=0.01)  # of in-distribution data
    expected = np.log(np.exp(near) + np.exp(2 * (far - np.quantile(far, 0.9))))
    np.testing.assert_allclose(learnt(known).numpy(), expected, rtol=1e-5)
    usual = {name: some.median()[None] for name, some in known.items()}
    for name in NAMES:  # what is far for one term counts, whatever that knows of the classes
        away = {**usual, name: known[name].max()[None] * 10}
        assert learnt(away) > learnt(known).quantile(0.999) and learnt(away).isfinite().all()


def test_parts_add_up_and_come_back_from_files() -> None:
    scores, learnt = taught()
    parts = learnt.parts(scores)
    torch.testing.assert_close(learnt(scores), torch.stack([*parts.values()]).sum(0))
    assert all((part >= 0).all() for part in parts.values())
    usual = {name: some.median()[None] for name, some in scores.items()}
    for name in NAMES:
        due = learnt.parts({**usual, name: scores[name].max()[None]})
        assert max(due, key=lambda each: float(due[each])) == name
    again = Combination.from_config(json.loads(json.dumps(learnt.config())), NAMES)
    again.check()
    assert again.unseen and torch.equal(again(scores), learnt(scores))
    alone = Combination("fisher", ["fc"])
    assert alone.single and not alone.tails and alone(scores) is scores["fc"]
    with pytest.raises(ValueError, match="not a number"):
        Combination("fisher", NAMES, learnt.learnt, far=math.nan).check()


@given(st.lists(st.floats(0, 2.0**127, width=32), min_size=3, max_size=3), st.integers(0, 2), st.floats(1, 1e6))
def test_a_higher_score_of_one_term_never_lowers_that_of_all(values: list[float], place: int, factor: float) -> None:
    _, learnt = taught()
    scores = {name: torch.tensor([value, value]) for name, value in zip(NAMES, values, strict=True)}
    scores[NAMES[place]] = torch.tensor([values[place], values[place] * factor])
    low, high = learnt(scores).tolist()
    assert 0 <= low <= high < math.inf
    assert all(part.isfinite().all() for part in learnt.parts(scores).values())


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
