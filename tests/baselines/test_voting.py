from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy
from torch import Tensor, nn

from hidden_uncertainty import Pixels
from hidden_uncertainty.baselines import DeepEnsemble, MCDropout
from hidden_uncertainty.baselines.ensemble import decompose_classes, decompose_numbers


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
    prediction, parts = decompose_classes(scores)
    np.testing.assert_allclose(parts.aleatoric, own, rtol=1e-12)
    np.testing.assert_allclose(parts.log_aleatoric, np.log(own), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(parts.epistemic, entropy(p.mean(0), axis=-1) - own, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(prediction, p.mean(0).argmax(-1))


def test_prediction_is_of_the_mean_probability_not_of_the_majority() -> None:
    p = torch.tensor([[[0.51, 0.49]], [[0.51, 0.49]], [[0.0, 1.0]]])
    assert decompose_classes(p.log())[0].tolist() == [1]


@pytest.mark.parametrize("difference", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("gap", [0.0, 3.0, 20.0, 60.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_information_keeps_its_digits_where_members_nearly_agree(
    difference: float, gap: float, dtype: torch.dtype, tolerance: float
) -> None:
    base = torch.tensor([gap, 0.5, -0.25, 0.0], dtype=torch.float64)
    scores = (base + draw((4, 6, 4), difference, dtype=torch.float64)).to(dtype)
    _, parts = decompose_classes(scores)
    # A float32 logit of 60 is known to 4e-6, and the difference to that.
    known = torch.finfo(dtype).eps * (1 + gap) / difference
    for row in range(6):
        expected = information(scores, row)
        assert parts.epistemic[row].item() == pytest.approx(expected, rel=tolerance + 4 * known)


def test_certain_members_that_disagree() -> None:
    scores = torch.full((3, 1, 3), -1e30)
    scores[torch.arange(3), 0, torch.arange(3)] = 1e30
    _, parts = decompose_classes(scores)
    torch.testing.assert_close(parts.epistemic, torch.tensor([math.log(3)]))
    assert parts.aleatoric.item() == 0


def test_log_aleatoric_ranks_what_the_mean_entropy_cannot() -> None:
    gaps = torch.tensor([200.0, 300.0, 1e4])
    scores = torch.stack([torch.zeros(3), -gaps], 1).expand(4, 3, 2)
    _, parts = decompose_classes(scores)
    assert parts.aleatoric.eq(0).all()
    torch.testing.assert_close(parts.log_aleatoric, (gaps + 1).log() - gaps)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(2, 5), st.sampled_from([1e-6, 1.0, 50.0, 1e4, 1e30, 3e38]), st.integers(0, 1000))
def test_finite_and_within_bounds(members: int, classes: int, scale: float, seed: int) -> None:
    limit = torch.finfo(torch.float32).max
    scores = draw((members, 9, classes), scale, seed, torch.float64).clamp(-limit, limit).float()
    prediction, parts = decompose_classes(scores)
    epistemic, aleatoric, log_aleatoric = parts.epistemic, parts.aleatoric, parts.log_aleatoric
    assert aleatoric is not None and log_aleatoric is not None
    assert prediction.ge(0).all() and prediction.lt(classes).all()
    assert epistemic.ge(0).all() and epistemic.le(math.log(min(members, classes)) + 1e-6).all()
    assert aleatoric.ge(0).all() and (aleatoric + epistemic).le(math.log(classes) + 1e-5).all()
    assert log_aleatoric.isfinite().all()


@pytest.mark.parametrize("shape", [(2, 30), (7, 30), (4, 30, 3)])
def test_numbers_by_numpy(shape: tuple[int, ...]) -> None:
    value, variance = draw(shape, 2.0, 1, torch.float64), draw(shape, 1.0, 2, torch.float64).square()
    prediction, parts = decompose_numbers(value, variance)
    spread, own = value.numpy().var(0), variance.numpy().mean(0)
    if len(shape) == 3:
        spread, own = spread.sum(-1), own.sum(-1)
    np.testing.assert_allclose(prediction, value.numpy().mean(0))
    np.testing.assert_allclose(parts.epistemic, spread)
    np.testing.assert_allclose(parts.aleatoric, own)
    assert parts.log_aleatoric is None
    assert decompose_numbers(value)[1].aleatoric is None


def test_numbers_far_out_stay_finite() -> None:
    prediction, parts = decompose_numbers(torch.tensor([[3e38, 3e38], [3e38, -3e38]]), torch.full((2, 2), 3e38))
    torch.testing.assert_close(prediction, torch.tensor([3e38, 0.0]))
    assert parts.epistemic.isfinite().all()
    assert parts.epistemic[1] > parts.epistemic[0]
    assert parts.aleatoric.isfinite().all()


@pytest.mark.parametrize(("task", "channels"), [("classification", 3), ("classification", 1), ("regression", 1)])
@pytest.mark.parametrize("method", ["ensemble", "samples"])
def test_pixels_are_scored_as_rows_of_their_own(method: str, task: str, channels: int) -> None:
    x, models = draw((2, 1, 5, 6), 1.0), []
    for seed in range(4):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = [nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Dropout(0.5), nn.Conv2d(4, channels, 1)]
            models.append(nn.Sequential(*layers).eval())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        if method == "ensemble":
            u = DeepEnsemble(models, task=task, pixels=Pixels())(x)  # type: ignore[arg-type]
            maps = torch.stack([model(x) for model in models])  # (4, 2, C, 5, 6)
        else:
            u = MCDropout(models[0], 4, seed=7, task=task, pixels=Pixels())(x)  # type: ignore[arg-type]
            models[0][2].train()
            torch.manual_seed(7)
            maps = torch.stack([models[0](x) for _ in range(4)])
    if task == "regression":
        prediction, parts = decompose_numbers(maps[:, :, 0].flatten(1))
    else:
        maps = maps if channels > 1 else torch.cat([torch.zeros_like(maps), maps], 2)
        prediction, parts = decompose_classes(maps.movedim(2, -1).flatten(1, 3))
    torch.testing.assert_close(u.prediction, prediction.reshape(2, 5, 6))
    for name in ("epistemic", "aleatoric", "log_aleatoric"):
        found, expected = getattr(u, name), getattr(parts, name)
        torch.testing.assert_close(found, None if expected is None else expected.reshape(2, 5, 6), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", [lambda models: MCDropout(models[0], 20), DeepEnsemble])
def test_threads_with_one_model_and_with_several(method: Callable[[list[nn.Module]], Any]) -> None:
    layers = [lambda: nn.Linear(4, 16), lambda: nn.BatchNorm1d(16), lambda: nn.Dropout(0.5), lambda: nn.Linear(16, 3)]
    models = [nn.Sequential(*(layer() for layer in layers)) for _ in range(2)]
    x, orders, found = draw((50, 4), 1.0), [models, models[::-1]] * 2, list[tuple[int, Tensor]]()
    expected, state = [method(order)(x).epistemic for order in orders], torch.get_rng_state()

    def score(which: int) -> None:
        found.extend((which, method(orders[which])(x).epistemic) for _ in range(10))

    threads = [threading.Thread(target=score, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and all(torch.equal(scores, expected[which]) for which, scores in found)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for model in models for module in model.modules())
