from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hidden_uncertainty.marginal import Categorical
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
    assert marginal.config() == {"classes": 2, "occurring": 1}
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
