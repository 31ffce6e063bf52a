from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy
from torch import Tensor

from hidden_uncertainty.baselines._decompose import decompose_classes, decompose_numbers


def draw(shape: tuple[int, ...], scale: float, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def information(scores: Tensor, row: int) -> float:
    """Mutual information of one input by its definition, with digits to spare."""
    with mpmath.workdps(80):
        members = []
        for logits in scores[:, row].tolist():
            weights = [mpmath.exp(mpmath.mpf(value)) for value in logits]
            members.append([weight / mpmath.fsum(weights) for weight in weights])
        mean = [mpmath.fsum(column) / len(members) for column in zip(*members, strict=True)]

        def doubt(p: list[mpmath.mpf]) -> mpmath.mpf:
            return -mpmath.fsum(value * mpmath.log(value) for value in p if value)

        return float(doubt(mean) - mpmath.fsum(map(doubt, members)) / len(members))


@pytest.mark.parametrize(("members", "classes", "scale"), [(2, 2, 1.0), (5, 10, 3.0), (10, 3, 0.1), (3, 100, 10.0)])
def test_classes_by_scipy(members: int, classes: int, scale: float) -> None:
    scores = draw((members, 40, classes), scale, dtype=torch.float64)
    p = np.exp(scores.numpy())
    p /= p.sum(-1, keepdims=True)
    own = entropy(p, axis=-1).mean(0)
    parts = decompose_classes(scores)
    assert parts.aleatoric is not None
    assert parts.log_aleatoric is not None
    np.testing.assert_allclose(parts.aleatoric, own, rtol=1e-12)
    np.testing.assert_allclose(parts.log_aleatoric, np.log(own), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(parts.epistemic, entropy(p.mean(0), axis=-1) - own, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(parts.prediction, p.mean(0).argmax(-1))


def test_classes_by_hand() -> None:
    p = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]], [[0.5, 0.5]]])
    parts = decompose_classes(p.log())
    one = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    own = (2 * one + math.log(2)) / 3
    torch.testing.assert_close(parts.aleatoric, torch.tensor([own]))
    torch.testing.assert_close(parts.epistemic, torch.tensor([math.log(2) - own]))


def test_prediction_is_of_the_mean_probability_not_of_the_majority() -> None:
    p = torch.tensor([[[0.51, 0.49]], [[0.51, 0.49]], [[0.0, 1.0]]])
    assert decompose_classes(p.log()).prediction.tolist() == [1]


@pytest.mark.parametrize("difference", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("gap", [0.0, 3.0, 20.0, 60.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_information_keeps_its_digits_where_members_nearly_agree(
    difference: float, gap: float, dtype: torch.dtype, tolerance: float
) -> None:
    base = torch.tensor([gap, 0.5, -0.25, 0.0], dtype=torch.float64)
    scores = (base + draw((4, 6, 4), difference, dtype=torch.float64)).to(dtype)
    parts = decompose_classes(scores)
    # A float32 logit of 60 is known to 4e-6, and the difference to that.
    known = torch.finfo(dtype).eps * (1 + gap) / difference
    for row in range(6):
        expected = information(scores, row)
        assert parts.epistemic[row].item() == pytest.approx(expected, rel=tolerance + 4 * known)


def test_equal_members_have_no_epistemic_uncertainty_at_all() -> None:
    scores = draw((1, 50, 7), 5.0).expand(10, 50, 7)
    assert decompose_classes(scores).epistemic.eq(0).all()


def test_certain_members_that_disagree() -> None:
    scores = torch.full((3, 1, 3), -1e30)
    scores[torch.arange(3), 0, torch.arange(3)] = 1e30
    parts = decompose_classes(scores)
    torch.testing.assert_close(parts.epistemic, torch.tensor([math.log(3)]))
    assert parts.aleatoric is not None
    assert parts.aleatoric.item() == 0


def test_log_aleatoric_ranks_what_the_mean_entropy_cannot() -> None:
    gaps = torch.tensor([200.0, 300.0, 1e4])
    scores = torch.stack([torch.zeros(3), -gaps], 1).expand(4, 3, 2)
    parts = decompose_classes(scores)
    assert parts.aleatoric is not None
    assert parts.log_aleatoric is not None
    assert parts.aleatoric.eq(0).all()
    torch.testing.assert_close(parts.log_aleatoric, (gaps + 1).log() - gaps)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(2, 5),
    st.sampled_from([1e-6, 1.0, 50.0, 1e4, 1e30, 3e38]),
    st.integers(0, 1000),
)
def test_finite_and_within_bounds(members: int, classes: int, scale: float, seed: int) -> None:
    limit = torch.finfo(torch.float32).max
    scores = draw((members, 9, classes), scale, seed, torch.float64).clamp(-limit, limit).float()
    prediction, epistemic, aleatoric, log_aleatoric = decompose_classes(scores)
    assert aleatoric is not None
    assert log_aleatoric is not None
    assert prediction.ge(0).all() and prediction.lt(classes).all()
    assert epistemic.ge(0).all() and epistemic.le(math.log(min(members, classes)) + 1e-6).all()
    assert aleatoric.ge(0).all() and (aleatoric + epistemic).le(math.log(classes) + 1e-5).all()
    assert log_aleatoric.isfinite().all()


@pytest.mark.parametrize("shape", [(2, 30), (7, 30), (4, 30, 3)])
def test_numbers_by_numpy(shape: tuple[int, ...]) -> None:
    value, variance = draw(shape, 2.0, 1, torch.float64), draw(shape, 1.0, 2, torch.float64).square()
    parts = decompose_numbers(value, variance)
    spread, own = value.numpy().var(0), variance.numpy().mean(0)
    if len(shape) == 3:
        spread, own = spread.sum(-1), own.sum(-1)
    assert parts.aleatoric is not None
    np.testing.assert_allclose(parts.prediction, value.numpy().mean(0))
    np.testing.assert_allclose(parts.epistemic, spread)
    np.testing.assert_allclose(parts.aleatoric, own)
    assert parts.log_aleatoric is None
    assert decompose_numbers(value).aleatoric is None


def test_numbers_make_up_the_variance_of_the_mixture() -> None:
    mean, deviation = torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [2.0]])
    parts = decompose_numbers(mean, deviation.square())
    generator = torch.Generator().manual_seed(0)
    which = torch.randint(2, (400_000,), generator=generator)
    drawn = mean[which, 0] + deviation[which, 0] * torch.randn(400_000, generator=generator)
    assert parts.aleatoric is not None
    assert (parts.epistemic + parts.aleatoric).item() == pytest.approx(drawn.var().item(), rel=0.01)


def test_numbers_far_out_stay_finite() -> None:
    parts = decompose_numbers(torch.tensor([[3e38, 3e38], [3e38, -3e38]]), torch.full((2, 2), 3e38))
    torch.testing.assert_close(parts.prediction, torch.tensor([3e38, 0.0]))
    assert parts.epistemic.isfinite().all()
    assert parts.epistemic[1] > parts.epistemic[0]
    assert parts.aleatoric is not None
    assert parts.aleatoric.isfinite().all()
