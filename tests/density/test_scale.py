"""Multiplying activations by a constant changes the unit of a density and nothing else, and no option is rescaled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hidden_uncertainty.baselines.mahalanobis import MahalanobisDistance
from hidden_uncertainty.density import Density, GaussianMixture, JointMixture
from hidden_uncertainty.extract import Axis, Lattice
from mixture_draws import COVARIANCES, draw, draw_numbers, every

SCALES = [1e-30, 3e-16, 1e-5, 7.0, 1e15]
DTYPES = [torch.float32, torch.float64]
MIXTURES: dict[str, Callable[[], GaussianMixture]] = {
    **{name: lambda name=name: GaussianMixture(2, covariance=name) for name in COVARIANCES},
    "not shrunk": lambda: GaussianMixture(2, shrinkage=None),
    "many under one covariance": lambda: GaussianMixture(17, covariance="tied", min_samples=2, tol=0.1),
}


def far(z: Tensor) -> Tensor:
    """Rows as they are, and 3 to 20 times as far from the middle: 2e17, where float32 saturates, is not reached."""
    middle = z.mean(0)
    return torch.cat([z[:30], *(middle + steps * (z[:30] - middle) for steps in (3.0, 10.0, 20.0))])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures(name: str, dtype: torch.dtype) -> None:
    z, y = draw((100, 80), clusters=2)
    z = z.to(dtype)
    expected = every(MIXTURES[name]().fit(z, y), far(z))
    for scale in SCALES:
        found = every(MIXTURES[name]().fit(z * scale, y), far(z) * scale) + z.shape[1] * math.log(scale)
        torch.testing.assert_close(found, expected, rtol=2e-4 if dtype == torch.float32 else 1e-7, atol=2e-3)
        order = expected.logsumexp(1).argsort()
        assert found.logsumexp(1)[order].diff().min() > -1e-3 * float(expected.abs().max())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_between_the_places_of_a_lattice(covariance: str, scale: float) -> None:
    z, y = draw((100, 80), clusters=2)
    density = GaussianMixture(2, covariance=covariance).fit(scale * z.float(), y)  # type: ignore[arg-type]
    axis = Axis(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 1]), torch.tensor([0.0, 0.5, 0.0]))
    places = scale * z[:4].float().view(1, 2, 2, 4)
    between = torch.cat(list(density.log_prob_between(Lattice(places, axis, axis), density.classes)))
    rows = [places[0, 0, 0], (places[0, 0, 0] + places[0, 0, 1]) / 2, places[0, 0, 1]]
    torch.testing.assert_close(between[:3], every(density, torch.stack(rows)), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-30, 1e15])
@pytest.mark.parametrize("name", MIXTURES)
def test_finite_however_far(name: str, scale: float) -> None:
    z, y = draw((100, 80), clusters=2)
    density = MIXTURES[name]().fit(scale * z.float(), y)
    steps = torch.logspace(0, 280, 60, dtype=torch.float64)[:, None]
    for ray in z[:4]:
        scores = every(density, steps * ray * scale)
        assert scores.isfinite().all()
        assert (scores.diff(dim=0) <= 1e-5 * scores[1:].abs()).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_joint_mixtures(covariance: str, dtype: torch.dtype) -> None:
    z, y = draw_numbers(200, 4, 1, dtype=dtype)
    points = y[:20]

    def fitted(z: Tensor, y: Tensor) -> Density:
        return JointMixture(2, covariance=covariance).fit(z, y)  # type: ignore[arg-type]

    expected = fitted(z, y).log_prob(z, points)
    for scale in (1e-30, 7.0, 1e15):
        found = fitted(z * scale, y).log_prob(z * scale, points) + 4 * math.log(scale)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)
        torch.testing.assert_close(fitted(z, y * scale).log_prob(z, points * scale), expected, rtol=1e-3, atol=1e-2)


def distances(z: Tensor, y: Tensor, rows: Tensor, shrinkage: Any = "ledoit-wolf") -> Tensor:
    method: Any = MahalanobisDistance(shrinkage, 1e-6, False)
    found: Tensor = method.fit(z, y, None).measure(rows.double(), y)
    return found


@pytest.mark.parametrize("shrinkage", [None, "oas"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_distances(dtype: torch.dtype, shrinkage: str | None) -> None:
    z, y = draw()
    z = z.to(dtype)
    expected = distances(z, y, far(z), shrinkage)
    for scale in SCALES:
        found = distances(z * scale, y, far(z) * scale, shrinkage)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_classes_that_are_points_have_the_scale_of_what_is_between_them() -> None:
    y = torch.arange(60) % 3
    z = torch.tensor([[0.0, 1.0], [3.0, 1.1], [0.5, -2.0]])[y]
    expected = [every(GaussianMixture(1).fit(z, y), z), distances(z, y, z)]
    assert (expected[0].argmax(1) == y).all() and expected[1].max() < 1e-3
    for scale in SCALES:
        moved = z * scale
        found = [every(GaussianMixture(1).fit(moved, y), moved), distances(moved, y, moved)]
        torch.testing.assert_close(found[0] + 2 * math.log(scale), expected[0], rtol=1e-3, atol=1e-2)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=1e-3)
