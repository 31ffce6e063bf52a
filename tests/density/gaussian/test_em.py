"""Expectation-maximisation against scikit-learn's, from the same start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture
from torch import Tensor

from hidden_uncertainty.density.gaussian._em import (
    INFLATION,
    Covariance,
    EMOptions,
    Fit,
    Mixtures,
    component_log_prob,
    distances,
    factor_shape,
    fit_mixtures,
    maximise,
)
from hidden_uncertainty.density.linalg import Shrinkage
from mixture_draws import COVARIANCES

Array = NDArray[np.float64]


def blobs(n: int = 400, dim: int = 6, seed: int = 0, clusters: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(clusters, dim, dim, generator=generator, dtype=torch.float64)
    centres = 2 * torch.randn(clusters, dim, generator=generator, dtype=torch.float64)
    which = torch.arange(n) % clusters
    noise = torch.randn(n, 1, dim, generator=generator, dtype=torch.float64)
    return (noise @ mix[which])[:, 0] + centres[which]


def soft_start(n: int, components: int, seed: int = 0) -> Tensor:
    """Responsibilities (1, n, k) that favour no cluster much."""
    generator = torch.Generator().manual_seed(seed)
    return (0.5 * torch.randn(1, n, components, generator=generator, dtype=torch.float64)).softmax(-1)


def nearest_start(x: Tensor, components: int) -> Tensor:
    """Responsibilities (1, n, k): each row goes to the nearest of the first k."""
    return torch.nn.functional.one_hot(torch.cdist(x, x[:components]).argmin(1), components).double()[None]


def precisions(mixtures: Mixtures, covariance: Covariance) -> Array:
    factor = mixtures.factor[0].numpy()
    return factor @ factor.swapaxes(-1, -2) if covariance in ("full", "tied") else factor**2


def peer(x: Tensor, start: Tensor, options: EMOptions) -> GaussianMixture:
    """Scikit-learn's mixture after as many steps, started at our first M-step."""
    first = maximise(x[None], start, options)[0]
    return GaussianMixture(
        start.shape[-1],
        covariance_type=options.covariance,
        reg_covar=options.ridge,
        tol=0,
        max_iter=options.max_iter,
        weights_init=first.log_weight[0].exp().numpy(),
        means_init=first.mean[0].numpy(),
        precisions_init=precisions(first, options.covariance),
    ).fit(x.numpy())


def fit_one(x: Tensor, start: Tensor, options: EMOptions) -> Fit:
    return fit_mixtures(x[None], torch.ones(1, len(x), dtype=x.dtype), start, options)


def scores(x: Tensor, mixtures: Mixtures, covariance: Covariance) -> Tensor:
    return component_log_prob(x[None], mixtures, covariance).logsumexp(-1)[0]


@pytest.mark.filterwarnings("ignore:Best performing initialization did not converge")
@pytest.mark.parametrize("start", ["nearest", "soft"])
@pytest.mark.parametrize("tol", [1e-3, 1e-7])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_arrives_where_scikit_learn_does(covariance: Covariance, tol: float, start: str) -> None:
    x = blobs()
    options = EMOptions(covariance, tol=tol, max_iter=1000)
    begin = nearest_start(x, 3) if start == "nearest" else soft_start(len(x), 3)
    ours = fit_one(x, begin, options)
    assert ours.sound.all()
    assert ours.converged.all()
    theirs = peer(x, begin, options._replace(max_iter=int(ours.iterations)))
    assert int(ours.iterations) == theirs.n_iter_
    np.testing.assert_allclose(ours.mixtures.log_weight[0].exp().numpy(), theirs.weights_, rtol=1e-6)
    np.testing.assert_allclose(ours.mixtures.mean[0].numpy(), theirs.means_, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(precisions(ours.mixtures, covariance), theirs.precisions_, rtol=1e-6, atol=1e-6)
    assert ours.log_likelihood.item() == pytest.approx(theirs.lower_bound_, abs=1e-9)
    test = blobs(seed=1)
    np.testing.assert_allclose(scores(test, ours.mixtures, covariance).numpy(), theirs.score_samples(test), rtol=1e-8)
    np.testing.assert_allclose(
        (component_log_prob(test[None], ours.mixtures, covariance)[0].softmax(-1)).numpy(),
        theirs.predict_proba(test),
        atol=1e-8,
    )


@pytest.mark.filterwarnings("ignore:Best performing initialization did not converge")
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_step_by_step_as_scikit_learn(covariance: Covariance, steps: int) -> None:
    x = blobs(seed=2)
    options = EMOptions(covariance, tol=0, max_iter=steps)
    begin = soft_start(len(x), 4)
    theirs, ours = peer(x, begin, options), fit_one(x, begin, options)
    assert int(ours.iterations) == steps
    assert not ours.converged.any()
    np.testing.assert_allclose(ours.mixtures.mean[0].numpy(), theirs.means_, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(precisions(ours.mixtures, covariance), theirs.precisions_, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_stops_where_hardly_anything_is_left_to_gain(covariance: Covariance) -> None:
    """Clusters that overlap, where EM is slow: its last step says little about all that would follow."""
    x = blobs(200, 3) / 2 + blobs(200, 3, seed=50, clusters=1)
    fit = fit_one(x, nearest_start(x, 3), EMOptions(covariance, tol=1e-4))
    onwards = component_log_prob(x[None], fit.mixtures, covariance).softmax(-1)
    end = fit_one(x, onwards, EMOptions(covariance, tol=0, max_iter=500))
    assert fit.converged.all() and fit.iterations > 10
    assert end.log_likelihood - fit.log_likelihood < 2e-4


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_log_prob_is_that_of_scipy(covariance: Covariance) -> None:
    generator = torch.Generator().manual_seed(0)
    dim, components = 4, 3
    factor = torch.rand(factor_shape(1, components, dim, covariance), generator=generator, dtype=torch.float64) + 0.5
    if covariance in ("full", "tied"):
        factor = factor.triu()
    weight = torch.rand(1, components, generator=generator, dtype=torch.float64)
    mean = torch.randn(1, components, dim, generator=generator, dtype=torch.float64)
    mixtures = Mixtures((weight / weight.sum()).log(), mean, factor)
    x = torch.randn(50, dim, generator=generator, dtype=torch.float64)
    ours = component_log_prob(x[None], mixtures, covariance)[0].numpy()
    for k in range(components):
        matrix = {
            "full": lambda k: factor[0, k],
            "tied": lambda _: factor[0],
            "diag": lambda k: factor[0, k].diag(),
            "spherical": lambda k: factor[0, k] * torch.eye(dim, dtype=torch.float64),
        }[covariance](k).numpy()
        expected = multivariate_normal(mean[0, k].numpy(), np.linalg.inv(matrix @ matrix.T)).logpdf(x.numpy())
        np.testing.assert_allclose(ours[:, k], expected + mixtures.log_weight[0, k].item(), rtol=1e-10)


@given(
    covariance=st.sampled_from(COVARIANCES),
    dim=st.integers(1, 5),
    components=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
@settings(max_examples=40, deadline=None)
def test_likelihood_never_falls(covariance: Covariance, dim: int, components: int, seed: int, scale: float) -> None:
    x = scale * blobs(40 * components, dim, seed)
    options = EMOptions(covariance, ridge=0, tol=0, max_iter=1)
    mixtures = maximise(x[None], soft_start(len(x), components, seed), options)[0]
    before = -np.inf
    for _ in range(15):
        log_prob = component_log_prob(x[None], mixtures, covariance)
        likelihood = float(log_prob.logsumexp(-1).mean())
        assert likelihood >= before - 1e-10 * abs(likelihood)
        before = likelihood
        mixtures, sound, _ = maximise(x[None], log_prob.softmax(-1), options)
        assume(sound.all())


KINDS = [*((covariance, None) for covariance in COVARIANCES), ("full", "ledoit-wolf"), ("full", "oas"), ("tied", "oas")]


@pytest.mark.parametrize(("covariance", "shrinkage"), KINDS)
def test_a_stack_gives_each_class_what_it_gets_alone(covariance: Covariance, shrinkage: Shrinkage | None) -> None:
    options = EMOptions(covariance, shrinkage, tol=1e-5, max_iter=300)
    classes = [blobs(n, seed=n) for n in (300, 400, 170)]
    starts = [nearest_start(rows, 3) for rows in classes]
    x, begin, present = torch.zeros(3, 400, 6).double(), torch.zeros(3, 400, 3).double(), torch.zeros(3, 400).double()
    for b, (rows, start) in enumerate(zip(classes, starts, strict=True)):
        x[b, : len(rows)], begin[b, : len(rows)], present[b, : len(rows)] = rows, start[0], 1
    together = fit_mixtures(x, present, begin, options)
    alone = [fit_one(rows, start, options) for rows, start in zip(classes, starts, strict=True)]
    assert len({int(fit.iterations) for fit in alone}) > 1  # some go on when others have stopped
    for b, fit in enumerate(alone):
        for ours, expected in zip([*together.mixtures, *together[1:]], [*fit.mixtures, *fit[1:]], strict=True):
            torch.testing.assert_close(ours[b], expected[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("means", [2, 40])  # a few are subtracted, many are one product
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_under_one_covariance_are_those_of_scipy(means: int, dtype: torch.dtype) -> None:
    x, centres = blobs(50), 30 * blobs(means, seed=1)
    cov = np.cov(x.numpy().T)
    factor = torch.from_numpy(np.linalg.inv(np.linalg.cholesky(cov))).mT.contiguous()
    given = (x.to(dtype)[None], factor.to(dtype)[None], (centres @ factor).to(dtype)[None])
    expected = cdist(x.numpy(), centres.numpy(), "mahalanobis", VI=np.linalg.inv(cov)) ** 2
    np.testing.assert_allclose(distances(*given, "tied")[0].numpy(), expected, rtol=1e3 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_one_component_is_the_sample_mean_and_covariance(covariance: Covariance) -> None:
    x = blobs(100)
    fit = fit_one(x, torch.ones(1, 100, 1, dtype=torch.float64), EMOptions(covariance, ridge=0.01))
    cov = np.cov(x.numpy().T, bias=True) + 0.01 * np.eye(6)
    expected = {
        "full": np.linalg.inv(cov)[None],
        "tied": np.linalg.inv(cov),
        "diag": 1 / np.diag(cov)[None],
        "spherical": 1 / np.diag(cov).mean()[None],
    }[covariance]
    np.testing.assert_allclose(precisions(fit.mixtures, covariance), expected, rtol=1e-9)
    np.testing.assert_allclose(fit.mixtures.mean[0, 0].numpy(), x.mean(0).numpy(), atol=1e-12)
    assert int(fit.iterations) == 1 and fit.converged.all()  # more would repeat it


@pytest.mark.parametrize(("covariance", "shrinkage"), KINDS)
def test_a_component_that_nothing_belongs_to(covariance: Covariance, shrinkage: Shrinkage | None) -> None:
    x, options = blobs(100), EMOptions(covariance, shrinkage)
    begin = torch.zeros(1, 100, 2, dtype=torch.float64)
    begin[..., 0] = 1
    fit = fit_one(x, begin, options)
    assert fit.sound.all()
    alone = fit_one(x, begin[..., :1], options)
    x = torch.cat([x, torch.zeros(1, 6, dtype=torch.float64)])  # the origin is where its mean is left
    torch.testing.assert_close(
        scores(x, fit.mixtures, covariance), scores(x, alone.mixtures, covariance), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_degenerate_class_is_not_sound(covariance: Covariance, dtype: torch.dtype) -> None:
    x = blobs(100).to(dtype).expand(2, -1, -1).clone()
    x[1] = 7.3
    fit = fit_mixtures(
        x, torch.ones(2, 100, dtype=dtype), torch.ones(2, 100, 1, dtype=dtype), EMOptions(covariance, ridge=0)
    )
    assert fit.sound.tolist() == [True, False]


@pytest.mark.parametrize("covariance", ["full", "diag", "spherical"])
def test_a_class_that_degenerates_on_the_way_is_not_sound(covariance: Covariance) -> None:
    x = torch.cat([blobs(80, dim=2, clusters=1), torch.full((20, 2), 0.3, dtype=torch.float64)])
    begin = torch.full((1, 100, 2), 0.01, dtype=torch.float64)
    begin[0, :80, 0] = begin[0, 80:, 1] = 0.99
    assert maximise(x[None], begin, EMOptions(covariance, ridge=0))[1]
    assert not fit_one(x, begin, EMOptions(covariance, ridge=0)).sound


def test_float32_covariances_without_digits_to_spare_are_not_sound() -> None:
    x = blobs(200).float()
    x[:, 1] = x[:, 0] + 1e-4 * x[:, 1]
    begin, present = torch.ones(1, 200, 1), torch.ones(1, 200)
    assert not fit_mixtures(x[None], present, begin, EMOptions()).sound
    assert fit_mixtures(x[None].double(), present.double(), begin.double(), EMOptions()).sound


@pytest.mark.parametrize("dim", [8, 64])
@pytest.mark.parametrize("extra", [1, 3, 20])
def test_what_float32_calls_sound_is_what_float64_gives(dim: int, extra: int) -> None:
    """Few rows leave features that the others nearly determine, though none of those before them does."""
    for seed in range(4):
        x = blobs(dim + extra, dim, seed, clusters=1).float()
        ones = torch.ones(1, len(x), 1)
        coarse = fit_mixtures(x[None], ones[..., 0], ones, EMOptions(ridge=0))
        fine = fit_mixtures(x[None].double(), ones[..., 0].double(), ones.double(), EMOptions(ridge=0))
        test = blobs(200, dim, seed + 100, clusters=1)
        expected = scores(test, fine.mixtures, "full")
        found = scores(test, Mixtures(*(part.double() for part in coarse.mixtures)), "full")
        assert not coarse.sound or ((found - expected) / expected).abs().max() < 1e-6 * INFLATION
