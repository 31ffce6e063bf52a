"""Distances to many Gaussians at once, against scipy one by one."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hidden_uncertainty.density.gaussian import _packed
from hidden_uncertainty.density.gaussian._packed import pack, packed_shape, packed_squares, shifts


def gaussians(stack: int, count: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Upper triangular factors W (B, K, d, d), means (B, K, d) and b = μ W, in float64."""
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(stack, count, dim, dim, generator=random, dtype=torch.float64).triu(1) / dim
    scale = torch.rand(stack, count, dim, generator=random, dtype=torch.float64) + 0.5
    factor = noise + torch.diag_embed(scale)
    mean = torch.randn(stack, count, dim, generator=random, dtype=torch.float64)
    return factor, mean, (mean[..., None, :] @ factor)[..., 0, :]


def check(stack: int, count: int, dim: int, rows: int = 9) -> None:
    factor, mean, bias = gaussians(stack, count, dim)
    x = torch.randn(stack, rows, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = np.empty((stack, rows, count))
    for b, k in np.ndindex(stack, count):
        covariance_root = scipy.linalg.solve_triangular(factor[b, k].numpy(), np.eye(dim))  # Σ = R Rᵀ with R = W⁻ᵀ
        white = scipy.linalg.solve_triangular(covariance_root.T, (x[b] - mean[b, k]).numpy().T, lower=True)
        expected[b, :, k] = (white**2).sum(0)
    packed = pack(factor, bias)
    assert packed.shape == packed_shape(stack, count, dim)
    np.testing.assert_allclose(packed_squares(x, packed).numpy(), expected, rtol=1e-10)
    single = packed_squares(x.float(), pack(factor.float(), bias.float()))
    # What x W - b loses where it nearly cancels is small beside x W, not beside a distance near zero.
    distance = np.sqrt(expected)
    atol = 4 * np.finfo(np.float32).eps * distance.max()
    np.testing.assert_allclose(single.sqrt().numpy(), distance, rtol=5e-5, atol=atol)


@given(stack=st.integers(1, 3), count=st.integers(1, 9), dim=st.integers(1, 140))
@settings(max_examples=40, deadline=None)
def test_against_one_gaussian_at_a_time(stack: int, count: int, dim: int) -> None:
    check(stack, count, dim)


@pytest.mark.parametrize("dim", [15, 16, 17, 31, 32, 33, 63, 64, 65, 128])  # around the edges of the blocks
@pytest.mark.parametrize("count", [1, 4, 8])  # one for each width
def test_at_the_edges_of_blocks(count: int, dim: int) -> None:
    check(2, count, dim)


@pytest.mark.parametrize("dim", [256, 512])
@pytest.mark.usefixtures("two_threads")
def test_large_factors_with_two_threads(dim: int) -> None:
    check(1, 3, dim)


@pytest.mark.parametrize("stack", [1, 2])
def test_rows_in_chunks_as_all_at_once(stack: int, monkeypatch: pytest.MonkeyPatch) -> None:
    factor, _, bias = gaussians(stack, 3, 20)
    x = torch.randn(stack, 1000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = packed_squares(x, pack(factor, bias))
    monkeypatch.setitem(_packed.CHUNK, "cpu", 1)
    chunks = packed_squares(x, pack(factor, bias))
    assert chunks.shape == (stack, 1000, 3)
    torch.testing.assert_close(chunks, whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("stack", [1, 2])
def test_no_rows(stack: int) -> None:
    factor, _, bias = gaussians(stack, 3, 5)
    assert packed_squares(torch.zeros(stack, 0, 5).double(), pack(factor, bias)).shape == (stack, 0, 3)


def test_zeros_are_not_stored() -> None:
    _, rows, count, width = packed_shape(1, 50, 512)
    assert rows * count * width < 0.52 * 50 * 512 * 513


@pytest.mark.parametrize("stack", [1, 2])
def test_many_gaussians_are_the_same_in_parts(stack: int, monkeypatch: pytest.MonkeyPatch) -> None:
    factor, _, bias = gaussians(stack, 11, 20)
    x = torch.randn(stack, 100, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    packed = pack(factor, bias)
    whole = packed_squares(x, packed)
    monkeypatch.setattr(_packed, "WIDEST", 3 * packed.shape[3])
    torch.testing.assert_close(packed_squares(x, packed), whole, rtol=1e-12, atol=1e-12)


def sharing(factors: int, sharers: int, dim: int, rows: int = 9) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, packed factors and shifts of Gaussians that share factors, and their distances one by one."""
    factor, mean, _ = gaussians(1, factors, dim)
    random = torch.Generator().manual_seed(2)
    means = mean[0, :, None] + torch.randn(factors, sharers, dim, generator=random, dtype=torch.float64)
    x = torch.randn(rows, dim, generator=random, dtype=torch.float64)
    expected = ((x[:, None, None] - means)[..., None, :] @ factor[0, :, None]).square().sum((-1, -2))
    bias = means @ factor[0]
    packed = pack(factor, bias[None, :, 0])[0]
    return x, packed, shifts(bias, packed.shape[2]), expected


@given(factors=st.integers(1, 9), sharers=st.integers(1, 4), dim=st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_gaussians_that_share_a_factor(factors: int, sharers: int, dim: int) -> None:
    x, packed, shift, expected = sharing(factors, sharers, dim)
    torch.testing.assert_close(packed_squares(x[None], packed[None], shift)[0], expected, rtol=1e-10, atol=0)


def test_sharing_in_parts_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, packed, shift, expected = sharing(11, 3, 20, rows=100)
    monkeypatch.setattr(_packed, "WIDEST", 3 * packed.shape[2])
    monkeypatch.setitem(_packed.CHUNK, "cpu", 1)
    torch.testing.assert_close(packed_squares(x[None], packed[None], shift)[0], expected, rtol=1e-10, atol=0)
    assert packed_squares(x[None, :0], packed[None], shift).shape == (1, 0, 11, 3)
