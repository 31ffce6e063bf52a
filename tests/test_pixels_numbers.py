"""`LatentDensity` for every pixel: outputs of other shapes, numbers, and what cannot be."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from hidden_uncertainty import JointMixture, LatentDensity, Pixels, Regression
from hidden_uncertainty.density import Density
from hidden_uncertainty.inference import infer
from pixel_nets import ALL, PLAIN, Net, images, latent, masked, reference, rows


class Last(nn.Module):
    """Channels last inside, as Swin has them; two classes by a single logit; several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = Net(1), nn.Identity()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = self.net.first(x)
        return {"mask": self.net(x)[:, 0], "hidden": self.last(first.permute(0, 2, 3, 1))}


def test_channels_last_single_logits_and_dictionaries() -> None:
    x = images(6)
    options: dict[str, Any] = {"pixels": Pixels(**ALL), "task": "classification", "output": "mask"}
    model = Last()
    one = LatentDensity(model, "net.first", PLAIN, **options)
    with pytest.raises(RuntimeError, match="called more than once"):
        one.fit([x])
    model.net.first = copy.deepcopy(model.net.first)
    u = LatentDensity(model, "last", PLAIN, reduce="tokens", **options).fit([x])(x)
    with torch.no_grad():
        z, y = rows(model.net.first(x), (14, 19)), (model.net(x)[:, 0] > 0).long()
    assert torch.equal(u.prediction, y) and 0 < float(y.float().mean()) < 1
    epistemic, _ = reference(z, y.flatten(), y.flatten().bincount(), z)
    np.testing.assert_allclose(u.epistemic.flatten().numpy(), epistemic, rtol=1e-4, atol=2e-3)


class Depth(Net):
    """A number a pixel, positive, and a variance for those who ask."""

    def forward(self, x: Tensor) -> Tensor:
        raw = super().forward(x)
        return torch.cat([2 + torch.tanh(raw[:, :1]), raw[:, 1:].exp()], 1)


@pytest.fixture(scope="module")
def depth() -> tuple[Depth, LatentDensity]:
    net = Depth(1)
    x, unseen = images(40, (10, 12)), images(100, (10, 12), seed=1)
    detector = LatentDensity(net, "third", pixels=Pixels(per_class=40, share=0.1), condition="label")
    detector.fit([(x, truth(net, x))], calibration=[(unseen, truth(net, unseen, 1))])
    return net, detector


def truth(net: Net, x: Tensor, seed: int = 0) -> Tensor:
    """Noisy labels, some of them missing."""
    with torch.no_grad():
        y = net(x)[:, 0]
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
    y = y + 0.2 * noise
    y[:, :2] = torch.nan
    return y


def test_numbers_a_pixel_are_those_of_the_density_and_marginal_by_hand(depth: tuple[Depth, LatentDensity]) -> None:
    net, detector = depth
    assert detector.extractor.task is not None and detector.extractor.task.name == "regression"
    assert detector.head is not None
    part, marginal = detector.head.layers["third"], detector.head.marginal
    assert isinstance(part.density, JointMixture)
    x = images(3, (10, 12), seed=5)
    u = detector(x)
    maps, output = latent(net, x, "third")
    nodes = marginal.nodes(output[:1, 0, 0, 0])
    assert nodes.log_volume is not None
    log_likelihood = part.density.log_prob(rows(maps, (10, 12)).float(), nodes.points)
    by_hand = infer(log_likelihood, nodes.log_weight, nodes.log_volume)
    torch.testing.assert_close(u.epistemic.flatten(), -by_hand.log_evidence, rtol=1e-4, atol=1e-3)
    assert u.aleatoric is not None and u.expected_error is not None and u.log_aleatoric is None
    torch.testing.assert_close(u.aleatoric.flatten(), by_hand.entropy, rtol=1e-3, atol=1e-3)
    assert torch.equal(u.prediction, output[:, 0]) and u.expected_error.shape == (3, 10, 12)
    found = detector.distribution(x)
    assert len(found) == 360 and torch.equal(found.prediction, u.prediction.flatten())
    torch.testing.assert_close(found.log_mass, by_hand.log_posterior, rtol=1e-3, atol=1e-2)


def test_the_marginal_of_numbers_is_that_of_all_pixels(depth: tuple[Depth, LatentDensity]) -> None:
    net, detector = depth
    x = images(40, (10, 12))
    features = detector.extract([(x, truth(net, x))])
    assert features.population is not None and len(features) == 40 * 40 and features.label is not None
    valid = truth(net, x)[:, 2:].flatten()
    assert torch.equal(features.population.values.sort().values, valid.sort().values)
    fitted = LatentDensity(net, "third", pixels=Pixels(), condition="label", marginal="gaussian").fit_features(features)
    assert fitted.head is not None
    marginal: Any = fitted.head.marginal
    assert float(marginal.mean) == pytest.approx(float(valid.mean()), rel=1e-5)
    assert float(features.label.mean()) != pytest.approx(float(valid.mean()), rel=1e-3)


def test_intervals_hold_all_but_a_share_of_an_images_pixels(depth: tuple[Depth, LatentDensity]) -> None:
    net, detector = depth
    x = images(300, (10, 12), seed=7)
    y = truth(net, x, 3)
    low, high = detector.interval(detector(x), coverage=0.8)
    outside = (((y < low) | (y > high)) & ~y.isnan()).flatten(1).sum(1) / (10 * 12 - 24)
    # 100 calibration images: deviation of the rate 0.04.
    assert (outside <= 0.1).float().mean().item() == pytest.approx(0.8, abs=0.12)


def test_a_variance_of_the_networks_own_comes_along() -> None:
    net, x = Depth(2), images(12)
    task = Regression(spread="columns")
    detector = LatentDensity(net, "third", pixels=Pixels("latent", per_class=20), task=task).fit([x])
    u, output = detector(x), interpolate(net(x), (4, 5), mode="bilinear").detach()
    assert u.variance is not None
    torch.testing.assert_close(u.prediction, output[:, 0])
    torch.testing.assert_close(u.variance, output[:, 1])
    with pytest.raises(ValueError, match=r"a number a pixel is \(n, 1, H, W\) .* gave \(n, 2, 14, 19\)"):
        LatentDensity(net, "third", pixels=Pixels(), task="regression").fit([x])


class Pooled(Net):
    """A layer without a map."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        self.pool(x.mean((2, 3)))
        return super().forward(x)


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        ("third", {}, r"gave \(n, 4, 14, 19\). If it predicts a class for every pixel, .* pixels=Pixels\(\)"),
        ("third", {"task": "regression"}, r"predicts one for every pixel, use LatentDensity with pixels=Pixels\(\)"),
        ("pool", {"pixels": Pixels()}, r"layer 'pool' gave \(n, 3\), which is no map"),
        ("third", {"pixels": Pixels(), "reduce": "token"}, "with pixels= every place is taken"),
    ],
)
def test_what_cannot_be(layer: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LatentDensity(Pooled(), layer, **{"task": "classification", **options}).fit([images(4)])


def test_pixels_are_said_by_pixels() -> None:
    with pytest.raises(TypeError, match=r"pixels must be Pixels\(...\) or None, not True"):
        LatentDensity(Net(), "third", pixels=True)  # type: ignore[arg-type]


def test_labels_for_all_batches_or_for_none() -> None:
    x = images(4)
    with pytest.raises(ValueError, match="some batches of the loader have labels and others have none"):
        LatentDensity(Net(), "third", pixels=Pixels()).fit([(x, masked(x)), x])


def test_networks_without_maps_are_no_pixels() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match=r"the network gave \(n, 4\). Leave pixels= out"):
        LatentDensity(net, "0", pixels=Pixels(), task="classification").fit([images(4)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resolution": "input"}, "resolution must be one of"),
        ({"patch": 2}, "patch must be odd"),
        ({"per_class": 0}, "per_class must be a whole number of at least 1"),
        ({"share": 1.0}, "share is a share of pixels"),
        ({"ignore": ("void",)}, "ignore takes label values"),
        ({"ignore": float("nan")}, "labels of NaN are ignored anyway"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pixels(**options)


def test_a_larger_latent_map_than_the_output_is_read_at_its_pixels() -> None:
    """An output of half the size of the layer: bilinear, as everywhere."""

    class Small(Net):
        def forward(self, x: Tensor) -> Tensor:
            return interpolate(super().forward(x), (5, 6), mode="bilinear")

    net, x = Small(), images(20)
    u = LatentDensity(net, "first", PLAIN, pixels=Pixels(**ALL)).fit([x])(x)
    maps, output = latent(net, x, "first")
    z, y = rows(maps, (5, 6)), output.argmax(1).flatten()
    epistemic, _ = reference(z, y, y.bincount(), z)
    np.testing.assert_allclose(u.epistemic.flatten().numpy(), epistemic, rtol=1e-4, atol=2e-3)


def test_densities_are_any_that_keep_the_contract() -> None:
    """One that knows nothing of pixels: it sees rows, and at most 4,096 at a time."""
    seen: list[torch.Size] = []

    class Flat(Density):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("unused", torch.zeros(1))

        def fit(self, z: Tensor, y: Tensor, *, progress: bool | None = None) -> Flat:
            seen.append(z.shape)
            return self

        def log_prob(self, z: Tensor, support: Tensor) -> Tensor:
            seen.append(z.shape)
            return -z.square().sum(1, keepdim=True).expand(-1, len(support))

        def config(self) -> dict[str, Any]:
            return {}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Flat:
            return cls()

    net, x = Net(), images(2, (70, 80))
    u = LatentDensity(net, "third", Flat(), pixels=Pixels(per_class=9)).fit([x])(x)
    assert u.epistemic.shape == (2, 70, 80) and all(shape[0] <= 4096 and shape[1] == 7 for shape in seen)
