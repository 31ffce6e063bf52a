"""`LatentDensity` on networks that predict for every pixel, against brute force over whole maps."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from capture_nets import data_parallel, unchanged
from hidden_uncertainty import GaussianMixture, JointMixture, LatentDensity, Pixels, Reduce, Regression
from hidden_uncertainty.extract.pixels import Resolution
from hidden_uncertainty.scoring.bayes import infer
from pixel_nets import ALL, PLAIN, Net, images, latent, masked, reference, rows


@pytest.mark.parametrize("patch", [1, 3])
@pytest.mark.parametrize("resolution", ["output", "latent"])
def test_scores_are_those_of_brute_force_over_whole_maps(resolution: Resolution, patch: int) -> None:
    """Sizes that do not divide: maps of 4 x 5 places under outputs of 14 x 19 pixels."""
    net, x, new = Net(), images(12 if resolution == "output" else 200), images(2, seed=1)
    label = masked(x)
    pixels = Pixels(resolution=resolution, patch=patch, **ALL)
    detector = LatentDensity(net, "third", PLAIN, pixels=pixels, max_dim=None)
    detector.fit(list(zip(x.split(9), label.split(9), strict=True)))
    u = detector(new)

    (maps, output), (new_maps, new_output) = latent(net, x, "third"), latent(net, new, "third")
    size = (14, 19)
    if resolution == "latent":
        size = (4, 5)
        output, new_output = (interpolate(o, size, mode="bilinear") for o in (output, new_output))
        label = interpolate(label[:, None].float(), size, mode="nearest-exact")[:, 0].long()
    valid, y = (label != 255).flatten(), output.argmax(1).flatten()
    epistemic, aleatoric = reference(
        rows(maps, size, patch)[valid], y[valid], y[valid].bincount(), rows(new_maps, size, patch)
    )
    assert torch.equal(u.prediction, new_output.argmax(1)) and u.prediction.shape == (2, *size)
    assert u.log_aleatoric is not None and u.p_value is None
    np.testing.assert_allclose(u.epistemic.flatten().numpy(), epistemic, rtol=1e-4, atol=2e-3)
    np.testing.assert_allclose(u.aleatoric.flatten().numpy(), aleatoric, rtol=1e-2, atol=1e-4)
    assert u.log_aleatoric.shape == u.epistemic.shape == (2, *size)


def test_a_class_predicted_by_no_pixel_has_no_say() -> None:
    net, x = Net(seed=16), images(20)
    detector = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels()).fit([x])
    marginal = detector.fitted_marginal
    assert marginal.support.tolist() == [0, 2, 3] and len(marginal.log_prob) == 4
    assert bool(detector(5 * x).epistemic.isfinite().all())
    with pytest.raises(ValueError, match="all 2,000 inputs have the same class, 2"):
        LatentDensity(Net(seed=1), "third", pixels=Pixels(per_class=100)).fit([x])


def test_layers_of_several_resolutions_score_as_each_alone() -> None:
    """The strides are 1, 2 and 4; with resolution="latent", all are read on the grid of the last."""
    net, x = Net(), images(5)
    layers = {"first": Reduce(), "second": Reduce(max_dim=3, residual=True), "third": Reduce()}
    together = LatentDensity(net, layers, GaussianMixture(1), pixels=Pixels(**ALL)).fit([x])
    u = together(x)
    for name, reduce in layers.items():
        alone = LatentDensity(net, {name: reduce}, GaussianMixture(1), pixels=Pixels(**ALL)).fit([x])(x)
        torch.testing.assert_close(u.layers[name].epistemic, alone.epistemic, rtol=1e-4, atol=1e-3)
    residual = u.layers["second"].residual
    assert residual.shape == (5, 14, 19) and u.layers["third"].residual is None
    assert torch.equal(u.epistemic, u.layers["third"].epistemic)
    options = {"pixels": Pixels("latent", **ALL), "combine": {"second": 1.0}}
    u = LatentDensity(net, layers, GaussianMixture(1), **options).fit([x])(x)
    assert u.prediction.shape == u.layers["first"].epistemic.shape == u.layers["third"].epistemic.shape == (5, 7, 10)


def test_a_rows_score_is_that_of_its_pixel() -> None:
    net, x = Net(), images(4)
    detector = LatentDensity(net, "second", GaussianMixture(2), pixels=Pixels(**ALL)).fit([x])
    u, of_rows = detector(x), detector.predict_features(detector.extract([x]))
    torch.testing.assert_close(u.epistemic.flatten().sort().values, of_rows.epistemic.sort().values)
    torch.testing.assert_close(detector.predict(x.split(3)).epistemic, u.epistemic, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_thresholds_are_over_images(share: float) -> None:
    """Of new images, at most a share α has more than a share of its pixels above."""
    net, pixels = Net(), Pixels(per_class=10, share=share)
    unseen, new = images(400, (8, 9), seed=1), images(1500, (8, 9), seed=2)
    label = masked(unseen)
    detector = LatentDensity(net, "third", GaussianMixture(1), pixels=pixels).fit(
        images(60, (8, 9)).split(20), calibration=list(zip(unseen.split(100), label.split(100), strict=True))
    )
    assert detector.calibrated == "unseen"
    scores, kept = detector(unseen).epistemic, []
    for image, count in zip(scores, label != 255, strict=True):
        values = image[count].sort(descending=True).values
        kept.append(values[int(share * len(values))])  # so many are allowed above
    calibration = detector.head.terms["third"].calibration
    torch.testing.assert_close(calibration.scores, torch.stack(kept).sort().values)
    for alarm in (0.05, 0.2):
        detector.threshold(alarm)
        u = detector(new)
        above = u.surprising.flatten(1).float().mean(1)
        assert torch.equal(u.surprising, u.p_value <= alarm)
        deviation = math.sqrt(alarm * (1 - alarm) * (1 / 400 + 1 / 1500))  # by both sets of images
        assert (above > share).float().mean().item() == pytest.approx(alarm, abs=3 * deviation)


def test_ignored_pixels_have_no_say_anywhere() -> None:
    """What lies under ignored labels may be anything, even in calibration."""
    net = Net(4)
    x, unseen = images(12), images(40, seed=1)
    label, apart = torch.zeros(12, 14, 19, dtype=torch.long), torch.zeros(40, 14, 19, dtype=torch.long)
    label[:, :, 9:], apart[:, :, 9:] = 7, 255  # half of each image, columns that the kept ones do not reach
    pixels = Pixels(resolution="output", ignore=(7, 255), **ALL)
    found = []
    for junk in (1.0, 30.0):
        train, held = x.clone(), unseen.clone()
        train[..., 15:] *= junk
        held[..., 15:] *= junk
        first = LatentDensity(net, "first", GaussianMixture(1), pixels=pixels, task="classification")
        # The stride of the output is four: its predictions on the left see nothing beyond column 14.
        first.fit([(train, label)], calibration=[(held, apart)])
        found.append((first.threshold(0.1), first(unseen).epistemic))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1])


def test_densities_given_labels() -> None:
    net, x = Net(), images(10)
    label = masked(x)
    detector = LatentDensity(net, "third", PLAIN, pixels=Pixels(**ALL), condition="label").fit([(x, label)])
    maps, _ = latent(net, x, "third")
    valid = (label != 255).flatten()
    z, y = rows(maps, (14, 19)), label.flatten()
    epistemic, aleatoric = reference(z[valid], y[valid], y[valid].bincount(), z)
    u = detector(x)
    np.testing.assert_allclose(u.epistemic.flatten().numpy(), epistemic, rtol=1e-4, atol=2e-3)
    np.testing.assert_allclose(u.aleatoric.flatten().numpy(), aleatoric, rtol=1e-2, atol=1e-4)
    with pytest.raises(ValueError, match=r"condition='label' needs labels \(n, H, W\)"):
        LatentDensity(net, "third", pixels=Pixels(), condition="label", task="classification").fit([x])
    other = LatentDensity(net, "third", pixels=Pixels()).extract([(x, label)])
    with pytest.raises(ValueError, match="drawn and counted by their predictions"):
        detector.fit_features(other)


def test_labels_of_another_size_are_read_at_the_nearest_pixel() -> None:
    net, x = Net(), images(5)
    label = masked(x, size=(28, 38))
    near = interpolate(label[:, None].float(), (14, 19), mode="nearest-exact").long()  # (n, 1, H, W) is fine too
    one, two = (
        LatentDensity(net, "third", PLAIN, pixels=Pixels(**ALL)).fit([(x, y)])(x).epistemic for y in (label, near)
    )
    assert torch.equal(one, two)
    with pytest.raises(ValueError, match=r"labels of pixels are \(n, H, W\), but the loader gave \(5,\)"):
        LatentDensity(net, "third", pixels=Pixels(), task="classification").fit([(x, torch.zeros(5))])


def test_images_of_several_sizes() -> None:
    net = Net()
    batches = [images(3, (14, 19)), images(2, (21, 11), seed=1), images(1, (1, 5), seed=2)]
    detector = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels()).fit(batches, calibration=batches)
    assert [detector(x).epistemic.shape for x in batches] == [(3, 14, 19), (2, 21, 11), (1, 1, 5)]
    with pytest.raises(ValueError, match=r"\(14, 19\) in the first result, \(21, 11\) at position 1. Score batch by"):
        detector.predict(batches)


def test_saved_and_loaded_it_is_the_same(tmp_path: Any) -> None:
    net, x = Net(), images(80)
    pixels = Pixels("latent", patch=3, per_class=40, reservoir=1000, ignore=(0, 255), share=0.1)
    detector = LatentDensity(net, ["second", "third"], GaussianMixture(1), pixels=pixels, max_dim=5, seed=3)
    detector.fit([(x, masked(x))], calibration=[(x, masked(x))])
    detector.threshold(0.5)
    detector.save(tmp_path / "detector.safetensors")
    loaded = LatentDensity.load(tmp_path / "detector.safetensors", copy.deepcopy(net))
    assert loaded.pixels == pixels
    one, two = detector(x), loaded(x)
    for field in ("prediction", "epistemic", "aleatoric", "log_aleatoric", "p_value", "surprising"):
        assert torch.equal(getattr(one, field), getattr(two, field))
    again = loaded.fit([(x, masked(x))], calibration=[(x, masked(x))])(x)
    assert torch.equal(again.epistemic, one.epistemic) and torch.equal(loaded.to("cpu")(x).epistemic, one.epistemic)


def test_a_detector_is_calibrated_anew() -> None:
    net, x, unseen = Net(), images(10), images(30, seed=1)
    detector = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels())
    features = detector.extract([x])
    with pytest.raises(ValueError, match=r"call fit_features\(features\), then calibrate\(unseen_loader\)"):
        detector.fit_features(features, calibration=features)
    detector.fit_features(features)
    assert detector.calibrated is None
    detector.calibrate(unseen.split(8))
    whole = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels()).fit([x], calibration=unseen.split(8))
    assert detector.calibrated == "unseen" and detector.threshold(0.1) == whole.threshold(0.1)


@pytest.mark.parametrize("wrap", [data_parallel, lambda net: torch.compile(net, backend="eager")])
def test_wrapped_models_and_the_model_is_left_alone(wrap: Any) -> None:
    net, x = Net(), images(4)
    expected = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels()).fit([x])(x)
    wrapped = wrap(net)
    with unchanged(net):
        found = LatentDensity(wrapped, "third", GaussianMixture(1), pixels=Pixels()).fit([x])(x)
    torch.testing.assert_close(found.epistemic, expected.epistemic)


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
    """A number per pixel, positive, and a variance for those who ask."""

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


def test_numbers_per_pixel_are_those_of_the_density_and_marginal_by_hand(depth: tuple[Depth, LatentDensity]) -> None:
    net, detector = depth
    assert detector.reader.task.name == "regression"
    density, marginal = detector.fitted_densities["third"], detector.fitted_marginal
    assert isinstance(density, JointMixture)
    x = images(3, (10, 12), seed=5)
    u = detector(x)
    maps, output = latent(net, x, "third")
    given = density.given(rows(maps, (10, 12)).float())
    support = marginal.at(output[:, 0].flatten(), given)
    log_likelihood = given(support.points)
    by_hand = infer(log_likelihood, support.log_weight, support.log_volume)
    torch.testing.assert_close(u.epistemic.flatten(), -by_hand.log_evidence, rtol=1e-4, atol=1e-3)
    assert u.expected_error is not None and u.log_aleatoric is None
    torch.testing.assert_close(u.aleatoric.flatten(), by_hand.entropy, rtol=1e-3, atol=1e-3)
    assert torch.equal(u.prediction, output[:, 0]) and u.expected_error.shape == (3, 10, 12)
    found = detector.distribution(x)
    assert len(found) == 360 and torch.equal(found.prediction, u.prediction.flatten())
    mean = (by_hand.log_posterior.exp() * support.points[..., 0]).sum(1)
    torch.testing.assert_close(found.mean, mean, rtol=1e-3, atol=1e-3, check_dtype=False)


def test_the_marginal_of_numbers_is_that_of_all_pixels(depth: tuple[Depth, LatentDensity]) -> None:
    net, detector = depth
    x = images(40, (10, 12))
    features = detector.extract([(x, truth(net, x))])
    assert len(features) == 40 * 40
    valid = truth(net, x)[:, 2:].flatten()
    assert torch.equal(features.population.values.sort().values, valid.sort().values)
    fitted = LatentDensity(net, "third", pixels=Pixels(), condition="label", marginal="gaussian").fit_features(features)
    marginal = fitted.fitted_marginal
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
    torch.testing.assert_close(u.prediction, output[:, 0])
    torch.testing.assert_close(u.variance, output[:, 1])
    with pytest.raises(ValueError, match=r"a number per pixel is \(n, 1, H, W\) .* gave \(n, 2, 14, 19\)"):
        LatentDensity(net, "third", pixels=Pixels(), task="regression").fit([x])


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
