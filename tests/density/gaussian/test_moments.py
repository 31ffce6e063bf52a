"""Sums over rows: however rows are split, ordered and added up, what is fitted from them is the same."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf, oas
from torch import Tensor

from hidden_uncertainty.density import GaussianMixture
from hidden_uncertainty.density.gaussian.moments import Moments, Sums

DENSITIES = {
    "full": lambda: GaussianMixture(1),
    "not shrunk": lambda: GaussianMixture(1, shrinkage=None),
    "oas": lambda: GaussianMixture(1, shrinkage="oas"),
    "borrowing": lambda: GaussianMixture(pooling=10),
    "pooled": lambda: GaussianMixture(covariance="pooled"),
}


def drawn(n: int = 300, dim: int = 4, classes: int = 3, middle: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=random)
    mix = torch.randn(classes, dim, dim, generator=random)
    z = (torch.randn(n, 1, dim, generator=random) @ mix[y])[:, 0] + 5 * torch.randn(classes, dim, generator=random)[y]
    return (z + middle).double(), y


def gathered(z: Tensor, y: Tensor, sums: Sums, cuts: list[int]) -> Moments:
    """Moments of pieces, of which each is its own and knows only the classes it saw; then the sum."""
    pieces = zip(torch.tensor_split(z, cuts), torch.tensor_split(y, cuts), strict=True)
    return sum(Moments.empty(0, z.shape[1], sums).update(*piece) for piece in pieces)  # type: ignore[return-value]


@given(
    name=st.sampled_from([*DENSITIES]),
    cuts=st.lists(st.integers(0, 300), max_size=6).map(sorted),
    seed=st.integers(0, 5),
    middle=st.sampled_from([0.0, 1e4, -3e6]),
    ordered=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_split_in_any_order_gives_the_same(
    name: str, cuts: list[int], seed: int, middle: float, ordered: bool
) -> None:
    z, y = drawn(middle=middle, seed=seed)
    order = y.argsort() if ordered else torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    density, whole = DENSITIES[name](), DENSITIES[name]().fit(z, y)
    density.fit_moments(gathered(z[order], y[order], density.sums, cuts))
    # About a mean a million times the spread, rows themselves have nine digits left.
    torch.testing.assert_close(
        density.log_prob(z, whole.classes), whole.log_prob(z, whole.classes), rtol=1e-7, atol=1e-7 * max(1, abs(middle))
    )


@pytest.mark.parametrize("cuts", [[], [10, 150]])
def test_as_scikit_learn_shrinks(cuts: list[int]) -> None:
    z, y = drawn(200, 8)
    own = gathered(z, y, "each", cuts).central()
    for c in range(3):
        rows = z[y == c].numpy()
        np.testing.assert_allclose(own.mean[c], rows.mean(0), rtol=1e-10)
        centred = rows - rows.mean(0)
        np.testing.assert_allclose(own.scatter[c], centred.T @ centred, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(own.fourth[c], ((centred**2).sum(1) ** 2).sum(), rtol=1e-9)
        one = GaussianMixture(1, ridge=0.0).fit_moments(gathered(z, y, "each", cuts)).factor[c, 0]
        expected = ledoit_wolf(rows)[0]
        np.testing.assert_allclose(torch.cholesky_inverse(one.flip(0, 1), upper=False).flip(0, 1), expected, rtol=1e-6)
    within = np.concatenate([z[y == c] - z[y == c].mean(0) for c in range(3)])
    for sums in ("each", "pooled"):
        found = gathered(z, y, sums, cuts).central().covariance("oas")  # type: ignore[arg-type]
        np.testing.assert_allclose(found, oas(within, assume_centered=True)[0], rtol=1e-9)
    found = gathered(z, y, "each", cuts).central().covariance("ledoit-wolf")
    np.testing.assert_allclose(found, ledoit_wolf(within, assume_centered=True)[0], rtol=1e-9)


def test_all_rows_as_of_one_class() -> None:
    z, y = drawn()
    whole = gathered(z, y, "pooled", [100]).merged().central()
    torch.testing.assert_close(whole.scatter[0] / len(z), z.T.cov(correction=0), rtol=1e-10, atol=1e-10)
    one, other = (GaussianMixture(covariance="pooled") for _ in range(2))
    one.fit_moments(gathered(z, y, "pooled", [100]).merged())
    other.fit(z, torch.zeros_like(y))
    torch.testing.assert_close(one.log_prob(z, one.classes), other.log_prob(z, other.classes))


def test_what_is_kept_does_not_grow_with_rows() -> None:
    moments = Moments.empty(3, 4, "each")
    sizes = set()
    for seed in range(20):
        sizes.add(sum(tensor.numel() for tensor in moments.update(*drawn(seed=seed)).tensors().values()))
    assert sizes == {3 * (1 + 4 + 4 + 16 + 4 + 1)}
    again = pickle.loads(pickle.dumps(moments))
    assert all(torch.equal(tensor, moments.tensors()[name]) for name, tensor in again.tensors().items())


def test_errors_say_what_to_do() -> None:
    z, y = drawn()
    with pytest.raises(ValueError, match="gather both with the same detector"):
        gathered(z, y, "each", []) + gathered(z, y, "pooled", [])
    with pytest.raises(ValueError, match=r"cannot be found from sums .* use shrinkage='oas'"):
        GaussianMixture(covariance="pooled", shrinkage="ledoit-wolf").fit_moments(gathered(z, y, "pooled", []))
