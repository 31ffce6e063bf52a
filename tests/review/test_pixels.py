"""What a density of pixels is fitted to."""

import pytest
import torch
from torch import Tensor, nn

from found import found
from hidden_uncertainty import LatentDensity, Pixels


class Scores(nn.Module):
    """The first channel is the layer, the others are scores of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        self.hidden(x[:, :1])
        return x[:, 1:]


@found(
    "A20",
    "a class with many small objects and a large one that looks different",
    "p(ŷ) counts pixels, p(z|ŷ) at most `per_class` of an image: small objects count too much",
    "both count pixels",
)
def test_pixels_of_large_and_small_objects_count_alike():
    x = torch.randn(41, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    x[:, 1:] = torch.tensor([1.0, 0.0])[:, None, None]
    x[:40, 1:, :3, :5] = torch.tensor([0.0, 1.0])[:, None, None]  # 15 pixels in each of 40 images, around 0
    x[40, 1:] = torch.tensor([0.0, 1.0])[:, None, None]
    x[40, :1] += 10  # and all of another, around 10
    pixels = Pixels(per_class=50, reservoir=2000)
    features = LatentDensity(Scores(), "hidden", pixels=pixels, task="classification").extract(x.split(10))
    z = features.z["hidden"][features.prediction == 1]
    truth = 10 * 48 * 48 / (48 * 48 + 40 * 15)
    # Deviation of one pixel about 4.
    assert float(z.mean()) == pytest.approx(truth, abs=4 * 4 / len(z) ** 0.5)
