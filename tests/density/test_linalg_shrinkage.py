"""Shrinkage against scikit-learn's, and its limits."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf, oas
from torch import Tensor

from hidden_uncertainty.density.gaussian._classes import kmeans
from hidden_uncertainty.density.gaussian._em import EMOptions, component_log_prob, fit_mixtures, maximise
from hidden_uncertainty.density.linalg import Shrinkage, shrink

Array = NDArray[np.float64]
KINDS: tuple[Shrinkage, ...] = get_args(Shrinkage)


def rows(n: int, dim: int, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    return random.standard_t(5, size=(n, dim)) @ random.normal(size=(dim, dim))


def moments(x: Array) -> tuple[Tensor, Tensor, Tensor]:
    """Covariance (d, d), count and fourth moment of one sample."""
    centred = x - x.mean(0)
    count, fourth = float(len(x)), float(((centred**2).sum(1) ** 2).sum())
    return (
        torch.from_numpy(centred.T @ centred / len(x)),
        torch.tensor(count, dtype=torch.float64),
        torch.tensor(fourth, dtype=torch.float64),
    )


def shrunk_of(samples: list[Array], how: Shrinkage) -> tuple[Tensor, Tensor, Tensor]:
    """The covariances (1, k, d, d) of one mixture with one component per sample, shrunk; how far; and as they were."""
    cov, count, fourth = (torch.stack(parts)[None] for parts in zip(*map(moments, samples), strict=True))
    return *shrink(cov, count, fourth, how), cov


def reference(x: Array, how: Shrinkage) -> tuple[Array, float]:
    return ledoit_wolf(x) if how == "ledoit-wolf" else oas(x)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize(("n", "dim"), [(3, 5), (10, 40), (50, 20), (2000, 8), (5, 2)])
def test_one_component_as_scikit_learn(how: Shrinkage, n: int, dim: int) -> None:
    x = rows(n, dim)
    shrunk, found, _ = shrunk_of([x], how)
    expected, intensity = reference(x, how)
    assert found.item() == pytest.approx(intensity, abs=1e-10)
    np.testing.assert_allclose(shrunk[0, 0].numpy(), expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_one_component_of_a_fit_as_scikit_learn(how: Shrinkage, covariance: str) -> None:
    x = rows(30, 12)
    options = EMOptions("full" if covariance == "full" else "tied", how, ridge=0)
    ones = torch.ones(1, 30, dtype=torch.float64)
    fit = fit_mixtures(torch.from_numpy(x)[None], ones, ones[..., None], options)
    factor = fit.mixtures.factor.reshape(12, 12).numpy()
    np.testing.assert_allclose(np.linalg.inv(factor @ factor.T), reference(x, how)[0], rtol=1e-8, atol=1e-8)


@given(
    how=st.sampled_from(KINDS),
    n=st.lists(st.integers(3, 12), min_size=1, max_size=3),
    dim=st.integers(2, 15),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
@settings(max_examples=60, deadline=None)
def test_between_the_sample_and_the_identity(how: Shrinkage, n: list[int], dim: int, seed: int, scale: float) -> None:
    samples = [scale * rows(size, dim, seed + i) for i, size in enumerate(n)]
    shrunk, intensity, cov = shrunk_of(samples, how)
    assert 0 <= intensity.item() <= 1
    weight = torch.tensor(n, dtype=torch.float64) / sum(n)
    before, after = ((weight * c.diagonal(dim1=-2, dim2=-1).sum(-1)).sum() for c in (cov, shrunk))
    torch.testing.assert_close(after, before)  # the variance stays, all in all
    smallest = torch.linalg.eigvalsh(shrunk).amin()
    assert smallest >= intensity.item() * before.item() / dim * (1 - 1e-6)
    if max(n) <= dim:
        assert smallest > 0


@pytest.mark.parametrize("how", KINDS)
def test_components_share_one_intensity(how: Shrinkage) -> None:
    x = rows(20, 6)
    cov, alone, _ = shrunk_of([x], how)
    each, thrice, _ = shrunk_of([x, x, x], how)
    torch.testing.assert_close((each, thrice), (cov.expand_as(each), alone))
    _, mixed, _ = shrunk_of([x, 2 * rows(200, 6, seed=1)], how)
    assert mixed < alone  # the larger component knows more


def test_ledoit_wolf_of_a_mixture_by_brute_force() -> None:
    samples = [rows(n, 4, seed=n) for n in (5, 8, 13)]
    scale = sum(np.trace(np.cov(x.T, bias=True)) * len(x) for x in samples) / 26 / 4
    scatter = distance = 0.0
    for x in samples:
        cov = np.cov(x.T, bias=True)
        scatter += len(x) * sum(((np.outer(r, r) - cov) ** 2).sum() for r in x - x.mean(0)) / len(x) ** 2
        distance += len(x) * ((cov - scale * np.eye(4)) ** 2).sum()
    shrunk, intensity, cov = shrunk_of(samples, "ledoit-wolf")
    rho = scatter / distance
    assert intensity.item() == pytest.approx(rho, rel=1e-10)
    torch.testing.assert_close(shrunk, (1 - rho) * cov + rho * scale * torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("scale", [0.0, 1e-20, 3.0])
def test_a_multiple_of_the_identity_stays(how: Shrinkage, scale: float) -> None:
    cov = scale * torch.eye(4, dtype=torch.float64)[None, None]
    count = torch.full((1, 1), 7.0, dtype=torch.float64)
    shrunk, intensity = shrink(cov, count, 40 * scale**2 * count, how)
    assert 0 <= intensity.item() <= 1
    torch.testing.assert_close(shrunk, cov, rtol=1e-12, atol=0)


@pytest.mark.parametrize("how", KINDS)
def test_a_single_row(how: Shrinkage) -> None:
    shrunk, intensity, _ = shrunk_of([rows(1, 4)], how)
    assert 0 <= intensity.item() <= 1
    assert torch.equal(shrunk, torch.zeros(1, 1, 4, 4, dtype=torch.float64))


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("scale", [1e-14, 1.0, 1e10])
def test_fourth_powers_beyond_float32(how: Shrinkage, scale: float) -> None:
    x = torch.from_numpy(scale * rows(30, 5))[None]
    fine, coarse = (maximise(z, torch.ones_like(z[..., :1]), EMOptions("full", how, 0.0))[0] for z in (x, x.float()))
    torch.testing.assert_close(coarse.factor.double(), fine.factor, rtol=1e-4, atol=1e-4 / scale)


@pytest.mark.parametrize("how", KINDS)
def test_each_step_shrinks_by_what_it_finds(how: Shrinkage) -> None:
    """A start whose clusters are round and alike asks for all shrinkage there is; what EM finds then does not."""
    x = torch.from_numpy(np.concatenate([rows(30, 5), rows(30, 5, seed=1) + 5]))[None]
    weight = torch.rand(1, 60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = weight / weight.sum(-1, keepdim=True)
    count = weight.sum(1)
    mean = (weight.mT @ x) / count[..., None]
    away = x[:, None] - mean[:, :, None]  # (1, k, n, d)
    cov = torch.einsum("bnk,bkni,bknj->bkij", weight, away, away) / count[..., None, None]
    fourth = torch.einsum("bnk,bkn->bk", weight, away.square().sum(-1).square())
    expected, _ = shrink(cov, count, fourth, how)
    factor = maximise(x, weight, EMOptions("full", how, 0.0))[0].factor
    torch.testing.assert_close(torch.linalg.inv(factor @ factor.mT), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dim", [1, 2])
def test_a_gaussian_by_two_components_is_that_gaussian(dim: int) -> None:
    """K-means cuts it into halves that are alike: what these are shrunk towards must not stay."""
    x = torch.randn(1, 10_000, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ones = torch.ones(1, 10_000, dtype=torch.float64)
    fit = fit_mixtures(x, ones, kmeans(x, ones, 2), EMOptions("full", "ledoit-wolf", tol=1e-3))
    assert fit.converged.all()
    ring = torch.eye(dim, dtype=torch.float64)[[0, 0]] * torch.tensor([[4.0], [-4.0]])
    found = component_log_prob(ring[None], fit.mixtures, "full").logsumexp(-1)[0]
    truth = -8 - 0.5 * dim * np.log(2 * np.pi)
    assert (found - truth).abs().max() < 0.5
