"""Mixtures of many classes: starts, stacks, small classes, and classes that need float64."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.covariance import ledoit_wolf
from torch import Tensor

import mixture_draws
from hidden_uncertainty.density import GaussianMixture
from hidden_uncertainty.density.gaussian import _classes, mixture
from hidden_uncertainty.density.gaussian._em import Covariance, Fit
from mixture_draws import COVARIANCES

draw = partial(mixture_draws.draw, clusters=2)


# Stacks


def test_a_whole_fit_in_stacks_as_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = draw([40, 50, 55, 200, 210, 12, 3])
    stacks: list[list[int]] = []
    plain = _classes._stacks

    def shared(sizes: list[int], granted: list[int], z: Tensor, leave_out: list[int]) -> Iterator[list[int]]:
        elsewhere: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), shape=z.shape)
        for stack in plain(sizes, granted, elsewhere, leave_out):
            stacks.append(stack)
            yield stack

    for covariance in COVARIANCES:
        density = GaussianMixture(4, covariance=covariance, tol=1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with monkeypatch.context() as patch:
                patch.setattr(_classes, "STACK_CPU", 0)
                alone = density.fit(z, y).state_dict()
                patch.setattr(_classes, "_stacks", shared)
                together = density.fit(z, y).state_dict()
        for name, value in alone.items():
            torch.testing.assert_close(together[name], value, rtol=1e-9, atol=1e-9)
    assert [3, 4] in stacks
    assert [0, 1, 2] in stacks or [1, 2] in stacks


@given(
    sizes=st.lists(st.integers(10, 500), min_size=1, max_size=30),
    elements=st.sampled_from([1000, 10_000, 1_000_000]),
)
@settings(max_examples=50, deadline=None)
def test_stacks_hold_every_class_once_beside_its_like(sizes: list[int], elements: int) -> None:
    granted = [min(5, size // 10) for size in sizes]
    z: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), shape=(sum(sizes), 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_classes, "STACK", elements)
        stacks = list(_classes._stacks(sizes, granted, z, leave_out=[0]))
    assert sorted(c for stack in stacks for c in stack) == list(range(1, len(sizes)))
    for stack in stacks:
        assert len({granted[c] for c in stack}) == 1
        largest = max(sizes[c] for c in stack)
        assert len(stack) == 1 or len(stack) * largest * 4 <= elements
        assert largest <= 1.25 * min(sizes[c] for c in stack) + 16


def test_a_cpu_fits_large_classes_one_at_a_time() -> None:
    def stacks(rows: int, dim: int) -> list[list[int]]:
        return list(_classes._stacks([rows] * 3, [2] * 3, torch.zeros(1, dim), leave_out=[]))

    assert stacks(50, 4) == [[0, 1, 2]]
    assert stacks(50_000, 4) == stacks(50, 256) == [[0], [1], [2]]  # many rows, or large covariances


def test_covariances_bound_a_stack_anywhere() -> None:
    z: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), shape=(1000 * 20, 2048))
    stacks = list(_classes._stacks([20] * 1000, [1] * 1000, z, leave_out=[]))
    assert max(len(stack) for stack in stacks) * 2048**2 <= _classes.STACK


def test_whitened_means_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = draw([40, 50, 60])
    density = GaussianMixture(2, max_iter=1000)
    whole = density.fit(z, y).bias
    monkeypatch.setattr(mixture, "CHUNK", 1)
    torch.testing.assert_close(density.fit(z, y).bias, whole, rtol=1e-12, atol=1e-12)


# Small classes


def test_fewer_components_where_samples_are_few() -> None:
    z, y = draw([100, 35, 20, 11])
    with pytest.warns(UserWarning, match="too few") as caught:
        density = GaussianMixture(4, max_iter=1000).fit(z, y)
    assert density.log_weight.isfinite().sum(1).tolist() == [4, 3, 2, 1]
    torch.testing.assert_close(density.log_weight.exp().sum(1), torch.ones(4, dtype=torch.float64))
    assert [str(w.message) for w in caught] == [
        "class 1 came 35 times, too few for 4 components of 10 samples each: fitted 3; "
        "class 2 came 20 times, too few for 4 components of 10 samples each: fitted 2; "
        "class 3 came 11 times, too few for 4 components of 10 samples each: fitted 1. "
        "More data, or fewer components, would help."
    ]
    assert caught[0].filename == __file__


def test_one_component_cannot_be_fewer() -> None:
    with pytest.warns(UserWarning, match="class 1 came 4 times") as caught:
        GaussianMixture(1).fit(*draw([50, 4]))
    assert [str(w.message) for w in caught] == [
        "class 1 came 4 times, fewer than min_samples=10: shrunk towards the pooled covariance. More data would help."
    ]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("shrinkage", [None, "auto"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_small_classes_borrow_the_pooled_covariance(covariance: Covariance, shrinkage: Any, size: int) -> None:
    z, y = draw([60, size, 80], dim=3)
    text = f"class 1 came {size} times, too few for 2 components .* shrunk towards the pooled covariance"
    with pytest.warns(UserWarning, match=text):
        density = GaussianMixture(2, covariance=covariance, shrinkage=shrinkage, ridge=0.01).fit(z, y)
    own, mean = z[y == 1].numpy(), z[y == 1].numpy().mean(0)
    within = np.concatenate([(z[y == c] - z[y == c].mean(0)).numpy() for c in range(3)])
    pooled = within.T @ within / len(within)
    if shrinkage == "auto" and covariance in ("full", "tied"):
        pooled = ledoit_wolf(within, assume_centered=True)[0]
    ridge = 0.01 * np.mean(within**2)
    cov = ((own - mean).T @ (own - mean) + 3 * pooled) / (size + 3) + ridge * np.eye(3)
    cov = {"diag": np.diag(np.diag(cov)), "spherical": np.trace(cov) / 3 * np.eye(3)}.get(covariance, cov)
    expected = multivariate_normal(mean, cov).logpdf(z.numpy())
    np.testing.assert_allclose(density.log_prob(z, torch.tensor([1]))[:, 0].numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_all_classes_small(covariance: Covariance) -> None:
    z, y = draw([2, 1, 1, 3, 1, 2, 1], dim=20)
    with pytest.warns(UserWarning, match=r"class 0 came 2 times.*class 4 came 1 times.*; and 2 more classes\."):
        density = GaussianMixture(5, covariance=covariance).fit(z, y)
    assert all(buffer.isfinite().all() for name, buffer in density.named_buffers() if "log" not in name)
    scores = density.log_prob(z, density.classes)
    assert scores.isfinite().all()
    assert (scores.argmax(1) == y).all()


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_only_single_samples(covariance: Covariance) -> None:
    z, y = draw([1, 1, 1])
    with pytest.warns(UserWarning, match="class 2 came 1 times"):
        scores = GaussianMixture(covariance=covariance).fit(z, y).log_prob(z, torch.arange(3))
    assert scores.isfinite().all()
    assert (scores.argmax(1) == y).all()
    with pytest.raises(ValueError, match=r"class \[0, 1, 2\] is singular"):
        GaussianMixture(covariance=covariance, ridge=0).fit(z, y)


def test_more_components_than_rows() -> None:
    z, y = draw([30, 8])
    with pytest.warns(
        UserWarning, match="class 0 came 30 times, too few for 50 components of 1 samples each: fitted 30"
    ):
        density = GaussianMixture(50, min_samples=1, max_iter=1000).fit(z, y)
    assert density.log_prob(z, density.classes).isfinite().all()


@given(
    sizes=st.lists(st.integers(1, 25), min_size=2, max_size=5),
    components=st.integers(1, 6),
    min_samples=st.integers(1, 12),
    dim=st.integers(1, 12),
    covariance=st.sampled_from(COVARIANCES),
    shrinkage=st.sampled_from(["auto", None]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=40, deadline=None)
def test_never_nan(
    sizes: list[int],
    components: int,
    min_samples: int,
    dim: int,
    covariance: Covariance,
    shrinkage: Any,
    dtype: torch.dtype,
) -> None:
    z, y = draw(sizes, dim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        density = GaussianMixture(components, covariance=covariance, shrinkage=shrinkage, min_samples=min_samples)
        density.fit(z.to(dtype), y)
    assert not any(buffer.isnan().any() for buffer in density.buffers())
    assert density.log_prob(z, density.classes).isfinite().all()


# Degenerate features


def degenerate(kind: str, dim: int = 6) -> tuple[Tensor, Tensor]:
    z, y = draw([100, 120, 90], dim)
    if kind == "constant":
        z[:, 1] = 3.3
    elif kind == "dead in one class":
        z[y == 1, 2] = 0
    elif kind == "constant in one class, far away":
        z[y == 1, 2] = 100.1
    elif kind == "duplicated":
        z[:, 3:] = z[:, :3]
    elif kind == "fewer rows than dimensions":
        z, y = draw([15, 20, 30], 40)
    elif kind == "one class is a point":
        z[y == 1] = 1.7
    return z, y


DEGENERATE = [
    "constant",
    "dead in one class",
    "constant in one class, far away",
    "duplicated",
    "fewer rows than dimensions",
    "one class is a point",
]


@pytest.mark.parametrize("shrinkage", ["auto", None])
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_features(kind: str, covariance: Covariance, shrinkage: Any) -> None:
    z, y = degenerate(kind)
    z = z.float().double()
    # Only one component: where a component holds a handful of rows, rounding decides what it becomes.
    density = GaussianMixture(1, covariance=covariance, shrinkage=shrinkage, dtype="float64").fit(z, y)
    single = GaussianMixture(1, covariance=covariance, shrinkage=shrinkage, dtype="float32").fit(z, y)
    fine, coarse = density.log_prob(z, density.classes), single.log_prob(z, density.classes)
    assert fine.isfinite().all()
    own = y[:, None] == density.classes
    torch.testing.assert_close(coarse[own].double(), fine[own], rtol=1e-3, atol=0.1)
    torch.testing.assert_close(coarse[~own].double(), fine[~own], rtol=0.05, atol=0.1)
    reference = [z[y == c].mean(0) for c in range(3)]
    torch.testing.assert_close(density.mean[:, 0], torch.stack(reference))


@pytest.mark.parametrize("kind", DEGENERATE)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_degenerate_features_with_several_components(covariance: Covariance, kind: str) -> None:
    z, y = degenerate(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in (torch.float32, torch.float64):
            for shrinkage in ("auto", None):
                density = GaussianMixture(3, covariance=covariance, shrinkage=shrinkage, tol=1e-3).fit(z.to(dtype), y)
                assert density.log_prob(z, density.classes).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_nothing_lies_between_values_that_repeat(covariance: Covariance, dtype: torch.dtype) -> None:
    z = torch.tensor([0.0, 10.0], dtype=dtype).repeat_interleave(50)[:, None].expand(-1, 6)
    density = GaussianMixture(5, covariance=covariance, ridge=4e-8).fit(z, torch.zeros(100, dtype=torch.long))
    between = torch.tensor([2.5, 5.0], dtype=dtype)[:, None].expand(-1, 6)
    assert (density.log_prob(between, density.classes) < -1e6).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("kind", "covariance", "classes"),
    [
        ("constant", "full", "0, 1, 2"),
        ("constant", "tied", "0, 1, 2"),
        ("constant", "diag", "0, 1, 2"),
        ("dead in one class", "full", "1"),
        ("constant in one class, far away", "diag", "1"),
        ("duplicated", "full", "0, 1, 2"),
        ("duplicated", "tied", "0, 1, 2"),
        ("fewer rows than dimensions", "full", "0, 1, 2"),
        ("one class is a point", "spherical", "1"),
        ("one class is a point", "diag", "1"),
    ],
)
def test_singular_without_a_ridge(kind: str, covariance: Covariance, classes: str, dtype: torch.dtype) -> None:
    z, y = degenerate(kind)
    density = GaussianMixture(1, covariance=covariance, shrinkage=None, ridge=0)
    text = re.escape(
        f"the covariance of class [{classes}] is singular to working precision even with ridge=0: raise ridge"
    )
    with pytest.raises(ValueError, match=text):
        density.fit(z.to(dtype), y)
    assert density.mean is None


def test_small_classes_of_duplicated_columns_need_no_ridge_when_diagonal() -> None:
    z, y = draw([60, 5], dim=3)
    z[:, 2] = z[:, 1]
    with pytest.warns(UserWarning, match="class 1 came 5 times"):
        density = GaussianMixture(1, covariance="diag", ridge=0).fit(z, y)
    assert density.log_prob(z, density.classes).isfinite().all()


def test_float64_is_used_where_float32_is_too_coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = draw([100, 120, 90])
    z[y == 1, 3] = z[y == 1, 2]
    used: list[tuple[int, torch.dtype]] = []
    plain = _classes.fit_mixtures

    def spy(x: Tensor, *args: Any) -> Fit:
        used.append((x.shape[1], x.dtype))
        return plain(x, *args)

    monkeypatch.setattr(_classes, "fit_mixtures", spy)
    monkeypatch.setattr(_classes, "STACK_CPU", 0)  # class by class, so that the spy sees each alone
    density = GaussianMixture(2, shrinkage=None, max_iter=1000).fit(z.float(), y)
    assert density.factor.dtype == torch.float32
    assert used == [(90, torch.float32), (100, torch.float32), (120, torch.float32), (120, torch.float64)]
    fine = GaussianMixture(2, shrinkage=None, max_iter=1000).fit(z.float().double(), y)
    own = y == 1
    scores = (fit.log_prob(z[own], torch.tensor([1])).double() for fit in (density, fine))
    torch.testing.assert_close(*scores, rtol=0, atol=0.01)
    used.clear()
    GaussianMixture(2, max_iter=1000).fit(z.float(), y)
    assert {dtype for _, dtype in used} == {torch.float32}  # shrinkage leaves nothing singular


def test_only_the_coarse_classes_of_a_stack_are_mended() -> None:
    x = draw([100], dim=3)[0].float().expand(3, -1, -1).clone()
    x[1, :, 2] = x[1, :, 1]
    present, start = torch.ones(3, 100), torch.ones(3, 100, 1)
    options = _classes.EMOptions(ridge=1e-6)
    mended = _classes._fit_stack(x, present, start, options)
    plain = _classes.fit_mixtures(x, present, start, options)
    assert plain.sound.tolist() == [True, False, True]
    assert mended.sound.all()
    fine = _classes.fit_mixtures(x.double(), present.double(), start.double(), options)
    for b, expected in enumerate([plain, fine, plain]):
        assert torch.equal(mended.mixtures.factor[b], expected.mixtures.factor[b].float())
