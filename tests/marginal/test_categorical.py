from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hidden_uncertainty.marginal import Categorical, LabelSets
from hidden_uncertainty.marginal.categorical import FEWEST, MOST
from hidden_uncertainty.scoring.bayes import infer


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_frequencies_match_a_count(y: list[int], unused: int) -> None:
    classes = max(y) + 1 + unused
    marginal = Categorical().fit(torch.tensor(y), classes=classes)
    counts = Counter(y)
    expected = [math.log(counts[c] / len(y)) if counts[c] else -math.inf for c in range(classes)]
    torch.testing.assert_close(marginal.log_prob, torch.tensor(expected))
    assert marginal.support.tolist() == sorted(counts)
    torch.testing.assert_close(marginal.log_weight, torch.tensor(expected)[sorted(counts)])
    assert marginal.log_weight.exp().sum().item() == pytest.approx(1)


def test_classes_default_to_the_largest() -> None:
    assert len(Categorical().fit(torch.tensor([4, 1], dtype=torch.uint8)).log_prob) == 5


def test_rare_class_among_many_samples() -> None:
    y = torch.zeros(100_000, dtype=torch.int8)
    y[-1] = 1
    log_prob = Categorical().fit(y).log_prob
    assert log_prob[0].item() == pytest.approx(math.log1p(-1e-5), rel=1e-6)  # 1 - 1e-5 has five digits less in float32
    assert log_prob[1].item() == pytest.approx(math.log(1e-5), rel=1e-6)


def test_whole_and_occurring_classes_infer_the_same() -> None:
    marginal = Categorical().fit(torch.tensor([0, 3, 3, 5, 5, 5]), classes=7)
    log_likelihood = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    everything = infer(log_likelihood, marginal.log_prob)
    occurring = infer(log_likelihood[:, marginal.support], marginal.log_weight)
    torch.testing.assert_close(everything.log_evidence, occurring.log_evidence)
    torch.testing.assert_close(everything.entropy, occurring.entropy)


def test_rebuilt_from_its_configuration() -> None:
    marginal = Categorical().fit(torch.tensor([0, 2, 2]), classes=5)
    rebuilt = Categorical.from_config(marginal.config())
    rebuilt.load_state_dict(marginal.state_dict(), strict=True)
    for name, value in marginal.state_dict().items():
        assert torch.equal(rebuilt.state_dict()[name], value)
        assert rebuilt.state_dict()[name].dtype == value.dtype


def test_fit_again_forgets() -> None:
    marginal = Categorical().fit(torch.tensor([0, 1, 2, 3]))
    assert marginal.fit(torch.tensor([1, 1]), classes=2) is marginal
    shapes = {"log_prob": ["float32", 2], "support": ["int64", 1], "log_weight": ["float32", 1]}
    assert marginal.config() == {"fitted": shapes}
    assert set(marginal.state_dict()) == {"log_prob", "support", "log_weight"}


@pytest.mark.parametrize(
    ("y", "classes", "error", "text"),
    [
        (torch.tensor([0.0, 1.0]), None, TypeError, "float32"),
        (torch.tensor([True]), None, TypeError, "bool"),
        (torch.zeros(0, dtype=torch.long), None, ValueError, r"\(0,\)"),
        (torch.zeros(2, 2, dtype=torch.long), None, ValueError, r"\(2, 2\)"),
        (torch.tensor([0, 3]), 3, ValueError, "0 … 2, not 0 … 3"),
        (torch.tensor([-1, 3]), None, ValueError, "not -1 … 3"),
    ],
)
def test_errors(y: Tensor, classes: int | None, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Categorical().fit(y, classes=classes)


def sets_of(n: int = 600, labels: int = 5, seed: int = 0) -> Tensor:
    """Labels of different frequencies, some of which come together, so that some sets are rare."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(n, 1, generator=generator)
    return (torch.randn(n, labels, generator=generator) + shared > torch.linspace(-0.5, 2.0, labels)).long()


def test_rare_sets_of_labels_go_to_the_nearest_frequent_one() -> None:
    y = sets_of()
    marginal = LabelSets().fit(y)
    counts = Counter(map(tuple, y.tolist()))
    frequent = sorted((labels for labels in counts if counts[labels] >= FEWEST), key=lambda one: (-counts[one], one))
    assert 5 < len(frequent) < len(counts) - 3
    assert list(map(tuple, marginal.sets.tolist())) == frequent

    def nearest(labels: tuple[int, ...]) -> int:
        away = [sum(a != b for a, b in zip(labels, other, strict=True)) for other in frequent]
        return away.index(min(away))  # the first, which is the most frequent

    which = [nearest(tuple(row)) for row in y.tolist()]
    assert marginal.of(y).tolist() == which
    share = [y[torch.tensor(which) == place].double().mean(0) for place in range(len(frequent))]
    torch.testing.assert_close(marginal.share.double(), torch.stack(share), rtol=1e-6, atol=1e-6)
    weights = torch.tensor(which).bincount() / len(y)
    torch.testing.assert_close(marginal.log_weight.exp(), weights)
    posterior = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    wide = torch.zeros(2, len(frequent))
    wide[:, [0, 3]] = posterior
    torch.testing.assert_close(marginal.probabilities(wide.log()), posterior @ marginal.share[[0, 3]])


def test_sets_of_labels_depend_on_no_order_and_are_rebuilt() -> None:
    y = sets_of()
    one, other = (
        LabelSets().fit(y),
        LabelSets().fit(y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]),
    )
    rebuilt = LabelSets.from_config(one.config())
    rebuilt.load_state_dict(one.state_dict())
    rebuilt.check()
    for same in (other, rebuilt):
        assert all(torch.equal(a, b) for a, b in zip(one.buffers(), same.buffers(), strict=True))


def test_sets_of_labels_are_few_but_at_least_two() -> None:
    many = sets_of(20_000, labels=14)
    assert len(many.unique(dim=0)) > 2000
    marginal = LabelSets().fit(many)
    assert len(marginal.sets) == MOST and marginal.log_weight.exp().sum().item() == pytest.approx(1, abs=1e-4)
    assert len(LabelSets().fit(torch.eye(8, dtype=torch.long)).sets) == 2  # none of which is frequent
    assert len(LabelSets().fit(torch.ones(9, 3, dtype=torch.long)).sets) == 1


@pytest.mark.parametrize(
    "y", [torch.zeros(4, dtype=torch.long), torch.zeros(4, 2), torch.full((4, 2), 2), torch.zeros(0, 2).long()]
)
def test_what_is_no_set_of_labels(y: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected zeros and ones as integers \(n, labels\)"):
        LabelSets().fit(y)


def test_sets_of_labels_that_no_fit_gave() -> None:
    for name, text in (("sets", "not zeros and ones"), ("share", "not between 0 and 1")):
        marginal = LabelSets().fit(sets_of())
        getattr(marginal, name)[0, 0] = 3
        with pytest.raises(ValueError, match=text):
            marginal.check()
