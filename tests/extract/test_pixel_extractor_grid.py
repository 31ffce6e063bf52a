"""Reading maps at the pixels of another grid, against torch's own interpolation; tiles and lattices of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import interpolate, unfold
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels, Reduce
from hidden_uncertainty.density.gaussian import _packed
from hidden_uncertainty.extract import Grid, Lattice
from hidden_uncertainty.extract import pixel_extractor as module
from hidden_uncertainty.extract.pixel_extractor import LatentMap, nearest
from hidden_uncertainty.marginal import Categorical
from hidden_uncertainty.model.tasks import Prediction
from hidden_uncertainty.reduce import Reduction
from hidden_uncertainty.scoring.bayes import DensityMethod, Prior
from hidden_uncertainty.scoring.combination import Combination
from hidden_uncertainty.scoring.head import FittedTerm, Head
from pixel_nets import ALL, Net, images

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
    assert latent.maps.shape[3] == expected.shape[2]
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


@settings(max_examples=40, deadline=None)
@given(before=sizes, after=sizes)
def test_labels_are_those_of_the_nearest_pixel(before: tuple[int, int], after: tuple[int, int]) -> None:
    label = torch.arange(2 * before[0] * before[1]).reshape(2, *before)
    expected = interpolate(label[:, None].double(), after, mode="nearest-exact")[:, 0].long()
    assert torch.equal(nearest(label, after), expected)


class Counting(GaussianMixture):
    """Remembers the most rows that it was asked about at once."""

    most = 0

    def log_prob(self, z: Tensor, support: Tensor) -> Tensor:
        Counting.most = max(Counting.most, len(z))
        return super().log_prob(z, support)


def test_tiles_bound_what_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = Net(), images(3, (40, 50))
    detector = LatentDensity(net, "third", Counting(1), pixels=Pixels(patch=3)).fit([x])
    whole, most = detector(x).epistemic, 0
    real = module.LatentMap.band

    def band(self: Any, images: slice, start: int, stop: int) -> Tensor:
        nonlocal most
        found = real(self, images, start, stop)
        most = max(most, found.numel())
        return found

    monkeypatch.setattr(module.LatentMap, "band", band)
    for cells, rows_at_once in ((7 * 9 * 50 * 85, 80), (7 * 9 * 50 * 3, 3), (1, 1)):  # two images, three rows, one
        monkeypatch.setattr(module, "CELLS", cells)
        most, Counting.most = 0, 0
        torch.testing.assert_close(detector(x).epistemic, whole, rtol=1e-4, atol=1e-3)
        assert most == 7 * 9 * 50 * rows_at_once and Counting.most == 50 * rows_at_once


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Lattice]:
    """The lattices that a mixture was asked about."""
    lattices: list[Lattice] = []
    real = GaussianMixture.log_prob_between

    def spy(self: GaussianMixture, lattice: Lattice, support: Tensor) -> Iterator[Tensor]:
        lattices.append(lattice)
        return real(self, lattice, support)

    monkeypatch.setattr(GaussianMixture, "log_prob_between", spy)
    return lattices


@pytest.mark.parametrize("covariance", ["full", "tied"])
@pytest.mark.parametrize("size", [(14, 19), (16, 24), (1, 30), (41, 9)])
def test_scores_are_those_of_interpolated_vectors(
    covariance: Any, size: tuple[int, int], asked: list[Lattice], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = Net(), images(3, size, seed=1)
    density = GaussianMixture(2, covariance=covariance)
    detector = LatentDensity(net, ["second", "third"], density, pixels=Pixels(**ALL)).fit([images(6)], calibration=[x])
    asked.clear()
    u = detector(x)
    assert len(asked) == 2  # both layers
    monkeypatch.setattr(GaussianMixture, "interpolates", False)
    v = detector(x)
    assert len(asked) == 2
    for layer in ("second", "third"):
        for field in ("epistemic", "aleatoric", "log_aleatoric"):
            one, two = getattr(u.layers[layer], field), getattr(v.layers[layer], field)
            assert one.shape == two.shape == (3, *size) and one.dtype == two.dtype
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ("first", {}),  # as many places as pixels
        ("third", {"pixels": Pixels("latent", **ALL)}),
        ("third", {"pixels": Pixels(patch=3, **ALL)}),
        ("third", {"max_dim": 3}),  # principal components, which leave a residual
        ("third", {"density": GaussianMixture(1, covariance="diag")}),
    ],
)
def test_other_rows_are_scored_as_vectors(layer: str, options: dict[str, Any], asked: list[Lattice]) -> None:
    given: dict[str, Any] = {"density": GaussianMixture(1), "pixels": Pixels(**ALL), **options}
    detector = LatentDensity(Net(), layer, **given).fit([images(60)])
    assert detector(images(2, seed=1)).epistemic.isfinite().all()
    assert not asked


@pytest.mark.parametrize(
    ("places", "size", "patch", "there"),
    [
        ((4, 4), (8, 8), 1, True),
        ((4, 4), (8, 4), 1, True),
        ((4, 4), (8, 8), 3, False),
        ((4, 4), (4, 4), 1, False),
        ((8, 8), (4, 4), 1, False),  # fewer pixels than places
        ((8, 2), (4, 8), 1, True),
    ],
)
def test_maps_that_are_worth_it(places: tuple[int, int], size: tuple[int, int], patch: int, there: bool) -> None:
    assert (LatentMap(torch.zeros(1, *places, 2), patch, size).lattice is not None) == there


def test_a_map_of_other_channels_is_an_error() -> None:
    head, grid = scene((3, 4), (6, 8))
    grid.latents["layer"].maps = grid.latents["layer"].maps[..., :3]
    with pytest.raises(ValueError, match=r"layer 'layer' gave \(n, 4\) when fitted and \(n, 3\) now"):
        head.score(grid)


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor, in bytes."""

    most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                self.most = max(self.most, leaf.numel() * leaf.element_size())
        return found


def scene(places: tuple[int, int], size: tuple[int, int]) -> tuple[Head, Grid]:
    """A head with a mixture of 3 classes in 4 dimensions, and one image."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    z = torch.randn(300, 4, generator=random) + y[:, None]
    reduction = Reduction(Reduce(), "layer", (4,))
    density = GaussianMixture(2, max_iter=500).fit(z, y)
    prior = Prior()
    prior.marginal = Categorical().fit(y, classes=3)
    term = FittedTerm(reduction, DensityMethod(density, prior))
    head = Head({"layer": term}, Combination("last", ["layer"]))
    latent = LatentMap(torch.randn(1, *places, 4, generator=random), 1, size)
    prediction = Prediction(torch.zeros(1, *size, dtype=torch.uint8), 3)
    parts: Any = {"latents": {"layer": latent}, "reductions": {"layer": reduction}}
    return head, Grid(prediction=prediction, pixels=Pixels(), **parts)


def test_memory_is_bounded_for_large_images(monkeypatch: pytest.MonkeyPatch, asked: list[Lattice]) -> None:
    head, grid = scene((256, 512), (1024, 2048))
    monkeypatch.setattr(_packed, "BAND", 1 << 20)
    with Largest() as seen:
        scores = head.score(grid)["layer"]
    assert len(asked) == 1 and scores.epistemic.shape == (1, 1024, 2048)
    assert seen.most == 4 * 1024 * 2048  # that of a score


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_a_gpu_gives_the_scores_of_a_cpu(covariance: Any, asked: list[Lattice]) -> None:
    x, density = images(3, (16, 24), seed=1), GaussianMixture(2, covariance=covariance)
    detector = LatentDensity(Net(), "third", density, pixels=Pixels(**ALL)).fit([images(6)])
    one, two = detector(x), detector.to("cuda")(x.cuda())
    assert len(asked) == 2 and asked[1].places.is_cuda
    torch.testing.assert_close(two.epistemic.cpu(), one.epistemic, rtol=1e-5, atol=1e-5)
