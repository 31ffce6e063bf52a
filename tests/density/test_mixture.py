"""One Gaussian mixture a class: against scikit-learn's, and what changes of the features do to it."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
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

from hidden_uncertainty.density import GaussianMixture, _classes
from hidden_uncertainty.density._em import Covariance

Array = NDArray[np.float64]
COVARIANCES: tuple[Covariance, ...] = ("full", "tied", "diag", "spherical")


def draw(
    sizes: tuple[int, ...] = (200, 150, 260), dim: int = 4, seed: int = 0, clusters: int = 3
) -> tuple[Tensor, Tensor]:
    """Classes of given sizes, each of several clusters, their rows interleaved, in float64."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    y = y[torch.randperm(len(y), generator=generator)]
    centres = 3 * torch.randn(len(sizes), clusters, dim, generator=generator, dtype=torch.float64)
    which = torch.randint(0, clusters, (len(y),), generator=generator)
    mix = torch.eye(dim) + 0.3 * torch.randn(len(sizes), dim, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(y), 1, dim, generator=generator, dtype=torch.float64)
    return centres[y, which] + (noise @ mix[y])[:, 0], y


def every(density: GaussianMixture, z: Tensor) -> Tensor:
    return density.log_prob(z, density.classes)


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
def test_as_one_scikit_learn_mixture_a_class(
    covariance: Covariance, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, y = draw()
    z = z + offset
    starts: dict[int, Array] = {}
    plain = _classes.kmeans

    def spy(x: Tensor, *args: Any) -> Tensor:
        starts[x.shape[1]] = plain(x, *args)[0].numpy()
        return torch.from_numpy(starts[x.shape[1]])[None]

    monkeypatch.setattr(_classes, "kmeans", spy)
    monkeypatch.setattr(_classes, "STACK_CPU", 0)  # class by class, so that the spy sees each alone
    density = GaussianMixture(3, covariance=covariance, shrinkage=None, max_iter=1000).fit(z, y)
    test = draw(seed=1)[0] + offset
    scores = every(density, test).numpy()
    for c in range(3):
        x = z[y == c].numpy()
        peer = sklearn.mixture.GaussianMixture(
            3, covariance_type=covariance, max_iter=1000, **first_step(x, starts[len(x)], covariance, 1e-6)
        ).fit(x)
        np.testing.assert_allclose(density.log_weight[c].exp().numpy(), peer.weights_, rtol=1e-6)
        np.testing.assert_allclose(density.mean[c].numpy(), peer.means_, rtol=1e-6)
        np.testing.assert_allclose(scores[:, c], peer.score_samples(test.numpy()), rtol=1e-8, atol=1e-8)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Some builds of torch give wrong batched inverses, solutions and determinants, with two threads and d > 160."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


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
    density = GaussianMixture(2, shrinkage=None, ridge=0.1, dtype=dtype).fit(z, y)
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


@pytest.mark.parametrize("covariance", ["full", "tied", "diag"])
def test_units_of_single_features_do_not_matter_to_one_gaussian(covariance: Covariance) -> None:
    z, y = draw()
    scale = torch.tensor([1e-3, 1.0, 50.0, 1e4], dtype=torch.float64)
    density = GaussianMixture(1, covariance=covariance, shrinkage=None, ridge=0)
    before = every(copy.deepcopy(density).fit(z, y), z)
    after = every(density.fit(z * scale, y), z * scale) + scale.log().sum()
    torch.testing.assert_close(after, before, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_linear_maps_do_not_matter_to_one_gaussian(covariance: Covariance) -> None:
    z, y = draw()
    matrix = torch.randn(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    density = GaussianMixture(1, covariance=covariance, shrinkage=None, ridge=0)
    before = every(copy.deepcopy(density).fit(z, y), z)
    after = every(density.fit(z @ matrix, y), z @ matrix) + torch.linalg.slogdet(matrix).logabsdet
    torch.testing.assert_close(after, before, rtol=1e-8, atol=1e-8)


def test_the_order_of_rows() -> None:
    """Starts are drawn by position within a class: only one component knows no order, classes may always mix."""
    z, y = draw()
    shuffle = torch.randperm(len(y), generator=torch.Generator().manual_seed(5))
    sort = y.argsort(stable=True)
    for components, order in ((1, shuffle), (3, sort)):
        density = GaussianMixture(components, max_iter=1000)
        before = every(copy.deepcopy(density).fit(z, y), z)
        torch.testing.assert_close(every(density.fit(z[order], y[order]), z), before, rtol=1e-9, atol=1e-9)


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


def test_infinite_and_missing_features_are_not_hidden() -> None:
    rows = torch.tensor([[torch.nan, 0, 0], [0, torch.inf, 0]])
    assert every(fitted("full"), rows).isnan().all()


# Options and errors


def test_defaults_shrink_what_needs_it() -> None:
    z, y = draw((30, 30, 30), dim=20)
    for covariance, shrinkage in (("full", "ledoit-wolf"), ("tied", "ledoit-wolf"), ("diag", None)):
        auto, named = (
            GaussianMixture(2, covariance=covariance, shrinkage=s).fit(z, y)  # type: ignore[arg-type]
            for s in ("auto", shrinkage)
        )
        assert torch.equal(auto.factor, named.factor)
    kinds = [GaussianMixture(1, shrinkage=s).fit(z, y).factor for s in ("ledoit-wolf", "oas", None)]
    assert not torch.allclose(kinds[0], kinds[1])
    assert not torch.allclose(kinds[0], kinds[2])


def test_classes_that_never_came() -> None:
    z, y = draw()
    keep = y != 1
    density = GaussianMixture(2, max_iter=1000).fit(z[keep], y[keep])
    assert density.classes.tolist() == [0, 2]
    alone = every(density, z)
    torch.testing.assert_close(density.log_prob(z, torch.tensor([2, 0, 2])), alone[:, [1, 0, 1]])
    with pytest.raises(ValueError, match=r"no density was fitted for class \[1, 7\]; fitted: \[0, 2\]"):
        density.log_prob(z, torch.tensor([0, 1, 7]))


def test_one_class() -> None:
    z, _ = draw()
    density = GaussianMixture(3, max_iter=1000).fit(z, torch.full((len(z),), 5))
    assert every(density, z).shape == (len(z), 1)


def test_fit_again_with_other_classes_and_dimensions() -> None:
    z, y = draw()
    density = GaussianMixture(2, max_iter=1000).fit(z, y).fit(z[:, :2].float(), y % 2)
    fresh = GaussianMixture(2, max_iter=1000).fit(z[:, :2].float(), y % 2)
    for name, value in fresh.state_dict().items():
        assert torch.equal(density.state_dict()[name], value)


def test_a_failed_fit_leaves_the_old_one() -> None:
    z, y = draw()
    density = GaussianMixture(1, shrinkage=None, ridge=0).fit(z, y)
    before = every(density, z)
    with pytest.raises(ValueError, match="singular"):
        density.fit(torch.ones_like(z), y)
    assert torch.equal(every(density, z), before)


def test_too_few_steps() -> None:
    z, y = draw()
    text = r"3 of 3 classes did not converge in max_iter=1 steps: raise max_iter or tol, or use fewer components"
    with pytest.warns(UserWarning, match=text) as caught:
        density = GaussianMixture(3, max_iter=1).fit(z, y)
    assert caught[0].filename == __file__
    assert every(density, z).isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GaussianMixture(3, max_iter=1000).fit(z, y)
        GaussianMixture(3, max_iter=2, tol=100).fit(z, y)


def test_keeps_the_configuration_it_was_given() -> None:
    options = {
        "components": 2,
        "covariance": "tied",
        "shrinkage": "oas",
        "ridge": 1e-5,
        "tol": 1e-4,
        "max_iter": 500,
        "restarts": 2,
        "min_samples": 5,
        "dtype": "float64",
        "seed": 3,
    }
    density = GaussianMixture(**options)  # type: ignore[arg-type]
    assert density.config() == {**options, "fitted": None}
    z, y = draw()
    fitted = {"classes": 3, "components": 2, "dim": 4, "dtype": "float64"}
    assert density.fit(z.float(), y).config() == {**options, "fitted": fitted}
    assert density.float().config()["fitted"]["dtype"] == "float32"
    assert str(density) == "GaussianMixture(components=2, covariance='tied', shrinkage='oas')"


@pytest.mark.parametrize("convert", [torch.nn.Module.float, torch.nn.Module.double])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_saved_in_the_precision_it_was_cast_to(covariance: Covariance, convert: Any) -> None:
    z, y = draw((60, 15))
    with pytest.warns(UserWarning, match="class 1 came 15 times"):
        density = convert(GaussianMixture(2, covariance=covariance).fit(z, y))
    rebuilt = GaussianMixture.from_config(density.config())
    rebuilt.load_state_dict(density.state_dict(), strict=True)
    for name, value in density.state_dict().items():
        assert rebuilt.state_dict()[name].dtype == value.dtype
        assert torch.equal(rebuilt.state_dict()[name], value)
    assert torch.equal(every(rebuilt, z), every(density, z))


def test_packed_factors_follow_what_they_are_made_of() -> None:
    z, y = draw()
    one, other = GaussianMixture(2, max_iter=1000).fit(z, y), GaussianMixture(2, max_iter=1000).fit(z + 1, y)
    assert "packed" not in one.state_dict()
    expected = every(one, z)
    for empty in (other, GaussianMixture.from_config(one.config())):
        empty.load_state_dict(one.state_dict())
        assert torch.equal(every(empty, z), expected)
    fine = copy.deepcopy(one)
    assert torch.equal(every(fine.float().double(), z), every(one.float().double(), z))
    assert every(one.float(), z).dtype == torch.float32
    torch.testing.assert_close(every(one, z).double(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(every(copy.deepcopy(one), z), every(one, z))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"components": 0}, "components must be a whole number of at least 1, not 0"),
        ({"components": 2.0}, r"components must be a whole number of at least 1, not 2\.0"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"restarts": 0}, "restarts must be"),
        ({"min_samples": 0}, "min_samples must be"),
        ({"covariance": "round"}, r"covariance must be one of \('full', 'tied', 'diag', 'spherical'\), not 'round'"),
        ({"shrinkage": "some"}, r"shrinkage must be 'auto', one of \('ledoit-wolf', 'oas'\) or None, not 'some'"),
        (
            {"shrinkage": "oas", "covariance": "diag"},
            "shrinkage='oas' is for full and tied covariances; 'diag' needs none",
        ),
        ({"dtype": "float16"}, "dtype must be 'float32', 'float64' or None, not 'float16'"),
        ({"ridge": -1.0}, r"ridge must be zero or more, not -1\.0"),
        ({"ridge": math.nan}, "ridge must be zero or more, not nan"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GaussianMixture(**options)


@pytest.mark.parametrize(
    ("z", "y", "error", "text"),
    [
        (
            torch.zeros(4),
            torch.zeros(4).long(),
            ValueError,
            r"expected z \(n, d\) and y \(n,\) .* not \(4,\) and \(4,\)",
        ),
        (torch.zeros(4, 2), torch.zeros(3).long(), ValueError, r"of one length, not \(4, 2\) and \(3,\)"),
        (torch.zeros(4, 2), torch.zeros(4, 1).long(), ValueError, r"not \(4, 2\) and \(4, 1\)"),
        (torch.zeros(1, 2), torch.zeros(1).long(), ValueError, "at least 2 samples, not 1"),
        (torch.zeros(0, 2), torch.zeros(0).long(), ValueError, "at least 2 samples, not 0"),
        (torch.zeros(4, 2), torch.zeros(4), TypeError, r"expected classes as integers in y, not torch\.float32"),
        (torch.zeros(4, 2), torch.zeros(4).bool(), TypeError, r"not torch\.bool"),
        (
            torch.tensor([[0.0, 1], [torch.nan, 1], [1, 1], [torch.inf, -torch.inf]]),
            torch.zeros(4).long(),
            ValueError,
            "2 of 4 rows of z hold NaN or infinity",
        ),
    ],
)
def test_bad_data(z: Tensor, y: Tensor, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        GaussianMixture().fit(z, y)


@pytest.mark.parametrize("shape", [(4,), (3, 5), (2, 3, 4)])
def test_bad_rows_to_score(shape: tuple[int, ...]) -> None:
    z, y = draw()
    density = GaussianMixture(1).fit(z, y)
    with pytest.raises(ValueError, match=r"expected z of shape \(n, 4\), as fitted, not \("):
        density.log_prob(torch.zeros(shape), density.classes)
