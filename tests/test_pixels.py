"""`LatentDensity` on networks that predict for every pixel, from end to end, against brute force over whole maps."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels, Reduce, io
from hidden_uncertainty import _pixel_reading as module
from hidden_uncertainty.batches import unpack
from hidden_uncertainty.extract import chosen
from hidden_uncertainty.pixels import Resolution
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
    assert u.aleatoric is not None and u.log_aleatoric is not None and u.p_value is None
    np.testing.assert_allclose(u.epistemic.flatten().numpy(), epistemic, rtol=1e-4, atol=2e-3)
    np.testing.assert_allclose(u.aleatoric.flatten().numpy(), aleatoric, rtol=1e-2, atol=1e-4)
    assert u.log_aleatoric.shape == u.epistemic.shape == (2, *size)


def test_a_balanced_sample_is_fitted_and_all_pixels_are_counted() -> None:
    net, x = Net(), images(9)
    label = masked(x)
    detector = LatentDensity(net, "first", GaussianMixture(1), pixels=Pixels(per_class=6, reservoir=10**6))
    features = detector.extract(list(zip(x.split(4), label.split(4), strict=True)))
    maps, output = latent(net, x, "first")
    prediction, valid = output.argmax(1), label != 255
    expected = torch.stack([p[v].bincount(minlength=4) for p, v in zip(prediction, valid, strict=True)])  # (images, C)
    assert features.prediction.bincount(minlength=4).tolist() == expected.clamp(max=6).sum(0).tolist()
    assert features.population is not None and features.population.values.tolist() == expected.sum(0).tolist()
    assert features.label is not None and not bool((features.label == 255).any())
    # Every row is a pixel of its class, none twice.
    whole = rows(maps, (14, 19)).float()
    nearest = torch.cdist(features.z["first"], whole).argmin(1)
    assert len(nearest.unique()) == len(nearest)
    assert torch.equal(prediction.flatten()[nearest], features.prediction) and bool(valid.flatten()[nearest].all())
    assert torch.equal(label.flatten()[nearest], features.label)
    detector.fit_features(features)
    assert detector.head is not None
    marginal: Any = detector.head.marginal
    torch.testing.assert_close(marginal.log_prob.exp(), expected.sum(0) / expected.sum())


def test_the_reservoir_bounds_what_is_fitted_and_says_what_is_lost() -> None:
    net, x = Net(), images(30)
    detector = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels(reservoir=400), seed=1)
    features = detector.extract(x.split(7))
    assert len(features) == 400 and features.population is not None
    detector.fit_features(features)
    with pytest.warns(UserWarning, match=r"class \[1\] has .* none of which is in the reservoir"):
        detector.fit_features(features[features.prediction != 1])
    assert detector.head is not None
    marginal: Any = detector.head.marginal
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


def test_a_class_predicted_by_no_pixel_has_no_say() -> None:
    net, x = Net(seed=16), images(20)
    detector = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels()).fit([x])
    assert detector.head is not None
    marginal: Any = detector.head.marginal
    assert marginal.support.tolist() == [0, 2, 3] and len(marginal.log_prob) == 4
    assert bool(detector(5 * x).epistemic.isfinite().all())
    with pytest.raises(ValueError, match="all 2,000 inputs have the prediction 2"):
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
    assert residual is not None and residual.shape == (5, 14, 19) and u.layers["third"].residual is None
    assert torch.equal(u.epistemic, u.layers["third"].epistemic)
    coarse = LatentDensity(net, layers, GaussianMixture(1), pixels=Pixels("latent", **ALL), combine="second").fit([x])
    u = coarse(x)
    assert u.prediction.shape == u.layers["first"].epistemic.shape == u.layers["third"].epistemic.shape == (5, 7, 10)


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
    assert detector.calibrated == "unseen" and detector.head is not None
    scores, kept = detector(unseen).epistemic, []
    for image, count in zip(scores, label != 255, strict=True):
        values = image[count].sort(descending=True).values
        kept.append(values[int(share * len(values))])  # so many are allowed above
    calibration = detector.head.layers["third"].calibration
    assert calibration is not None
    torch.testing.assert_close(calibration.scores, torch.stack(kept).sort().values)
    for alarm in (0.05, 0.2):
        detector.threshold(alarm)
        u = detector(new)
        above = u.surprising.flatten(1).float().mean(1)
        assert u.p_value is not None and torch.equal(u.surprising, u.p_value <= alarm)
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


def test_images_without_pixels_that_count_are_left_out() -> None:
    net, x = Net(), images(6)
    label = masked(x)
    label[2] = 255
    pixels = Pixels(**ALL)
    one = LatentDensity(net, "third", PLAIN, pixels=pixels).fit([(x, label)], calibration=[(x, label)])
    keep = torch.tensor([0, 1, 3, 4, 5])
    two = LatentDensity(net, "third", PLAIN, pixels=pixels).fit([(x[keep], label[keep])])
    torch.testing.assert_close(one(x).epistemic, two(x).epistemic, rtol=1e-5, atol=1e-4)
    assert one.head is not None and one.head.layers["third"].calibration is not None
    assert len(one.head.layers["third"].calibration.scores) == 5
    nothing = [(x, torch.full((6, 14, 19), 255))]
    with pytest.raises(ValueError, match="no pixel counts"):
        LatentDensity(net, "third", pixels=pixels).fit(nothing)
    with pytest.raises(ValueError, match="nothing to calibrate with"):
        two.calibrate(nothing)
    assert two.calibrated is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.float32])
def test_labels_to_ignore_are_compared_as_numbers(dtype: torch.dtype) -> None:
    """A byte of 255 is no -1, and the other way round."""
    highest = 255 if dtype == torch.uint8 else 127
    label = torch.tensor([0, 1, highest]).to(dtype)
    assert Pixels(ignore=highest).valid(label).tolist() == [True, True, False]
    assert Pixels(ignore=(highest - 256, 1)).valid(label).tolist() == [True, False, True]
    assert Pixels(ignore=None).valid(label).all()


def test_the_holdout_is_whole_images() -> None:
    net, x = Net(), images(60, (6, 7))
    detector = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels(), task="classification")
    with pytest.warns(UserWarning, match="without their guarantee"):
        detector.fit(x.split(16), holdout=0.3)
    apart = chosen(unpack(x), 0.3)
    assert detector.calibrated == "holdout" and detector.head is not None
    calibration = detector.head.layers["third"].calibration
    assert calibration is not None and len(calibration.scores) == int(apart.sum()) > 5
    by_hand = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels(), task="classification")
    counts = by_hand.extract([x[~apart]]).population
    assert counts is not None
    marginal: Any = detector.head.marginal
    torch.testing.assert_close(marginal.log_prob.exp(), counts.values / counts.values.sum())
    scores = torch.stack([s.flatten().sort().values[-1] for s in detector(x[apart]).epistemic])  # 1 % of 42 is none
    torch.testing.assert_close(calibration.scores, scores.sort().values)
    with pytest.raises(TypeError, match="can be read only once"):
        detector.fit(iter(x.split(16)), holdout=0.3)


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
    assert u.aleatoric is not None
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
    assert loaded.pixels == pixels == Pixels.from_config(json.loads(json.dumps(pixels.config())))
    one, two = detector(x), loaded(x)
    for field in ("prediction", "epistemic", "aleatoric", "log_aleatoric", "p_value", "surprising"):
        assert torch.equal(getattr(one, field), getattr(two, field))
    again = loaded.fit([(x, masked(x))], calibration=[(x, masked(x))])(x)
    assert torch.equal(again.epistemic, one.epistemic) and torch.equal(loaded.to("cpu")(x).epistemic, one.epistemic)


def test_files_from_before_there_were_pixels_are_read(tmp_path: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)), torch.randn(300, 2)
    path = tmp_path / "detector.safetensors"
    detector = LatentDensity(net, "0", GaussianMixture(1), task="classification").fit([x])
    detector.save(path)
    header, tensors = io.read(path)
    del header["pixels"]
    io.write(path, header, tensors)
    assert torch.equal(LatentDensity.load(path, net)(x).epistemic, detector(x).epistemic)


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


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="eager")])
def test_wrapped_models_and_the_model_is_left_alone(wrap: Any) -> None:
    net, x = Net(), images(4)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    expected = LatentDensity(net, "third", GaussianMixture(1), pixels=Pixels()).fit([x])(x)
    found = LatentDensity(wrap(net), "third", GaussianMixture(1), pixels=Pixels()).fit([x])(x)
    torch.testing.assert_close(found.epistemic, expected.epistemic)
    assert net.training and not any(m._forward_hooks for m in net.modules())
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_half_precision_models_get_single_precision_densities() -> None:
    net, x = Net(), images(8)
    options: dict[str, Any] = {"pixels": Pixels(**ALL), "max_dim": 4, "task": "classification"}
    expected = LatentDensity(net, "third", GaussianMixture(1), **options).fit([x])(x).epistemic
    detector = LatentDensity(net, "third", GaussianMixture(1), **options)
    with torch.autocast("cpu", torch.bfloat16):
        u = detector.fit([x])(x)
        again = detector(x)
    assert u.epistemic.dtype == torch.float32 and torch.equal(u.epistemic, again.epistemic)
    assert torch.corrcoef(torch.stack([u.epistemic.flatten(), expected.flatten()]))[0, 1] > 0.95
    half = LatentDensity(copy.deepcopy(net).bfloat16(), "third", GaussianMixture(1), **options).fit([x.bfloat16()])
    assert half(x.bfloat16()).epistemic.dtype == torch.float32


@pytest.mark.parametrize("n", [7, 100, 1000])
def test_an_images_score_is_the_lowest_that_at_most_the_share_exceeds(n: int) -> None:
    scores = torch.randperm(n, generator=torch.Generator().manual_seed(0)).double()
    for above in range(n):
        score = Pixels(share=above / n).image_score(scores)
        assert int((scores > score).sum()) == above
