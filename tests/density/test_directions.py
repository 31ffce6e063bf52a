from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from torch import Tensor

from hidden_uncertainty.density.directions import Directions, draw_holdout


def draw(n: int, d: int, rank: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    loading = torch.randn(rank, d, generator=generator, dtype=torch.float64)
    return (torch.randn(n, rank, generator=generator, dtype=torch.float64) @ loading + 3).to(dtype)


def first(n: int, held: int) -> Tensor:
    return torch.arange(n) < held


def test_coordinates_are_white_and_the_jacobian_is_theirs() -> None:
    z = draw(4000, 5, 5)
    held = first(4000, 400)
    directions = Directions().fit(z, holdout=held)
    u, rest = directions(z)
    assert (directions.kept, directions.dead, directions.dim) == (5, 0, 5)
    cov = torch.cov(u[~held].mT)
    off = cov - torch.diag(cov.diagonal())
    assert off.abs().max() < 1e-10
    wider = torch.maximum(u[~held].square().mean(0), u[held].square().mean(0))  # scaled by the larger of the two
    torch.testing.assert_close(wider, torch.ones(5, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    jacobian = torch.autograd.functional.jacobian(lambda row: directions(row[None])[0][0], z[0]).numpy()
    np.testing.assert_allclose(rest, np.linalg.slogdet(jacobian)[1], rtol=1e-10)


def test_with_a_gaussian_for_the_coordinates_it_is_one_gaussian_over_all_dimensions() -> None:
    z = draw(300, 6, 3)
    z = torch.cat([z, torch.full((300, 2), 0.1, dtype=torch.float64)], dim=1)
    directions = Directions().fit(z, holdout=first(300, 30))
    assert (directions.kept, directions.dead, directions.dim) == (3, 2, 8)
    basis, deviation = directions.basis.numpy(), directions.deviation.numpy()
    tau2 = float(directions.residual_deviation) ** 2
    cov = (basis * deviation**2) @ basis.T + tau2 * (np.eye(8) - basis @ basis.T)
    reference = multivariate_normal(directions.center.numpy(), cov)
    x = z[:50] + 1e-4 * draw(50, 8, 8, seed=1)  # off the manifold too
    u, rest = directions(x)
    ours = rest - 0.5 * u.square().sum(1) - 0.5 * 3 * np.log(2 * np.pi)
    np.testing.assert_allclose(ours, reference.logpdf(x.numpy()), rtol=1e-6)


@pytest.mark.parametrize(("rank", "dead", "text"), [(4, 0, "0 never vary, 1 collinear"), (5, 2, "2 never vary, 0 co")])
def test_a_note_says_what_was_dropped(rank: int, dead: int, text: str, caplog: pytest.LogCaptureFixture) -> None:
    z = torch.cat([draw(100, 5, rank), torch.ones(100, dead, dtype=torch.float64)], dim=1)
    caplog.set_level("INFO", logger="hidden_uncertainty")
    Directions().fit(z, holdout=first(100, 10))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"{rank} of {5 + dead} directions kept: {text}")


def test_a_dead_unit_that_wakes_up_is_surprising() -> None:
    z = torch.cat([draw(200, 3, 3, dtype=torch.float32), torch.full((200, 1), 0.1)], dim=1)
    directions = Directions().fit(z, holdout=first(200, 20))
    awake = z.clone()
    awake[:, 3] += 0.1
    assert directions.dead == 1
    torch.testing.assert_close(directions(awake)[0], directions(z)[0], rtol=1e-4, atol=1e-4)
    assert (directions(z)[1] - directions(awake)[1]).min() > 100


def test_the_holdout_sets_the_scales_where_rows_are_few() -> None:
    """With 54 rows in 100 dimensions the fitted rows have no residual and tiny last eigenvalues; new rows do not."""
    every = draw(2060, 100, 100)
    held = first(60, 6)
    directions = Directions().fit(every[:60], holdout=held)
    assert directions.kept == 53
    fresh = every[60:]
    u, _ = directions(fresh)
    residual = (fresh - directions.center) @ (torch.eye(100) - directions.basis @ directions.basis.mT).double()
    per_direction = residual.square().sum(1).mean() / 47
    assert 0.3 < per_direction / directions.residual_deviation.square() < 3
    assert u.square().mean() < 3
    narrow = ((fresh - directions.center) @ directions.basis).var(0) / every[:60][~held].matmul(directions.basis).var(0)
    assert narrow.max() > 10  # what the scales would have been off by


def test_residual_off_a_thin_manifold_keeps_its_digits() -> None:
    z = draw(500, 50, 2, dtype=torch.float32) * 100
    directions = Directions().fit(z, holdout=first(500, 50))
    double = Directions().fit(z.double(), holdout=first(500, 50))
    assert directions.kept == double.kept == 2
    off = z + 0.05 * draw(500, 50, 50, seed=1, dtype=torch.float32)
    torch.testing.assert_close(directions(off)[1].double(), double(off.double())[1], rtol=1e-3, atol=1e-2)


def test_a_thin_manifold_far_from_zero() -> None:
    a, b = torch.randint(-40, 40, (2, 600), generator=torch.Generator().manual_seed(0)).float()
    z = torch.stack([a, b, a + b, 2 * a - b], dim=1) + 2**22 * torch.tensor([1, 1, 2, 1])  # exact, unlike its mean
    directions = Directions().fit(z, holdout=first(600, 60))
    assert directions.kept == 2
    assert (directions(z)[1] - directions.log_scale).min() > -5  # two directions dropped, in nats


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [3, 6])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e10])
def test_finite_however_far(dtype: torch.dtype, rank: int, scale: float) -> None:
    z = scale * draw(100, 6, rank, dtype=dtype)
    directions = Directions().fit(z, holdout=first(100, 10))
    assert directions.kept == rank
    u, rest = directions(torch.tensor([[1e300] * 6, [-1e300, 0, 1, 0, 0, 3], [1e38] * 6], dtype=torch.float64))
    for value in (u, u.square(), rest):
        assert value.dtype == dtype and value.isfinite().all()


def test_half_precision_is_kept_in_float32() -> None:
    z = draw(50, 3, 3, dtype=torch.float16)
    directions = Directions().fit(z, holdout=first(50, 5))
    assert directions.center.dtype == directions(z)[0].dtype == torch.float32


def test_nothing_to_fit() -> None:
    with pytest.raises(ValueError, match="all 9 rows of z are the same"):
        Directions().fit(torch.full((10, 3), 0.1), holdout=first(10, 1))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(3, 400), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_the_holdout(n: int, share: float, seed: int) -> None:
    mask = draw_holdout(n, share, seed, "cpu")
    assert mask.dtype == torch.bool and mask.shape == (n,)
    assert int(mask.sum()) == min(max(round(share * n), 1), n - 2)
    assert torch.equal(mask, draw_holdout(n, share, seed, "cpu"))


def test_holdouts_differ_by_seed() -> None:
    assert not torch.equal(draw_holdout(100, 0.1, 0, "cpu"), draw_holdout(100, 0.1, 1, "cpu"))
