"""One Gaussian mixture per class: against scikit-learn's, and what changes of the features do to it."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import sklearn.mixture
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from hidden_uncertainty.density import GaussianMixture
from hidden_uncertainty.density.gaussian import _classes
from hidden_uncertainty.density.gaussian._em import Covariance
from hidden_uncertainty.density.linalg import own_order
from mixture_draws import COVARIANCES, draw, every

Array = NDArray[np.float64]


# Against references


def first_step(x: Array, member: Array, covariance: Covariance, ridge: float) -> dict[str, Array]:
    """Weights, means and precisions of clusters, as scikit-learn takes them for a start."""
    dim = x.shape[1]
    means = np.stack([x[m == 1].mean(0) for m in member.T])
    covs = np.stack([np.cov(x[m == 1].T, bias=True) for m in member.T])
    weights = member.mean(0)
    precisions = {
        "full": lambda: np.stack([np.linalg.inv(cov + ridge * np.eye(dim)) for cov in covs]),
        "tied": lambda: np.linalg.inv(np.tensordot(weights, covs, 1) + ridge * np.eye(dim)),
        "diag": lambda: 1 / (covs.diagonal(axis1=1, axis2=2) + ridge),
        "spherical": lambda: 1 / (covs.diagonal(axis1=1, axis2=2).mean(1) + ridge),
    }[covariance]()
    return {"weights_init": weights, "means_init": means, "precisions_init": precisions}


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_as_one_scikit_learn_mixture_per_class(
    covariance: Covariance, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, y = draw()
    order = own_order(z + offset, y)  # as rows come to k-means
    z, y = z[order] + offset, y[order]
    starts: dict[int, Array] = {}
    plain = _classes.kmeans

    def spy(x: Tensor, *args: Any) -> Tensor:
        starts[x.shape[1]] = plain(x, *args)[0].numpy()
        return torch.from_numpy(starts[x.shape[1]])[None]

    monkeypatch.setattr(_classes, "kmeans", spy)
    monkeypatch.setattr(_classes, "STACK_CPU", 0)  # class by class, so that the spy sees each alone
    density = GaussianMixture(3, covariance=covariance, shrinkage=None, tol=1e-9).fit(z, y)
    ridge = 1e-6 * float(torch.cat([z[y == c] - z[y == c].mean(0) for c in range(3)]).square().mean())
    test = draw(seed=1)[0] + offset
    scores = every(density, test).numpy()
    for c in range(3):
        x = z[y == c].numpy()
        peer = sklearn.mixture.GaussianMixture(
            3,
            covariance_type=covariance,
            reg_covar=ridge,
            tol=1e-9,
            max_iter=1000,
            **first_step(x, starts[len(x)], covariance, ridge),
        ).fit(x)
        np.testing.assert_allclose(density.log_weight[c].exp().numpy(), peer.weights_, rtol=1e-3)
        np.testing.assert_allclose(density.mean[c].numpy(), peer.means_, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(scores[:, c], peer.score_samples(test.numpy()), rtol=1e-3, atol=1e-3)


def gaussian(x: Array, z: Array, ridge: float) -> Array:
    """log N(z | mean and covariance of x), by scipy."""
    cov = np.cov(x.T, bias=True) + ridge * np.eye(x.shape[1])
    lower = scipy.linalg.cholesky(cov, lower=True)
    white = scipy.linalg.solve_triangular(lower, (z - x.mean(0)).T, lower=True)
    return -0.5 * ((white**2).sum(0) + x.shape[1] * np.log(2 * np.pi)) - np.log(np.diag(lower)).sum()


@pytest.mark.parametrize(("dim", "dtype", "tolerance"), [(256, "float32", 2e-5), (512, "float64", 1e-10)])
@pytest.mark.usefixtures("two_threads")
def test_many_dimensions_with_two_threads(dim: int, dtype: Any, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(dim)
    n, classes = 300, 2
    cluster, y = torch.arange(2 * n * classes) % 2, torch.arange(classes).repeat_interleave(2 * n)
    z = torch.randn(len(y), dim, generator=generator, dtype=torch.float64).cumsum(1) / math.sqrt(dim)
    z = (z + y[:, None] + 20 * cluster[:, None]).float().double()  # clusters that share no row
    within = torch.cat([z[y == c] - z[y == c].mean(0) for c in range(classes)]).square().mean()
    density = GaussianMixture(2, shrinkage=None, ridge=0.1 / float(within), dtype=dtype).fit(z, y)
    scores = every(density, z[::10])
    for c in range(classes):
        parts = [gaussian(z[(y == c) & (cluster == k)].numpy(), z[::10].numpy(), 0.1) for k in range(2)]
        expected = np.logaddexp(*parts) + np.log(0.5)
        np.testing.assert_allclose(scores[:, c].numpy(), expected, rtol=tolerance, atol=100 * tolerance)


def spectral(condition: float, apart: float, dim: int = 32, n: int = 400) -> tuple[Tensor, Tensor, Tensor]:
    """Three classes of a given condition number, so many of their deviations apart: to fit, to test, and y."""
    generator = torch.Generator().manual_seed(1)
    deviation = torch.logspace(0, -0.5 * math.log10(condition), dim, dtype=torch.float64)
    parts = []
    for _ in range(3):
        basis = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
        noise = torch.randn(2 * n, dim, generator=generator, dtype=torch.float64)
        parts.append(noise * deviation @ basis.T + apart * torch.randn(dim, generator=generator, dtype=torch.float64))
    rows = torch.stack(parts).float()
    return rows[:, :n].flatten(0, 1), rows[:, n:].flatten(0, 1), torch.arange(3).repeat_interleave(n)


@pytest.mark.parametrize(
    ("condition", "apart", "shrinkage", "nats"),
    [
        (1e2, 1, "auto", 1e-3),
        (1e4, 1, "auto", 1e-3),
        (1e6, 1, "auto", 1e-3),
        (1e6, 100, "auto", 0.05),
        (1e2, 1, None, 1e-3),
        (1e4, 1, None, 0.02),
        (1e6, 1, None, 0.5),
        (1e2, 1000, None, 0.1),
    ],
)
def test_float32_is_near_float64(condition: float, apart: float, shrinkage: Any, nats: float) -> None:
    z, test, y = spectral(condition, apart)
    fine = GaussianMixture(1, shrinkage=shrinkage, dtype="float64").fit(z, y)
    coarse = GaussianMixture(1, shrinkage=shrinkage).fit(z, y)
    own = y[:, None] == fine.classes
    torch.testing.assert_close(every(coarse, test)[own].double(), every(fine, test)[own], rtol=0, atol=nats)
    torch.testing.assert_close(every(coarse, test)[~own].double(), every(fine, test)[~own], rtol=0.02, atol=nats)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_float32_arrives_at_the_same_mixture(covariance: Covariance) -> None:
    z, y = draw()
    z = z.float()
    fine = GaussianMixture(3, covariance=covariance, dtype="float64", max_iter=1000).fit(z, y)
    coarse = GaussianMixture(3, covariance=covariance, max_iter=1000).fit(z, y)
    assert (fine.mean.dtype, coarse.mean.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(every(coarse, z).double(), every(fine, z), rtol=1e-3, atol=1e-2)


def test_classes_far_apart_start_alike_in_both_precisions() -> None:
    z, y = draw(clusters=3)
    z = (z / 100 + 1000 * y[:, None]).float()  # as many digits before the differences as after
    options: dict[str, Any] = {"covariance": "diag", "ridge": 1e-9, "max_iter": 1000}
    coarse, fine = GaussianMixture(3, **options).fit(z, y), GaussianMixture(3, dtype="float64", **options).fit(z, y)
    torch.testing.assert_close(coarse.log_weight.double(), fine.log_weight, rtol=0, atol=1e-3)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_integrates_to_one(covariance: Covariance) -> None:
    z, y = draw(dim=2)
    density = GaussianMixture(3, covariance=covariance, max_iter=1000).fit(z, y)
    axis = torch.linspace(-30, 30, 400, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    total = every(density, grid).logsumexp(0) + 2 * math.log(60 / 399)
    torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-6)
    line = GaussianMixture(3, covariance=covariance, max_iter=1000).fit(z[:, :1], y)
    total = torch.trapezoid(every(line, axis[:, None]).exp(), axis, dim=0)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-6)


def test_gradients_reach_the_features() -> None:
    z, y = draw()
    rows = z[:4].clone().requires_grad_()
    for covariance in COVARIANCES:
        density = GaussianMixture(2, covariance=covariance, max_iter=1000).fit(z, y)
        assert torch.autograd.gradcheck(lambda x, density=density: every(density, x), (rows,))


# What changes of the features do


MOVES = [
    (change, covariance)
    for change in ("shift", "permute", "scale", "rotate")
    for covariance in COVARIANCES
    if (change, covariance) != ("rotate", "diag")  # a diagonal covariance does not turn
]


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize(("change", "covariance"), MOVES)
def test_moves_that_keep_distances(change: str, covariance: Covariance, components: int) -> None:
    """K-means starts alike when all distances keep their proportions, so these hold for any number of components."""
    z, y = draw()
    basis = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).Q
    moved, constant = {
        "shift": (z + torch.tensor([100.0, -3, 0, 7]), 0.0),
        "permute": (z[:, [2, 0, 3, 1]], 0.0),
        "scale": (1000 * z, 4 * math.log(1000)),
        "rotate": (z @ basis, 0.0),
    }[change]
    for shrinkage in ("auto", None):
        density = GaussianMixture(components, covariance=covariance, shrinkage=shrinkage, ridge=0, max_iter=1000)
        before = every(copy.deepcopy(density).fit(z, y), z)
        torch.testing.assert_close(every(density.fit(moved, y), moved) + constant, before, rtol=1e-7, atol=1e-7)


UNITS = torch.tensor([1e-3, 1.0, 50.0, 1e4], dtype=torch.float64).diag()
MATRIX = torch.randn(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize(
    ("covariance", "matrix"), [("full", UNITS), ("full", MATRIX), ("tied", UNITS), ("tied", MATRIX), ("diag", UNITS)]
)
def test_linear_maps_do_not_matter_to_one_gaussian(covariance: Covariance, matrix: Tensor) -> None:
    z, y = draw()
    density = GaussianMixture(1, covariance=covariance, shrinkage=None, ridge=0)
    before = every(copy.deepcopy(density).fit(z, y), z)
    after = every(density.fit(z @ matrix, y), z @ matrix) + torch.linalg.slogdet(matrix).logabsdet
    torch.testing.assert_close(after, before, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_order_of_rows(covariance: Covariance, dtype: torch.dtype) -> None:
    z, y = draw((250, 200), dim=6, clusters=2)
    z, y, test = z[:350].to(dtype), y[:350], z[350:]
    for components in (1, 2, 3):
        density = GaussianMixture(components, covariance=covariance)
        before = every(density.fit(z, y), test)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(components))
        assert torch.equal(every(density.fit(z[order], y[order]), test), before)


@pytest.mark.parametrize("seed", range(8))
def test_the_order_of_rows_that_differ_in_their_last_digits(seed: int) -> None:
    """As rows do that a network read in other batches."""
    z, y = draw((250, 200), dim=6, clusters=2, seed=seed)
    z, y, test = z[:350].float(), y[:350], z[350:].float()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    moved = z[order] * (1 + 1e-7 * torch.randn(z.shape, generator=torch.Generator().manual_seed(seed)))
    for components, shrinkage in ((2, "auto"), (3, "auto"), (3, None)):
        fits = [
            GaussianMixture(components, shrinkage=shrinkage).fit(*rows)  # type: ignore[arg-type]
            for rows in ((z, y), (moved, y[order]))
        ]
        one, other = (every(density, test).logsumexp(1).mean() for density in fits)
        assert abs(one - other) < 0.01


def test_names_of_classes_do_not_matter() -> None:
    z, y = draw()
    names = torch.tensor([-7, 4, 1000])
    plain, renamed = GaussianMixture(2).fit(z, y), GaussianMixture(2).fit(z, names[y].int())
    assert renamed.classes.tolist() == names.tolist()
    assert torch.equal(every(plain, z), every(renamed, z))


# Far away


@given(
    covariance=st.sampled_from(COVARIANCES),
    dtype=st.sampled_from(["float32", "float64"]),
    direction=st.lists(st.floats(-1, 1), min_size=3, max_size=3).filter(lambda u: max(map(abs, u)) > 0.01),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
@settings(max_examples=40, deadline=None)
def test_falls_along_every_ray(covariance: Covariance, dtype: Any, direction: list[float], scale: float) -> None:
    z, y = draw((60, 50), dim=3)
    density = GaussianMixture(2, covariance=covariance, dtype=dtype, max_iter=1000).fit(scale * z, y)
    ray = torch.tensor(direction, dtype=torch.float64)
    ray = ray / ray.abs().max()
    steps = torch.logspace(math.log10(100 * scale), 38 if dtype == "float32" else 300, 60, dtype=torch.float64)
    scores = every(density, steps[:, None] * ray)
    assert scores.isfinite().all()
    fall = scores.diff(dim=0)
    assert (fall <= 1e-5 * scores[1:].abs()).all()  # where it saturates only rounding is left
    assert (fall[:8] < 0).all()


@given(
    z=st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3), max_size=5
    ),
    covariance=st.sampled_from(COVARIANCES),
)
@settings(max_examples=60, deadline=None)
def test_finite_for_finite_features(z: list[list[float]], covariance: Covariance) -> None:
    density = fitted(covariance)
    rows = torch.tensor(z, dtype=torch.float32).reshape(-1, 3)
    assert every(density, rows).isfinite().all()
    assert every(copy.deepcopy(density).double(), rows.double() * 1e200).isfinite().all()


FITTED: dict[str, GaussianMixture] = {}


def fitted(covariance: Covariance) -> GaussianMixture:
    if covariance not in FITTED:
        z, y = draw((60, 50), dim=3)
        FITTED[covariance] = GaussianMixture(2, covariance=covariance, max_iter=1000).fit(z.float(), y)
    return FITTED[covariance]
