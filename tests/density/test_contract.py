"""What every density keeps to. A new one is added with a line in DENSITIES."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from hidden_uncertainty.density import ConditionalFlow, Density, GaussianMixture, JointMixture

Data = tuple[Tensor, Tensor, Tensor]  # z (n, d), y (n,) or (n, q), support (m,) or (m, q)


def classes() -> Data:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (240,), generator=generator)
    z = torch.randn(240, 5, generator=generator) + 3 * torch.randn(3, 5, generator=generator)[y]
    return z, y, torch.arange(3)


def numbers() -> Data:
    z, y, _ = classes()
    return z, y + 0.3 * z[:, 0] - 0.2 * z[:, 3], torch.tensor([-0.5, 1.0, 2.5])


def vectors() -> Data:
    z, y, _ = numbers()
    return z, torch.stack([y, z[:, 1]], dim=1), torch.tensor([[-0.5, 1.0], [1.0, 0.0], [2.5, -1.0]])


def flow(seed: int, **options: Any) -> Density:
    return ConditionalFlow(blocks=2, hidden=(16,), learning_rate=0.02, patience=6, seed=seed, **options)


DENSITIES: dict[str, tuple[Callable[[int], Density], Callable[[], Data]]] = {
    "full": (lambda seed: GaussianMixture(3), classes),
    "tied": (lambda seed: GaussianMixture(3, covariance="tied"), classes),
    "diag": (lambda seed: GaussianMixture(3, covariance="diag"), classes),
    "spherical": (lambda seed: GaussianMixture(3, covariance="spherical"), classes),
    "pooled": (lambda seed: GaussianMixture(covariance="pooled"), classes),
    "nearly pooled": (lambda seed: GaussianMixture(pooling=10), classes),
    "full, double": (lambda seed: GaussianMixture(2, dtype="float64"), classes),
    "joint": (lambda seed: JointMixture(3, seed=seed), numbers),
    "joint, diag": (lambda seed: JointMixture(3, covariance="diag", seed=seed), numbers),
    "joint, tied, double": (lambda seed: JointMixture(3, covariance="tied", dtype="float64", seed=seed), numbers),
    "joint, vectors": (lambda seed: JointMixture(3, seed=seed), vectors),
    "flow": (lambda seed: flow(seed), numbers),
    "flow, realnvp, double": (lambda seed: flow(seed, form="realnvp", dtype="float64"), numbers),
    "flow, vectors": (lambda seed: flow(seed, batch_size=64), vectors),
    "flow, classes": (lambda seed: flow(seed), classes),
}


class Case:
    """A density, unfitted and fitted, and what it was fitted to."""

    def __init__(self, name: str) -> None:
        self.build, data = DENSITIES[name]
        self.z, self.y, self.support = data()
        self.called = self.build(0)
        self.fitted = self.called.fit(self.z, self.y)

    def score(self, density: Density) -> Tensor:
        return density.log_prob(self.z, self.support)


@pytest.fixture(params=DENSITIES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def same(one: Density, other: Density) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours
    )


def test_arrays_and_frames_are_taken_as_tensors_are(case: Case) -> None:
    z, y, support = case.z.numpy(), case.y.numpy(), case.support.numpy()
    density = case.build(0).fit(z, y)
    assert same(density, case.fitted)
    assert torch.equal(density.log_prob(z, support), case.score(case.fitted))
    assert torch.equal(density.log_prob(pd.DataFrame(z), support=case.support), case.score(case.fitted))
    twice = density.log_prob(z.astype(np.float64), support)  # more digits than it was fitted to
    assert torch.equal(twice, case.fitted.log_prob(case.z.double(), case.support))


def test_every_kind_that_can_be_saved_is_here() -> None:
    ours = {name: kind for name, kind in Density.kinds.items() if kind.__module__.startswith("hidden_uncertainty.")}
    assert {type(build(0)) for build, _ in DENSITIES.values()} == set(ours.values())
    assert all(kind.__name__ == name for name, kind in ours.items())


def test_fit_returns_the_density(case: Case) -> None:
    assert case.fitted is case.called


def test_one_column_per_support_point_in_the_order_asked(case: Case) -> None:
    whole = case.score(case.fitted)
    assert whole.shape == (len(case.z), len(case.support))
    assert whole.isfinite().all()
    order = torch.arange(len(case.support)).flip(0)
    for columns in (order, order[:1], torch.cat([order, order[:2]])):
        torch.testing.assert_close(
            case.fitted.log_prob(case.z, case.support[columns]), whole[:, columns], rtol=1e-5, atol=1e-5
        )


def test_rows_may_have_separate_support_points(case: Case) -> None:
    if not case.y.is_floating_point():
        pytest.skip("classes are the same for all rows")
    whole, points = case.score(case.fitted), case.support.reshape(len(case.support), -1)
    torch.testing.assert_close(case.fitted.log_prob(case.z, points), whole)
    order = torch.stack([torch.randperm(3, generator=torch.Generator().manual_seed(i)) for i in range(len(case.z))])
    found = case.fitted.log_prob(case.z, points[order])  # (n, m, q)
    torch.testing.assert_close(found, whole.gather(1, order), rtol=1e-5, atol=1e-5)


def test_near_points_are_likelier_than_others(case: Case) -> None:
    """The own class, or the nearest of numbers."""
    flat = [values.reshape(len(values), -1).double() for values in (case.y, case.support)]
    nearest = torch.cdist(*flat).argmin(1)
    own = torch.arange(len(case.support)) == nearest[:, None]
    scores = case.score(case.fitted)
    assert scores[own].mean() > scores[~own].mean() + 1


def test_rows_are_scored_alone_as_together(case: Case) -> None:
    whole = case.score(case.fitted)
    for size in (1, 7):
        parts = [case.fitted.log_prob(part, case.support) for part in case.z[:35].split(size)]
        torch.testing.assert_close(torch.cat(parts), whole[:35], rtol=1e-5, atol=1e-5)
    assert case.fitted.log_prob(case.z[:0], case.support).shape == (0, len(case.support))


def test_same_seed_same_bits(case: Case) -> None:
    again = case.build(0).fit(case.z, case.y)
    assert same(again, case.fitted)
    assert torch.equal(case.score(again), case.score(case.fitted))


def test_fitting_again_forgets(case: Case) -> None:
    """Other rows, another dimension, another precision and fewer classes."""
    some = case.y.reshape(len(case.y), -1)[:, 0] > 0.5
    density = case.build(0).fit(2 * case.z[some, :4].double() + 1, case.y[some])
    assert same(density.fit(case.z, case.y), case.fitted)


def test_leaves_the_global_random_states_and_its_inputs_alone(case: Case) -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    z, y, support = case.z.clone(), case.y.clone(), case.support.clone()
    case.build(1).fit(z, y).log_prob(z, support)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # type: ignore[index]
    assert torch.equal(z, case.z)
    assert torch.equal(y, case.y)
    assert torch.equal(support, case.support)


def test_a_copy_is_independent(case: Case) -> None:
    before = copy.deepcopy(case.fitted.state_dict())
    twin = copy.deepcopy(case.fitted)
    assert same(twin, case.fitted)
    twin.fit(3 * case.z, case.y)
    assert not torch.equal(case.score(twin), case.score(case.fitted))
    for name, value in case.fitted.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("fitted", [False, True])
def test_rebuilt_from_its_configuration_and_tensors(case: Case, fitted: bool) -> None:
    density = case.fitted if fitted else case.build(0)
    config = json.loads(json.dumps(density.config()))
    assert config == density.config()
    rebuilt = type(density).from_config(config)
    assert rebuilt.config() == config
    rebuilt.load_state_dict(density.state_dict(), strict=True)
    assert same(rebuilt, density)
    if fitted:
        assert torch.equal(case.score(rebuilt), case.score(density))
    assert same(rebuilt.fit(case.z, case.y), case.fitted)


def test_no_gradients_of_its_own(case: Case) -> None:
    density = case.build(0).fit(case.z.clone().requires_grad_(), case.y)
    assert not any(tensor.requires_grad for tensor in [*density.buffers(), case.score(density)])
    copy.deepcopy(density)


def test_casts_with_its_buffers(case: Case) -> None:
    expected = case.score(case.fitted).double()
    for dtype in (torch.float64, torch.float32):
        density = copy.deepcopy(case.fitted).to(dtype)
        scores = case.score(density)
        assert scores.dtype == dtype
        torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-3)
        rebuilt = type(density).from_config(density.config())
        rebuilt.load_state_dict(density.state_dict(), strict=True)
        assert same(rebuilt, density)
        torch.testing.assert_close(case.score(rebuilt), scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_features_of_any_precision(case: Case, dtype: torch.dtype) -> None:
    z = case.z.to(dtype)
    scores = case.fitted.log_prob(z, case.support)
    assert scores.dtype == case.score(case.fitted).dtype
    torch.testing.assert_close(scores, case.fitted.log_prob(z.float(), case.support), rtol=1e-5, atol=1e-5)
    assert case.score(case.build(0).fit(z, case.y)).isfinite().all()


def test_autocast_changes_nothing(case: Case) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(case.build(0).fit(case.z, case.y), case.fitted)
        scores = case.score(case.fitted)
    assert torch.equal(scores, case.score(case.fitted))


@pytest.mark.parametrize("size", [1e4, 1e20, 3e38, 1e300])
def test_finite_however_far(case: Case, size: float) -> None:
    z = size * torch.tensor([[1.0, 0, 0, 0, 0], [-1, 1, -1, 1, -1], [1, 1e-3, 1, 0, 1]], dtype=torch.float64)
    scores = case.fitted.log_prob(z, case.support)
    assert scores.isfinite().all()
    assert scores.max() < case.score(case.fitted).min()


def test_missing_features_are_not_hidden(case: Case) -> None:
    z = case.z[:3].clone()
    z[1, 2] = torch.nan
    assert case.fitted.log_prob(z, case.support).isnan().all(1).tolist() == [False, True, False]


def test_data_whose_squares_overflow(case: Case) -> None:
    dtype = case.score(case.fitted).dtype
    z = case.z.to(dtype) * (1e18 if dtype == torch.float32 else 1e140)
    with pytest.raises(ValueError, match=rf"z reaches .*, whose square {dtype} cannot hold: rescale z"):
        case.build(0).fit(z, case.y)


def test_unfitted(case: Case) -> None:
    with pytest.raises(RuntimeError, match=r"not fitted: call fit\(z, y\) first"):
        case.score(case.build(0))


@pytest.mark.parametrize("shape", [(5,), (240, 4), (2, 3, 5)])
def test_features_of_another_shape(case: Case, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"\(n, 5\), as fitted, not {re.escape(str(shape))}"):
        case.fitted.log_prob(torch.zeros(shape), case.support)
