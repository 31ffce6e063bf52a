"""Which pixels are drawn of a loader's images, which are counted, and which loaders and networks are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels
from hidden_uncertainty.extract.pixels import Resolution
from hidden_uncertainty.extract.reader import chosen
from hidden_uncertainty.model.batches import unpack
from pixel_nets import ALL, PLAIN, Net, images, latent, masked, rows


def test_a_balanced_sample_is_fitted_and_all_pixels_are_counted() -> None:
    net, x = Net(), images(9)
    label = masked(x)
    detector = LatentDensity(net, "first", GaussianMixture(1), pixels=Pixels(per_class=6, reservoir=10**6))
    features = detector.extract(list(zip(x.split(4), label.split(4), strict=True)))
    maps, output = latent(net, x, "first")
    prediction, valid = output.argmax(1), label != 255
    expected = torch.stack([p[v].bincount(minlength=4) for p, v in zip(prediction, valid, strict=True)])  # (images, C)
    drawn = expected.sum(0).minimum(6 * (expected > 0).sum(0))
    assert features.prediction.bincount(minlength=4).tolist() == drawn.tolist()
    assert not torch.equal(drawn, expected.clamp(max=6).sum(0))  # which the cap alone would give
    assert features.population.values.tolist() == expected.sum(0).tolist()
    assert not bool((features.label == 255).any())
    # Every row is a pixel of its class, none twice.
    whole = rows(maps, (14, 19)).float()
    nearest = torch.cdist(features.z["first"], whole).argmin(1)
    assert len(nearest.unique()) == len(nearest)
    assert torch.equal(prediction.flatten()[nearest], features.prediction) and bool(valid.flatten()[nearest].all())
    assert torch.equal(label.flatten()[nearest], features.label)
    detector.fit_features(features)
    marginal = detector.fitted_marginal
    torch.testing.assert_close(marginal.log_prob.exp(), expected.sum(0) / expected.sum())


def test_the_reservoir_bounds_what_is_fitted_and_says_what_is_lost() -> None:
    net, x = Net(), images(30)
    detector = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels(reservoir=400), seed=1)
    features = detector.extract(x.split(7))
    assert len(features) == 400
    detector.fit_features(features)
    with pytest.warns(UserWarning, match=r"class \[1\] has .* none of which is in the reservoir"):
        detector.fit_features(features[features.prediction != 1])
    marginal = detector.fitted_marginal
    counts = features.population.values.clone()
    counts[1] = 0
    torch.testing.assert_close(marginal.log_prob.exp(), counts / counts.sum())
    assert bool(detector(x[:2]).epistemic.isfinite().all())


def test_the_same_whatever_the_batch_size_and_the_network_runs_once() -> None:
    net, x = Net(), images(7)
    pixels = Pixels(per_class=20, reservoir=300)
    before = torch.get_rng_state()
    found = [
        LatentDensity(net, "third", PLAIN, pixels=pixels, max_dim=3, task="classification").fit(x.split(size))
        for size in (1, 3, 7)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert net.calls == 7 + 3 + 1
    one, *others = [detector(x[:2]).epistemic for detector in found]
    for other in others:
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found[0](x[1:2]).epistemic, one[1:], rtol=1e-6, atol=1e-5)
    seeded = LatentDensity(net, "third", PLAIN, pixels=pixels, max_dim=3, task="classification", seed=5).fit([x])
    assert not torch.allclose(seeded(x[:2]).epistemic, one, atol=1e-3)


def test_principal_components_are_those_of_the_drawn_rows() -> None:
    net, x = Net(), images(5)
    options: dict[str, Any] = {"pixels": Pixels(per_class=30), "task": "classification"}
    whole = LatentDensity(net, "third", max_dim=None, **options).extract([x]).z["third"]
    reduced = LatentDensity(net, "third", max_dim=2, **options).extract([x])
    centred = whole - whole.mean(0)
    basis = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    torch.testing.assert_close(reduced.z["third"].abs(), (centred @ basis.T).abs(), rtol=1e-3, atol=1e-3)
    lost = (centred - centred @ basis.T @ basis).square().sum(1)
    torch.testing.assert_close(reduced.residual["third"], lost, rtol=1e-2, atol=1e-3)


def test_images_without_pixels_that_count_are_left_out() -> None:
    net, x = Net(), images(6)
    label = masked(x)
    label[2] = 255
    pixels = Pixels(**ALL)
    one = LatentDensity(net, "third", PLAIN, pixels=pixels).fit([(x, label)], calibration=[(x, label)])
    keep = torch.tensor([0, 1, 3, 4, 5])
    two = LatentDensity(net, "third", PLAIN, pixels=pixels).fit([(x[keep], label[keep])])
    torch.testing.assert_close(one(x).epistemic, two(x).epistemic, rtol=1e-5, atol=1e-4)
    assert one.head.terms["third"].calibration is not None
    assert len(one.head.terms["third"].calibration.scores) == 5
    nothing = [(x, torch.full((6, 14, 19), 255))]
    with pytest.raises(ValueError, match="no pixel counts"):
        LatentDensity(net, "third", pixels=pixels).fit(nothing)
    with pytest.raises(ValueError, match="nothing to calibrate with"):
        two.calibrate(nothing)
    assert two.calibrated is None


def test_the_holdout_is_whole_images() -> None:
    net, x = Net(), images(60, (6, 7))
    detector = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels(), task="classification")
    with pytest.warns(UserWarning, match="without their guarantee"):
        detector.fit(x.split(16), holdout=0.3)
    apart = chosen(unpack(x), 0.3)
    assert detector.calibrated == "holdout"
    calibration = detector.head.terms["third"].calibration
    assert len(calibration.scores) == int(apart.sum()) > 5
    by_hand = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels(), task="classification")
    counts = by_hand.extract([x[~apart]]).population
    marginal = detector.fitted_marginal
    torch.testing.assert_close(marginal.log_prob.exp(), counts.values / counts.values.sum())
    scores = torch.stack([s.flatten().sort().values[-1] for s in detector(x[apart]).epistemic])  # 1 % of 42 is none
    torch.testing.assert_close(calibration.scores, scores.sort().values)
    with pytest.raises(TypeError, match="can be read only once"):
        detector.fit(iter(x.split(16)), holdout=0.3)


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
        ("third", {"task": "regression"}, r"predicts one for every pixel, pass pixels=Pixels\(\)"),
        ("pool", {"pixels": Pixels()}, r"layer 'pool' gave \(n, 3\), which is no map"),
        ("third", {"pixels": Pixels(), "reduce": "token"}, "with pixels= all are taken"),
    ],
)
def test_what_cannot_be(layer: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LatentDensity(Pooled(), layer, **{"task": "classification", **options}).fit([images(4)])


def test_labels_for_all_batches_or_for_none() -> None:
    x = images(4)
    with pytest.raises(ValueError, match="some batches of the loader have labels and others have none"):
        LatentDensity(Net(), "third", pixels=Pixels()).fit([(x, masked(x)), x])


def test_networks_without_maps_are_no_pixels() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match=r"the network gave \(n, 4\). Leave pixels= out"):
        LatentDensity(net, "0", pixels=Pixels(), task="classification").fit([images(4)])


@pytest.mark.parametrize(("patch", "resolution"), [(1, "output"), (3, "output"), (1, "latent")])
def test_pixels_that_a_place_reaches_which_is_not_finite_are_marked(patch: int, resolution: Resolution) -> None:
    """Against the same interpolation of a map of ones where places are NaN."""
    net, x = Net(), images(30)
    pixels = Pixels(resolution=resolution, patch=patch)
    detector = LatentDensity(net, ["second", "third"], PLAIN, pixels=pixels, max_dim=None, task="classification").fit(
        [x]
    )
    clean = detector.read(x[:3])
    maps, _ = latent(net, x[:3], "second")
    handle = net.second.register_forward_hook(lambda module, inputs, output: spoil(output))
    reading = detector.read(x[:3])
    with pytest.raises(
        ValueError, match=r"layer 'second' gave NaN or infinite activations for 1 of 3 inputs in batch 0"
    ):
        detector.fit([x[:3]])
    handle.remove()
    wrong = torch.zeros_like(maps[:, :1])
    wrong[1, :, 2, 4] = 1
    size = reading.prediction.value.shape[1:]
    expected = (rows(wrong, size, patch) > 0).any(1).reshape(reading.prediction.value.shape)
    reached = reading.unusable & ~expected  # the layers behind and the outputs see them too
    assert bool((reading.unusable | ~expected).all()) and not bool(reading.unusable[[0, 2]].any())
    assert 0 < int(expected.sum()) < int(reading.unusable[1].sum()) and bool(reached[1].any())
    for name in ("second", "third"):
        one, two = (torch.cat([row.z for row in some.rows(name)]) for some in (clean, reading))
        assert bool(two.isfinite().all())
        assert torch.equal(one[~reading.unusable.flatten()], two[~reading.unusable.flatten()])


def spoil(maps: Tensor) -> Tensor:
    maps = maps.clone()
    maps[1, 3, 2, 4] = torch.nan
    return maps


def test_no_images() -> None:
    net, x = Net(), images(30)
    with pytest.raises(ValueError, match="no pixel counts: no image came"):
        LatentDensity(net, "third", PLAIN, pixels=Pixels(), task="classification").fit([x[:0]])
    for resolution, size in (("output", (14, 19)), ("latent", (4, 5))):
        detector = LatentDensity(net, "third", PLAIN, pixels=Pixels(resolution), task="classification").fit([x[:0], x])
        u = detector(x[:0])
        assert u.prediction.shape == u.epistemic.shape == u.aleatoric.shape == (0, *size)
    with pytest.raises(ValueError, match="nothing to calibrate with: no input came"):
        detector.calibrate([x[:0]])
