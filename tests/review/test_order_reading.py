"""What is read of a loader, in another order."""

import torch
from torch import Tensor, nn

from found import found
from hidden_uncertainty import LatentDensity, Pixels, Reduce


def _network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 3, 1))


def _sorted(z: Tensor) -> Tensor:
    return z[z[:, 0].argsort()]


@found(
    "A16",
    "pixels drawn from the same images in another order",
    "others: an image's place in the loader decides",
    "the same: its content decides",
)
def test_pixels_in_another_order():
    x = torch.randn(20, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    detector = LatentDensity(_network(), "0", pixels=Pixels(per_class=5, reservoir=200), task="classification")
    one, two = (detector.extract(batches).z["0"] for batches in (x.split(4), x.flip(0).split(7)))
    assert one.shape == two.shape and torch.allclose(_sorted(one), _sorted(two), atol=1e-5)


@found(
    "A16",
    "the residual of a random projection, for the same inputs in another order",
    "the first batch decides where it ends",
    "all batches decide",
)
def test_residuals_in_another_order():
    x = torch.randn(400, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x *= torch.linspace(0.1, 10, 400)[:, None, None, None]
    scores = []
    for batches in (x.split(50), x.flip(0).split(50)):
        network = nn.Sequential(_network(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        layers = {"0.0": Reduce("project", max_dim=4, residual=True)}
        detector = LatentDensity(network, layers, task="classification")
        detector.extract(batches)
        scores.append(detector.extract([x]).z["0.0"])
    assert torch.allclose(*scores, rtol=1e-6, atol=1e-6)
