"""Log-likelihoods between places, against vectors that are interpolated by torch and scored by scipy one by one."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import interpolate

from hidden_uncertainty.density import ConditionalFlow, GaussianMixture
from hidden_uncertainty.density.gaussian import _packed
from hidden_uncertainty.density.gaussian._em import Covariance
from hidden_uncertainty.density.gaussian._packed import pack, place_squares, shifts
from hidden_uncertainty.extract.pixel_extractor import Axis, LatentMap, Lattice, axis

Size = tuple[int, int]
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
DIM = 5


@cache
def fitted(covariance: Covariance, components: int = 3, dim: int = DIM, dtype: Any = "float64") -> GaussianMixture:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(max(600, 12 * dim)) % 4
    centres = 3 * torch.randn(4, components, dim, generator=random)
    z = centres[y, torch.arange(len(y)) // 4 % components]
    mix = torch.eye(dim) + 0.3 / dim**0.5 * torch.randn(dim, dim, generator=random)
    z = z + torch.randn(len(y), dim, generator=random) @ mix
    return GaussianMixture(components, covariance=covariance, max_iter=200, min_samples=2, dtype=dtype).fit(z, y)


def lattice(places: Tensor, size: Size) -> Lattice:
    return Lattice(places, axis(places.shape[1], size[0]), axis(places.shape[2], size[1]))


def draw(shape: Size, images: int = 1, dim: int = DIM, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(images, *shape, dim, generator=random, dtype=torch.float64)


def vectors(places: Tensor, size: Size) -> Tensor:
    maps = interpolate(places.double().permute(0, 3, 1, 2), size, mode="bilinear", align_corners=False)
    return maps.permute(0, 2, 3, 1).flatten(0, 2)  # (pixels, d)


def brute(density: GaussianMixture, places: Tensor, size: Size) -> np.ndarray:
    """log p(z|y) of interpolated vectors, by scipy's Gaussians, (pixels, C)."""
    z = vectors(places, size).numpy()
    shared = density.covariance == "tied"
    columns = []
    for c in range(len(density.classes)):
        parts = []
        for k in range(density.mean.shape[1]):
            factor = (density.factor[c] if shared else density.factor[c, k]).double().numpy()
            gaussian = scipy.stats.multivariate_normal(
                density.mean[c, k].double().numpy(), np.linalg.inv(factor @ factor.T)
            )
            parts.append(np.atleast_1d(gaussian.logpdf(z)) + float(density.log_weight[c, k]))
        columns.append(scipy.special.logsumexp(parts, axis=0))
    return np.stack(columns, axis=1)


def found(density: GaussianMixture, places: Tensor, size: Size, support: Tensor | None = None) -> Tensor:
    support = density.classes if support is None else support
    return torch.cat(list(density.log_prob_between(lattice(places, size), support)))


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((4, 5), (16, 20)),
        ((7, 9), (30, 31)),  # strides that do not divide
        ((4, 3), (16, 3)),  # along one axis only
        ((3, 4), (3, 16)),
        ((1, 5), (4, 20)),  # one row of places, one column, one place
        ((5, 1), (20, 3)),
        ((1, 1), (5, 6)),
        ((8, 3), (3, 24)),  # fewer pixels than places along one axis, and along both
        ((9, 8), (4, 5)),
        ((4, 4), (4, 4)),
    ],
)
@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_as_vectors_that_are_interpolated_and_scored(
    covariance: Covariance, components: int, shape: Size, size: Size
) -> None:
    density, places = fitted(covariance, components), draw(shape, images=2)
    expected = brute(density, places, size)
    np.testing.assert_allclose(found(density, places, size).numpy(), expected, rtol=1e-9, atol=1e-9)
    single = found(copy.deepcopy(density).float(), places.float(), size)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-5, atol=1e-4)


@given(shape=sizes, size=sizes, covariance=st.sampled_from(["full", "tied"]), images=st.integers(1, 3), data=st.data())
@settings(max_examples=60, deadline=None)
def test_tiles_of_any_size(shape: Size, size: Size, covariance: Covariance, images: int, data: st.DataObject) -> None:
    density, places = fitted(covariance), draw(shape, images, seed=shape[0])
    expected = density.log_prob(vectors(places, size), density.classes)
    whole = list(density.log_prob_between(lattice(places, size), density.classes))
    assert len(whole) == 1
    torch.testing.assert_close(whole[0], expected, rtol=1e-9, atol=1e-9)
    with pytest.MonkeyPatch.context() as patch:
        cells = data.draw(st.integers(1, 20 * size[0] * size[1]))
        patch.setitem(_packed.CELLS, "cpu", cells)
        patch.setattr(_packed, "BAND", data.draw(st.integers(1, 1000)))
        side = data.draw(st.integers(1, 5))
        patch.setattr(_packed, "_side", lambda *_: side)
        parts = list(density.log_prob_between(lattice(places, size), density.classes))
    assert max(map(len, parts)) * 12 <= max(cells * torch.get_num_threads(), 12 * size[1])  # 12 Gaussians; or one row
    torch.testing.assert_close(torch.cat(parts), whole[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("covariance", ["full", "tied"])
@pytest.mark.parametrize("support", [[2], [3, 1], [0, 1, 2, 3], [1, 1]])
def test_a_support_of_some_classes_in_any_order(covariance: Covariance, support: list[int]) -> None:
    density, places = fitted(covariance), draw((3, 4))
    every = found(density, places, (9, 8))
    torch.testing.assert_close(found(density, places, (9, 8), torch.tensor(support)), every[:, support])


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_many_classes_are_the_same_in_parts(covariance: Covariance, monkeypatch: pytest.MonkeyPatch) -> None:
    density, places = fitted(covariance), draw((12, 9))
    whole = found(density, places, (30, 30))
    monkeypatch.setattr(_packed, "WIDEST", 3 * DIM)
    monkeypatch.setattr("hidden_uncertainty.density.gaussian._packed.WIDEST", 3 * DIM)
    torch.testing.assert_close(found(density, places, (30, 30)), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dim", [16, 33, 70])  # blocks
def test_squares_at_places_and_of_differences(dim: int) -> None:
    random = torch.Generator().manual_seed(dim)
    factor = torch.randn(3, dim, dim, generator=random, dtype=torch.float64).triu()
    bias = torch.randn(3, 2, dim, generator=random, dtype=torch.float64)
    packed = pack(factor[None], bias[None, :, 0])[0]
    x = torch.randn(2, 4, 5, dim, generator=random, dtype=torch.float64)
    at, right, down, across = place_squares(x, packed[:, :, None], shifts(bias, packed.shape[2]))
    white = torch.einsum("nhwd,cde->nhwce", x, factor)
    expected = (white[..., None, :, :] - bias.transpose(0, 1)).square().sum(-1)
    torch.testing.assert_close(at, expected, rtol=1e-10, atol=0)
    steps = white.diff(dim=2)
    for squares, apart in ((right, steps), (down, white.diff(dim=1)), (across, steps.diff(dim=1))):
        h, w = apart.shape[1:3]
        torch.testing.assert_close(squares[:, :h, :w, 0], apart.square().sum(-1), rtol=1e-10, atol=0)
        assert not squares[:, h:].any() and not squares[:, :, w:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_places_of_half_precision(dtype: torch.dtype) -> None:
    density, places = fitted("tied", dtype="float32"), draw((3, 4)).to(dtype)
    torch.testing.assert_close(found(density, places, (9, 8)), found(density, places.float(), (9, 8)))
    assert found(density, places, (9, 8)).dtype == torch.float32


# Far apart, and far away


@pytest.mark.parametrize(("apart", "nats"), [(10, 1e-4), (100, 1e-3), (1000, 0.02)])
@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_pixels_at_a_mean_between_places_far_apart(covariance: Covariance, apart: float, nats: float) -> None:
    """The squares at the places are up to 640,000, that at the pixel is next to nothing."""
    density = fitted(covariance, 2, dim=64, dtype="float32")
    factor = density.factor[1] if covariance == "tied" else density.factor[1, 0]
    way = torch.randn(64, generator=torch.Generator().manual_seed(0))
    way = apart * way / (way @ factor).norm()
    side = torch.where((torch.arange(6)[:, None] + torch.arange(8)) % 2 == 0, -0.2, 0.8)  # a pixel is at 0.2 of 1
    places = density.mean[1, 0] + 0.1 * draw((6, 8), dim=64).float() + (side[..., None] * way)
    expected = copy.deepcopy(density).double().log_prob(vectors(places, (30, 40)), density.classes)
    error = (found(density, places, (30, 40)) - expected).abs()
    near = expected[:, 1] > expected[:, 1].max() - 30
    assert int(near.sum()) > 20
    assert float(error[near, 1].max()) < nats
    assert float((error / expected.abs()).max()) < max(1e-6, nats / 30)


@pytest.mark.parametrize("covariance", ["full", "tied"])
@pytest.mark.parametrize("far", [1e12, 1e15, 1e18, 1e30, 3e38])
def test_finite_and_surprising_for_finite_places(covariance: Covariance, far: float) -> None:
    density, places = fitted(covariance, dtype="float32"), draw((5, 6)).float()
    places[0, 1, 2], places[0, 3, 4, 2] = far, -far
    plain = draw((5, 6)).float()
    scores, usual = (found(density, z, (20, 24)).view(20, 24, -1) for z in (places, plain))
    vector = density.log_prob(LatentMap(places, 1, (20, 24)).band(slice(0, 1), 0, 20), density.classes)
    assert scores.isfinite().all() and vector.isfinite().all()
    touched = (scores != usual).any(-1)
    assert (scores[touched] < -1e20).all() and (vector.view(20, 24, -1)[touched] < -1e20).all()
    torch.testing.assert_close(scores[~touched], usual[~touched])
    assert int(touched.sum()) == 2 * 8 * 8
    double = copy.deepcopy(density).double()
    assert found(double, places.double() * 1e200, (20, 24)).isfinite().all()


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e15])
def test_features_of_any_scale(scale: float) -> None:
    """Factors are as large as features are small; their squares need not be numbers of the dtype."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    z = scale * (torch.randn(400, DIM, generator=random, dtype=torch.float64) + 3 * y[:, None])
    density = GaussianMixture(1, ridge=0, dtype="float64").fit(z, y).float()
    places = (scale * draw((3, 4))).float()
    expected = density.log_prob(LatentMap(places, 1, (12, 16)).band(slice(0, 1), 0, 12), density.classes)
    torch.testing.assert_close(found(density, places, (12, 16)), expected, rtol=1e-5, atol=1e-3)


def test_scores_fall_along_every_ray() -> None:
    density = fitted("full", dtype="float32")
    steps = torch.logspace(2, 38, 60)[:, None, None, None]
    way = draw((2, 2)).float() / 8
    scores = found(density, steps * way, (6, 6)).view(60, 36, -1)
    fall = scores.diff(dim=0)
    assert scores.isfinite().all() and (fall <= 1e-5 * scores[1:].abs()).all() and (fall[:8] < 0).all()


def test_missing_numbers_are_not_hidden() -> None:
    density, places = fitted("tied", dtype="float32"), draw((5, 6)).float()
    for bad in (torch.nan, torch.inf):
        places[0, 2, 3, 1] = bad
        scores = found(density, places, (20, 24))
        vector = density.log_prob(LatentMap(places, 1, (20, 24)).band(slice(0, 1), 0, 20), density.classes)
        assert torch.equal(scores.isnan(), vector.isnan()) and int(scores.isnan().any(1).sum()) == 8 * 8


# What is offered, and errors


def test_who_interpolates() -> None:
    assert fitted("full").interpolates and fitted("tied").interpolates
    assert not GaussianMixture(2).interpolates
    y = torch.arange(400) % 2
    z = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    assert not GaussianMixture(1, covariance="diag").fit(z, y).interpolates
    assert not GaussianMixture(16, covariance="tied", min_samples=1, max_iter=1000).fit(z, y).interpolates
    assert not copy.deepcopy(fitted("full")).half().interpolates
    again = GaussianMixture.from_config(fitted("tied").config())
    again.load_state_dict(fitted("tied").state_dict())
    assert torch.equal(found(again, draw((2, 3)), (4, 6)), found(fitted("tied"), draw((2, 3)), (4, 6)))


def test_errors() -> None:
    places = lattice(draw((2, 2)), (4, 4))
    with pytest.raises(RuntimeError, match="is not fitted"):
        list(GaussianMixture(2).log_prob_between(places, torch.tensor([0])))
    with pytest.raises(ValueError, match=r"expected z of shape \(n, h, w, 5\), as fitted, not \(1, 2, 2, 4\)"):
        list(fitted("full").log_prob_between(lattice(draw((2, 2), dim=4), (4, 4)), torch.tensor([0])))
    with pytest.raises(ValueError, match=r"no density was fitted for class \[9\]"):
        list(fitted("full").log_prob_between(places, torch.tensor([0, 9])))
    with pytest.raises(NotImplementedError, match="ConditionalFlow scores vectors only"):
        list(ConditionalFlow().log_prob_between(places, torch.tensor([0.0])))


def test_no_images_and_another_device() -> None:
    density = fitted("full")
    assert found(density, draw((3, 4), images=0), (6, 8)).shape == (0, 4)
    moved = lattice(draw((3, 4)), (6, 8)).to(torch.device("meta"))
    assert moved.device.type == "meta" and isinstance(moved.rows, Axis) and moved.columns.low.device.type == "meta"
