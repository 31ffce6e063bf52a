"""Networks, images and brute force that the tests of pixels share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture as Reference
from torch import Tensor, nn
from torch.nn.functional import interpolate, unfold

from hidden_uncertainty import GaussianMixture

ALL: dict[str, Any] = {"per_class": 10**6, "reservoir": 10**6}
PLAIN = GaussianMixture(1, shrinkage=None, dtype="float64")


class Net(nn.Module):
    """Strides of 1, 2 and 4, a rectifier in place after the last, and an output of the input's size."""

    def __init__(self, outputs: int = 4, seed: int = 18) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = nn.Conv2d(3, 5, 3, padding=1)
            self.second = nn.Conv2d(5, 6, 3, stride=2, padding=1)
            self.third = nn.Conv2d(6, 7, 3, stride=2, padding=1)
            self.act = nn.ReLU(inplace=True)
            self.out = nn.Conv2d(7, outputs, 1)
        with torch.no_grad():
            self.out.weight.mul_(5)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.act(self.third(torch.tanh(self.second(torch.tanh(self.first(x))))))
        return interpolate(self.out(hidden), x.shape[2:], mode="bilinear", align_corners=False)


def images(n: int, size: tuple[int, int] = (14, 19), seed: int = 0, channels: int = 3) -> Tensor:
    """Smooth blobs, so that neighbouring pixels are alike."""
    coarse = torch.randn(n, channels, 5, 5, generator=torch.Generator().manual_seed(seed))
    return 2 * interpolate(coarse, size, mode="bicubic")


def latent(net: Net, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """A layer's maps and the network's output, by hand."""
    kept: list[Tensor] = []
    handle = getattr(net, layer).register_forward_hook(lambda m, i, o: kept.append(o.clone()))
    with torch.no_grad():
        output = net(x)
    handle.remove()
    return kept[0], output


def rows(maps: Tensor, size: tuple[int, int], patch: int = 1) -> Tensor:
    """Vectors of all pixels, (n·H·W, C·k²)."""
    n, _, h, w = maps.shape
    unfolded = unfold(maps.double(), patch, padding=patch // 2).reshape(n, -1, h, w)
    return interpolate(unfolded, size, mode="bilinear", align_corners=False).permute(0, 2, 3, 1).flatten(0, 2)


def masked(x: Tensor, seed: int = 0, classes: int = 4, size: tuple[int, int] | None = None) -> Tensor:
    """Labels with some pixels to ignore."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(x), *(size or x.shape[2:]))
    label = torch.randint(classes, shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.2, 255, label)


def reference(z: Tensor, y: Tensor, counts: Tensor, new: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """-log p(z) and h(y|z) by scikit-learn's Gaussians and numpy's Bayes."""
    around = torch.cat([z[y == c] - z[y == c].mean(0) for c in y.unique()])
    ridge = 1e-6 * float(around.square().mean())  # of PLAIN
    prior = counts.numpy() / int(counts.sum())
    joint = np.stack(
        [
            Reference(1, reg_covar=ridge).fit(z[y == c].numpy()).score_samples(new.numpy()) + np.log(prior[c])
            for c in y.unique().tolist()
        ],
        axis=1,
    )
    evidence = np.logaddexp.reduce(joint, axis=1)
    return -evidence, -(np.exp(joint - evidence[:, None]) * (joint - evidence[:, None])).sum(1)
