"""Variants of images, against numpy, scipy and pillow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from reproduction.datasets.images import flipped, noisy, resized, rotated, unit, white_on_black


def some(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_unit() -> None:
    images = some(2, 3, 5, 5)
    assert np.array_equal(unit(images), images.numpy().astype(np.float32) / np.float32(255))
    floats = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    assert unit(floats) is floats
    with pytest.raises(ValueError, match="int64"):
        unit(torch.zeros(1, 1, 2, 2, dtype=torch.long))


def test_noise_is_in_units_of_white_and_not_clipped() -> None:
    images = some(40, 3, 32, 32)
    noise = noisy(images, 0.5, seed=3) - unit(images)
    assert noise.std().item() == pytest.approx(0.5, rel=0.01) and noise.mean().item() == pytest.approx(0, abs=0.01)
    assert torch.equal(noisy(images, 0.5, seed=3, clip=True), noisy(images, 0.5, seed=3).clamp(0, 1))
    assert torch.equal(noisy(images, 0.5, seed=3), noisy(unit(images), 0.5, seed=3))
    assert not torch.equal(noisy(images, 0.5, seed=3), noisy(images, 0.5, seed=4))


@pytest.mark.parametrize("degrees", [-450, -90, 0, 90, 180.0, 270, 360])
def test_quarter_turns_are_exact(degrees: float) -> None:
    images = some(3, 2, 28, 28)
    expected = np.rot90(images.numpy(), round(degrees / 90), axes=(2, 3)).astype(np.float32) / np.float32(255)
    assert np.array_equal(rotated(images, degrees), expected)


def test_sampling_takes_every_third_pixel_from_the_second() -> None:
    images = some(3, 3, 96, 96)
    assert torch.equal(resized(images, 32, resampling="sample"), unit(images[..., 1::3, 1::3]))


def test_area_is_the_mean_of_what_is_covered() -> None:
    images = some(3, 3, 96, 96)
    expected = images.numpy().reshape(3, 3, 32, 3, 32, 3).mean((3, 5)) / 255
    np.testing.assert_allclose(resized(images, 32, resampling="area"), expected, atol=1e-6)


@pytest.mark.parametrize(("old", "new"), [(96, 32), (105, 28)])
def test_antialiasing_is_that_of_pillow(old: int, new: int) -> None:
    image = pytest.importorskip("PIL.Image")
    images = some(2, 1, old, old)
    ours = resized(images, new)
    for picture, values in zip(images[:, 0].numpy(), ours[:, 0], strict=True):
        theirs = image.fromarray(picture.astype(np.float32)).resize((new, new), image.Resampling.BILINEAR)
        np.testing.assert_allclose(values, np.asarray(theirs) / 255, atol=1e-5)


@pytest.mark.parametrize("resampling", ["antialias", "area", "sample"])
def test_many_images_are_resized_as_one_by_one(resampling: Any) -> None:
    images = some(1030, 1, 9, 9)
    together = resized(images, 3, resampling=resampling)
    assert together.shape == (1030, 1, 3, 3)
    assert torch.equal(
        together[[0, 1023, 1024, 1029]], resized(images[[0, 1023, 1024, 1029]], 3, resampling=resampling)
    )


@pytest.mark.parametrize("resampling", ["antialias", "area", "sample"])
def test_white_on_black(resampling: Any) -> None:
    paper = torch.full((2, 1, 105, 105), 255, dtype=torch.uint8)
    assert not white_on_black(paper, resampling=resampling).any()
    paper[1] = 0
    assert white_on_black(paper, resampling=resampling)[1].min() > 0.999
    images = some(2, 1, 105, 105)
    torch.testing.assert_close(
        white_on_black(images, resampling=resampling), 1 - resized(images, 28, resampling=resampling)
    )
    torch.testing.assert_close(
        white_on_black(unit(images), resampling=resampling), white_on_black(images, resampling=resampling)
    )


def test_images_given_are_not_changed() -> None:
    images = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    for variant in (
        noisy(images, 1.0, clip=True),
        rotated(images, 0),
        rotated(images, 90),
        flipped(images, "vertical"),
        resized(images, 28),
        white_on_black(images),
    ):
        variant.add_(1)
    assert torch.equal(images, before)


def test_flips() -> None:
    images = unit(some(2, 3, 4, 5))
    assert np.array_equal(flipped(images, "horizontal"), images.numpy()[..., ::-1])
    assert np.array_equal(flipped(images, "vertical"), images.numpy()[..., ::-1, :])


def test_errors_say_what_came() -> None:
    with pytest.raises(ValueError, match="got 'nearest'"):
        resized(some(1, 1, 4, 4), 2, resampling="nearest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got \(1, 4, 4\)"):
        resized(some(1, 4, 4), 2)
    with pytest.raises(ValueError, match=r"got \(4, 4\) of"):
        rotated(some(4, 4), 90)
    with pytest.raises(ValueError, match="got 'diagonal'"):
        flipped(some(1, 1, 4, 4), "diagonal")  # type: ignore[arg-type]
