"""The products and factors that densities are made of, against numpy and scipy matrix by matrix."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from hidden_uncertainty.density import _linalg
from hidden_uncertainty.density._linalg import gram, log_det, precision_factor, whitened_squares

Array = NDArray[np.float64]
DIMS = [1, 2, 63, 64, 95, 96, 97, 200]  # around the edges of the blocks


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Some builds of torch give wrong batched inverses, solutions and determinants, with two threads and d > 160."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def covariances(count: int, dim: int, condition: float = 1e3) -> Array:
    """Covariances (count, d, d) with a given condition number, each in an orientation of its own."""
    random = np.random.default_rng(dim)
    spectrum = np.geomspace(1, condition, dim) if dim > 1 else np.ones(1)
    bases = [np.linalg.qr(random.normal(size=(dim, dim)))[0] for _ in range(count)]
    return np.stack([(basis * spectrum) @ basis.T for basis in bases])


def reference_factor(covariance: Array) -> Array:
    lower = scipy.linalg.cholesky(covariance, lower=True)
    return scipy.linalg.solve_triangular(lower, np.eye(len(covariance)), lower=True).T


def check_against_references(dim: int, count: int = 4) -> None:
    covs = covariances(count, dim)
    factor, good = precision_factor(torch.from_numpy(covs))
    assert good.all()
    expected = np.stack([reference_factor(cov) for cov in covs])
    np.testing.assert_allclose(factor.numpy(), expected, atol=1e-11)
    assert torch.equal(factor, factor.triu())
    np.testing.assert_allclose(log_det(factor).numpy(), [-0.5 * np.linalg.slogdet(cov)[1] for cov in covs], rtol=1e-10)

    random = np.random.default_rng(1)
    mean = random.normal(size=(count, dim))
    bias = np.stack([m @ w for m, w in zip(mean, expected, strict=True)])
    for rows in (random.normal(size=(1, 70, dim)), random.normal(size=(count, 70, dim))):
        ours = whitened_squares(torch.from_numpy(rows), factor, torch.from_numpy(bias))
        distance = [
            ((x - m) * scipy.linalg.cho_solve(scipy.linalg.cho_factor(cov), (x - m).T).T).sum(1)
            for x, m, cov in zip(np.broadcast_to(rows, (count, 70, dim)), mean, covs, strict=True)
        ]
        np.testing.assert_allclose(ours.numpy(), distance, rtol=1e-10)
        single = whitened_squares(torch.from_numpy(rows).float(), factor.float(), torch.from_numpy(bias).float())
        np.testing.assert_allclose(single.numpy(), distance, rtol=1e-4)
        products = [x.T @ x for x in rows]
        np.testing.assert_allclose(gram(torch.from_numpy(rows)).numpy(), products, atol=1e-11)


@pytest.mark.parametrize("dim", DIMS)
def test_against_one_matrix_at_a_time(dim: int) -> None:
    check_against_references(dim)


@pytest.mark.parametrize("dim", [256, 512])
@pytest.mark.usefixtures("two_threads")
def test_stacks_of_large_matrices_with_two_threads(dim: int) -> None:
    check_against_references(dim)


def test_rows_in_chunks_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 1000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factor, _ = precision_factor(torch.from_numpy(covariances(3, 20)))
    bias = torch.ones(3, 20, dtype=torch.float64)
    whole = whitened_squares(x, factor, bias)
    monkeypatch.setattr(_linalg, "CHUNK", 1)
    assert whitened_squares(x, factor, bias).shape == (3, 1000)
    torch.testing.assert_close(whitened_squares(x, factor, bias), whole, rtol=1e-12, atol=0)


def test_no_rows() -> None:
    empty = whitened_squares(torch.zeros(1, 0, 5), torch.eye(5).expand(2, 5, 5), torch.zeros(2, 5))
    assert empty.shape == (2, 0)
    assert torch.equal(gram(torch.zeros(2, 0, 5)), torch.zeros(2, 5, 5))


def test_gram_is_symmetric_to_the_bit() -> None:
    product = gram(torch.randn(2, 50, 130, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(product, product.mT)


INDEFINITE = torch.tensor([[1.0, 2.0], [2.0, 1.0]])


@pytest.mark.parametrize(
    "bad", [INDEFINITE, torch.zeros(2, 2), torch.full((2, 2), torch.nan), torch.full((2, 2), torch.inf)]
)
def test_a_matrix_without_a_factor_is_marked_and_leaves_the_others_alone(bad: Tensor) -> None:
    fine = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    factor, good = precision_factor(torch.stack([fine, bad, fine]))
    assert good.tolist() == [True, False, True]
    torch.testing.assert_close((factor @ factor.mT)[[0, 2]].inverse(), fine.double().expand(2, 2, 2))


def test_a_matrix_without_a_factor_gets_that_of_its_diagonal() -> None:
    factor, good = precision_factor(INDEFINITE * 4)
    assert not good
    torch.testing.assert_close(factor, 0.5 * torch.eye(2, dtype=torch.float64))
