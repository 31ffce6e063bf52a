"""Pixels between the places of a layer's map are scored from these: when, and that it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels
from hidden_uncertainty._pixel_grid import LatentMap
from hidden_uncertainty._pixel_reading import Grid
from hidden_uncertainty.density import _lattice
from hidden_uncertainty.density._lattice import Lattice
from hidden_uncertainty.head import Head, LayerHead
from hidden_uncertainty.marginal import Categorical
from hidden_uncertainty.reduce import Reduce, Reduction
from hidden_uncertainty.tasks import Prediction
from pixel_nets import ALL, Net, images


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
    head = Head({"layer": LayerHead(reduction, density)}, Categorical().fit(y, classes=3))
    latent = LatentMap(torch.randn(1, *places, 4, generator=random), 1, size)
    prediction = Prediction(torch.zeros(1, *size, dtype=torch.uint8), 3)
    return head, Grid(prediction, {"layer": latent}, Pixels(), None, {"layer": reduction})


def test_memory_is_bounded_for_large_images(monkeypatch: pytest.MonkeyPatch, asked: list[Lattice]) -> None:
    head, grid = scene((256, 512), (1024, 2048))
    monkeypatch.setattr(_lattice, "BAND", 1 << 20)
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
    assert len(asked) == 2 and asked[1].nodes.is_cuda
    torch.testing.assert_close(two.epistemic.cpu(), one.epistemic, rtol=1e-5, atol=1e-5)
