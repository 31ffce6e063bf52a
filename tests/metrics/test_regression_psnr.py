"""Peak signal-to-noise ratio against its definition in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hidden_uncertainty.metrics.regression import psnr


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1.0, 255.0]), st.sampled_from([(7,), (3, 1, 4, 4)]))
def test_it_is_the_definition(seed: int, peak: float, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(seed)
    x, made = peak * random.random(shape), peak * random.random(shape)
    expected = 20 * math.log10(peak) - 10 * math.log10(np.mean((x - made) ** 2))
    assert psnr(x, made, peak) == pytest.approx(expected, rel=1e-12)
    assert psnr(torch.as_tensor(x), torch.as_tensor(made), peak=peak) == pytest.approx(expected, rel=1e-12)


def test_a_tenth_of_the_error_is_twenty_decibels_more() -> None:
    x = torch.zeros(4, 4)
    assert psnr(x, x + 0.01) - psnr(x, x + 0.1) == pytest.approx(20, abs=1e-5)
    assert psnr(x, x) == math.inf


@pytest.mark.parametrize(
    ("x", "made", "peak", "match"),
    [
        ([1.0], [1.0, 2.0], 1.0, r"same shape, got \(1,\) and \(2,\)"),
        ([1.0], [1.0], 0.0, "peak must be positive"),
        ([1.0], [1.0], math.inf, "peak must be positive"),
        ([math.inf], [1.0], 1.0, "x holds 1 infinite among 1 values"),
        ([1.0], [math.nan], 1.0, "reconstruction holds 1 NaN"),
        ([], [], 1.0, "x is empty"),
    ],
)
def test_errors_say_what_is_wrong(x: list[float], made: list[float], peak: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        psnr(x, made, peak)
