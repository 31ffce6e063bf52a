"""Rotation and noise, against scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from hidden_uncertainty.demo import add_noise, rotate


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(
    degrees=st.floats(-400, 400),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    channels=st.sampled_from([1, 3]),
)
def test_rotation_is_that_of_scipy(degrees: float, height: int, width: int, channels: int) -> None:
    images = some(2, channels, height, width)
    expected = ndimage.rotate(
        images.numpy(), degrees, axes=(3, 2), reshape=False, order=1, mode="grid-constant", prefilter=False
    )
    np.testing.assert_allclose(rotate(images, degrees).numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("size", [8, 28, 32])
@pytest.mark.parametrize("quarters", [0, 1, 2, 3, 4])
def test_quarter_turns_are_counter_clockwise(size: int, quarters: int) -> None:
    images = some(3, 2, size, size).float()
    turned = rotate(images, 90 * quarters)
    assert turned.dtype == torch.float32
    torch.testing.assert_close(turned, images.rot90(quarters, dims=(2, 3)), atol=2e-5, rtol=0)


def test_no_rotation_of_eight_pixels_is_exact() -> None:
    images = some(3, 1, 8, 8).float()
    assert torch.equal(rotate(images, 0), images)


def test_noise_has_the_deviation_asked_for_and_no_clipping() -> None:
    noisy = add_noise(torch.full((40, 3, 32, 32), 0.5), 2.0, seed=1)
    assert noisy.mean().item() == pytest.approx(0.5, abs=0.02)
    assert noisy.std().item() == pytest.approx(2.0, rel=0.01)
    assert noisy.min() < 0
    assert noisy.max() > 1


def test_noise_of_one_seed_differs_only_by_its_scale() -> None:
    images = some(4, 1, 8, 8)
    small, large = (add_noise(images, deviation, seed=5) - images for deviation in (0.1, 0.4))
    torch.testing.assert_close(4 * small, large)
    assert not torch.equal(small, add_noise(images, 0.1, seed=6) - images)
    assert torch.equal(add_noise(images, 0.0), images)


def test_noise_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    add_noise(some(2, 1, 8, 8), 1.0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_errors_say_what_came() -> None:
    with pytest.raises(ValueError, match=r"got \(2, 8, 8\) of torch.float64"):
        rotate(some(2, 8, 8), 10)
    with pytest.raises(ValueError, match=r"of torch.uint8"):
        add_noise(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), 0.1)
    with pytest.raises(ValueError, match="zero or more, got -1"):
        add_noise(some(1, 1, 8, 8), -1)
