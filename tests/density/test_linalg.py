"""The products and factors that densities are made of, against numpy and scipy matrix by matrix."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from hidden_uncertainty.density.linalg import gram, log_det, own_order, precision_factor

Array = NDArray[np.float64]
DIMS = [1, 2, 63, 64, 95, 96, 97, 200]  # around the edges of the blocks


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

    for rows in (1, count):
        x = np.random.default_rng(1).normal(size=(rows, 70, dim))
        np.testing.assert_allclose(gram(torch.from_numpy(x)).numpy(), [part.T @ part for part in x], atol=1e-11)


@pytest.mark.parametrize("dim", DIMS)
def test_against_one_matrix_at_a_time(dim: int) -> None:
    check_against_references(dim)


@pytest.mark.parametrize("dim", [256, 512])
@pytest.mark.usefixtures("two_threads")
def test_stacks_of_large_matrices_with_two_threads(dim: int) -> None:
    check_against_references(dim)


def test_no_rows() -> None:
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


def test_rows_of_the_same_values_have_an_order_of_their_own() -> None:
    rows = torch.cat([torch.eye(9), 2 * torch.eye(9), 3 - torch.eye(9)])
    y = torch.arange(27) % 2
    random = torch.Generator().manual_seed(0)
    mixed = torch.randperm(27, generator=random)
    assert torch.equal(rows[own_order(rows, y)], rows[mixed][own_order(rows[mixed], y[mixed])])
    assert torch.equal(y[own_order(rows, y)], y.sort().values)
