"""Reading maps at the pixels of another grid, against torch's own interpolation and unfolding of whole maps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import interpolate, unfold

from hidden_uncertainty._pixel_grid import LatentMap, nearest

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def whole(maps: Tensor, patch: int, size: tuple[int, int]) -> Tensor:
    """All vectors, (n, H·W, C·k²), by unfolding and interpolating everything."""
    n, _, h, w = maps.shape
    unfolded = unfold(maps, patch, padding=patch // 2).reshape(n, -1, h, w)
    return interpolate(unfolded, size, mode="bilinear", align_corners=False).flatten(2).transpose(1, 2)


@settings(max_examples=60, deadline=None)
@given(places=sizes, size=sizes, patch=st.sampled_from([1, 3, 5]), data=st.data())
def test_bands_and_pixels_are_those_of_the_whole_map(
    places: tuple[int, int], size: tuple[int, int], patch: int, data: st.DataObject
) -> None:
    """Sizes that do not divide, maps larger than the output, a single place: all of them."""
    maps = torch.randn(2, 3, *places, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = whole(maps, patch, size)
    latent = LatentMap(maps.permute(0, 2, 3, 1).contiguous(), patch, size)
    assert latent.width == expected.shape[2]
    image, start = data.draw(st.integers(0, 1)), data.draw(st.integers(0, size[0] - 1))
    stop = data.draw(st.integers(start + 1, size[0]))
    band = latent.band(slice(image, image + 1), start, stop)
    torch.testing.assert_close(band, expected[image, start * size[1] : stop * size[1]], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(latent.band(slice(0, 2), 0, size[0]), expected.flatten(0, 1), rtol=1e-10, atol=1e-10)
    pixels = torch.tensor(data.draw(st.lists(st.integers(0, size[0] * size[1] - 1), max_size=5)), dtype=torch.long)
    torch.testing.assert_close(latent.at(image, pixels), expected[image, pixels], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_maps_are_interpolated_in_single(dtype: torch.dtype) -> None:
    maps = torch.randn(1, 4, 5, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    latent = LatentMap(maps.permute(0, 2, 3, 1).contiguous(), 1, (17, 13))
    found = latent.band(slice(0, 1), 0, 17)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, whole(maps.float(), 1, (17, 13))[0], rtol=1e-5, atol=1e-5)


def test_some_images_of_a_batch() -> None:
    maps = torch.randn(3, 2, 2, 4, generator=torch.Generator().manual_seed(0))
    latent = LatentMap(maps, 3, (4, 4))
    assert torch.equal(latent.take(torch.tensor([2])).band(slice(0, 1), 1, 3), latent.band(slice(2, 3), 1, 3))
    assert len(latent.maps) == 3


@settings(max_examples=40, deadline=None)
@given(before=sizes, after=sizes)
def test_labels_are_those_of_the_nearest_pixel(before: tuple[int, int], after: tuple[int, int]) -> None:
    label = torch.arange(2 * before[0] * before[1]).reshape(2, *before)
    expected = interpolate(label[:, None].double(), after, mode="nearest-exact")[:, 0].long()
    assert torch.equal(nearest(label, after), expected)
