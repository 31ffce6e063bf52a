"""The depth study on drawn rooms, and its measures against independent ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor

from hidden_uncertainty.marginal import BetaPrime
from hidden_uncertainty.metrics import auroc
from reproduction.claims import base as claims_base
from reproduction.claims import dense as claims_dense
from reproduction.nets.efficientnet import EfficientNetLite0
from reproduction.nets.monodepth import MonoDepth
from reproduction.results import Study
from reproduction.studies.depth_estimation import study as depth_estimation
from reproduction.studies.depth_estimation.data import CHANGES, blurred
from reproduction.studies.depth_estimation.densities import LAYER, Asked, Fit, Fitted
from reproduction.studies.depth_estimation.measures import (
    Scored,
    accumulated,
    accuracy,
    best,
    constant,
    errors,
    marginals,
)
from reproduction.studies.depth_estimation.networks import Maps, Networks, compare
from reproduction.studies.depth_estimation.scores import TEST, coarse, grid, pixels_at, score
from reproduction.studies.depth_estimation.table import render
from reproduction.training.dense import DenseTrained

DENSITIES = ["flow-paper", "flow", "joint-mixture", "flow-label", "joint-mixture-label"]
OTHERS = ["ensemble", "mc-dropout"]


def _room(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A wall that is the darker the farther, (32, 48, 3) of bytes, and its depth in millimetres, (16, 24)."""
    near, far = random.uniform(1, 3), random.uniform(3, 8)
    depth = np.linspace(near, far, 24)[None] * np.linspace(1, random.uniform(1, 1.3), 16)[:, None]
    light = 250 * np.exp(-depth / 4).repeat(2, 0).repeat(2, 1)[..., None] + random.normal(0, 6, (32, 48, 3))
    return light.clip(0, 255).astype(np.uint8), (1000 * depth).astype(np.uint16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NYU v2 and Lost & Found, drawn small; no Cityscapes."""
    image = pytest.importorskip("PIL.Image")
    root, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    nyu, lost = root / "nyuv2", root / "fishyscapes_lostandfound"
    for folder in (nyu / "rgb", nyu / "depth", lost / "images", lost / "labels_masks"):
        folder.mkdir(parents=True)
    for number in range(36):
        light, depth = _room(random)
        image.fromarray(light).save(nyu / "rgb" / f"{number:04}.png")
        image.fromarray(depth).save(nyu / "depth" / f"{number:04}.png")
    (nyu / "train.txt").write_text("\n".join(f"{number:04}" for number in range(24)))
    (nyu / "test.txt").write_text("\n".join(f"{number:04}" for number in range(24, 36)))
    for number in range(4):
        image.fromarray(random.integers(0, 256, (40, 80, 3), dtype=np.uint8)).save(lost / "images" / f"{number}.png")
        image.fromarray(np.zeros((40, 80), dtype=np.uint8)).save(lost / "labels_masks" / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def study(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HIDDEN_UNCERTAINTY_DATA", str(data))
        patch.delenv("HIDDEN_UNCERTAINTY_WORK", raising=False)
        folder = tmp_path_factory.mktemp("work")
        study = depth_estimation.run(quick=True, folder=folder)
        assert sorted(path.name for path in folder.iterdir()) == [
            "depth-dropout-quick-0.safetensors",
            "depth-quick-0.safetensors",
            "depth-quick-1.safetensors",
        ]
        return study


def rows_of(study: Study, metric: str) -> dict[tuple[str | None, str], float]:
    return {(row["ood"], row["method"]): row["mean"] for row in study.rows if row["metric"] == metric}


def test_every_method_is_measured(study: Study) -> None:
    both = [(None, method) for method in DENSITIES + OTHERS]
    for metric in ("rank correlation of epistemic with error", "ause of epistemic"):
        assert list(rows_of(study, metric)) == both
    for metric in ("rank correlation of aleatoric with error", "share of steps that rise, aleatoric"):
        assert list(rows_of(study, metric)) == both[:-2]
    kinds = ["Lost & Found", *CHANGES]
    assert set(rows_of(study, "auroc")) == {(kind, method) for kind in kinds for method in DENSITIES + OTHERS}
    assert {method for _, method in rows_of(study, "rmse")} == {"constant", "network", *OTHERS}
    costs = rows_of(study, "milliseconds per megapixel")
    assert {method for _, method in costs} == {"network", *DENSITIES, *OTHERS} and min(costs.values()) > 0
    tried = [method for _, method in rows_of(study, "held-out log p(z|y)") if method not in DENSITIES]
    assert len(tried) == 3 and all(method.startswith("flow, rate") for method in tried)
    assert all(math.isfinite(row["mean"]) and row["n"] == 1 and row["variant"] == "default" for row in study.rows)


def test_what_is_missing_is_said(study: Study) -> None:
    other = study.settings["images of another kind"]
    assert other["missing"] == {"Cityscapes": "not in the folder of data sets"}
    assert other["how many"] == {"Lost & Found": 4, **dict.fromkeys(CHANGES, 6)}
    assert list(study.data) == ["NYU v2 train", "NYU v2 test", "Lost & Found"]


def test_the_flow_is_the_likeliest_candidate(study: Study) -> None:
    likelihood = rows_of(study, "held-out log p(z|y)")
    tried = [value for (_, method), value in likelihood.items() if method.startswith("flow, ")]
    assert likelihood[None, "flow"] == max(tried)


def test_files_pictures_and_tables(study: Study, tmp_path: Path) -> None:
    path = study.write(tmp_path, "made")
    assert sorted(each.name for each in tmp_path.glob("*.png")) == [
        "depth-estimation-fit.png",
        "depth-estimation-maps.png",
        "depth-estimation.png",
    ]
    text = render(json.loads(path.read_text()))
    for part in (
        "31.76 and 3.07",
        "| constant |",
        "| joint-mixture-label |",
        "| Lost & Found |",
        "beta prime",
        "forward passes",
    ):
        assert part in text
    assert "It is not monotone for" in text or "rises at every step" in text
    assert len(study.curves["aleatoric"]["flow"]) == 100
    assert study.curves["epistemic"]["ensemble"][-1] == pytest.approx(study.curves["oracle"]["ensemble"][-1], abs=1e-4)


@pytest.mark.parametrize(("share", "text"), [(1.0, "rises at every step for flow."), (0.5, "flow (50% of the steps)")])
def test_the_table_says_whether_the_curve_is_monotone(study: Study, share: float, text: str) -> None:
    rows: list[dict[str, Any]] = [dict(row) for row in study.rows]
    for row in rows:
        if row["metric"] == "share of steps that rise, aleatoric" and row["method"] in ("flow", "flow-label"):
            row["mean"] = share if row["method"] == "flow" else 0.1
        elif row["metric"] == "share of steps that rise, aleatoric":
            row["mean"] = 0.1
    assert text in render({"rows": rows})


@pytest.fixture(scope="module")
def networks() -> list[MonoDepth]:
    return [
        MonoDepth(encoder=EfficientNetLite0(width=0.1, seed=seed), dropout=0.5, seed=seed).eval() for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def fitted(networks: list[MonoDepth]) -> Fitted:
    from reproduction.datasets.dense import Dense

    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (6, 3, 32, 48), dtype=torch.uint8, generator=random)
    depth = torch.rand(6, 16, 24, generator=random) + 1
    depth[0] = torch.nan
    asked = Asked(rows=300, compared=60, points=16, epochs=1)
    return Fit(networks[0], Dense(images, depth, "drawn"), asked, seed=0).all()


def test_densities_know_what_they_are_fitted_to(fitted: Fitted) -> None:
    assert list(fitted.detectors) == DENSITIES
    assert [detector.condition for detector in fitted.detectors.values()] == ["prediction"] * 3 + ["label"] * 2
    assert len(fitted.features) == 300 and fitted.features.z[LAYER].shape[1] == 144
    assert fitted.features.label is not None
    marginal = fitted.detectors["flow-label"].fitted_marginal
    assert isinstance(marginal, BetaPrime) and marginal.size == 16
    assert (marginal.low, marginal.high) == (float(fitted.features.label.min()), float(fitted.features.label.max()))
    assert any(text.startswith("flow-paper: ") and "in max_epochs=1" in text for text in fitted.warned)


@pytest.mark.parametrize("every", [True, False])
def test_pixels_of_the_grid_are_scored_as_in_whole_maps(fitted: Fitted, every: bool) -> None:
    images = torch.randint(256, (3, 3, 32, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    detector = fitted.detectors["joint-mixture"]
    prediction, features = pixels_at(detector, images, 4, every=every)
    whole, some = detector(images), detector.predict_features(features)
    skip = 4 if every else 8
    assert whole.aleatoric is not None and some.aleatoric is not None
    torch.testing.assert_close(prediction, whole.prediction)
    for values, maps in ((some.epistemic, whole.epistemic), (some.aleatoric, whole.aleatoric)):
        torch.testing.assert_close(values, maps[:, 2::skip, 2::skip].flatten(), rtol=1e-4, atol=1e-3)


def test_images_are_scored_by_the_mean_of_their_pixels(fitted: Fitted) -> None:
    random = torch.Generator().manual_seed(2)
    images = {
        TEST: torch.randint(256, (5, 3, 32, 48), dtype=torch.uint8, generator=random),
        "dark": torch.randint(9, (4, 3, 32, 48), dtype=torch.uint8, generator=random),
    }
    noise = {kind: torch.rand(len(some), 16, 24, generator=random) for kind, some in images.items()}
    others = {"ensemble": {kind: Maps(values, values) for kind, values in noise.items()}}
    detector = fitted.detectors["flow"]
    found = score({"flow": detector}, others, images, 4)
    maps = {kind: detector(some).epistemic for kind, some in images.items()}
    for method, scores in (("flow", maps), ("ensemble", noise)):
        means = {kind: values[:, 2::8, 2::8].double().mean((1, 2)) for kind, values in scores.items()}
        assert found.areas[method] == {"dark": pytest.approx(auroc(negative=means[TEST], positive=means["dark"]))}
    assert torch.equal(found.pixels["ensemble"].prediction, grid(noise[TEST], 4).flatten())
    assert coarse(noise["dark"], 4).shape == (4, 2 * 3)


def test_ensemble_and_mc_dropout_map_by_map(networks: list[MonoDepth]) -> None:
    random = torch.Generator().manual_seed(3)
    images = torch.randint(256, (2, 3, 33, 48), dtype=torch.uint8, generator=random)
    trained = [DenseTrained(network, [], 0.0) for network in networks]
    methods = Networks(trained, trained[0]).methods
    with torch.no_grad():
        depths = torch.stack([network(images)[:, 0] for network in networks])
    maps = compare(methods["ensemble"], images)
    torch.testing.assert_close(maps.prediction, depths.mean(0))
    torch.testing.assert_close(maps.epistemic, depths.var(0, correction=0))
    before = torch.get_rng_state()
    sampled = compare(methods["mc-dropout"], images)
    assert torch.equal(torch.get_rng_state(), before)
    assert sampled.epistemic.shape == (2, 17, 24) and bool((sampled.epistemic > 0).all())
    assert not networks[0].training and not networks[0].dropout.training


def test_accuracy_by_hand() -> None:
    depth = torch.tensor([[1.0, 2.0], [4.0, torch.nan]])
    found = accuracy(torch.tensor([[1.1, 2.0], [6.0, 9.0]]), depth)
    assert found["rmse"] == pytest.approx(math.sqrt((0.01 + 4) / 3), rel=1e-6)
    assert found["relative error"] == pytest.approx((0.1 + 0.5) / 3, rel=1e-6)
    assert found["delta below 1.25"] == pytest.approx(2 / 3)
    assert constant(torch.tensor([1.0, 3.0, torch.nan]), depth)["rmse"] == pytest.approx(math.sqrt(5 / 3))


def test_accumulated_errors_against_a_loop() -> None:
    random = torch.Generator().manual_seed(0)
    uncertainty, error = torch.rand(257, generator=random), torch.rand(257, generator=random)

    def slow(order: Tensor) -> list[float]:
        kept = [order[: math.ceil(percent * 257 / 100)] for percent in range(1, 101)]
        return [float(error[some].double().square().mean().sqrt()) for some in kept]

    assert accumulated(uncertainty, error) == pytest.approx(slow(uncertainty.argsort()))
    assert best(error) == pytest.approx(slow(error.argsort()))


def test_pixels_without_depth_do_not_count() -> None:
    random = torch.Generator().manual_seed(0)
    depth, scores = torch.rand(300, generator=random) + 1, torch.rand(300, generator=random)
    holes = torch.cat([depth, torch.full((50,), torch.nan)])
    more = torch.cat([scores, torch.full((50,), 9.0)])
    full = errors({"flow": Scored(torch.ones(300), {"aleatoric": scores})}, depth)
    assert errors({"flow": Scored(torch.ones(350), {"aleatoric": more})}, holes) == full
    assert full[0]["flow"]["rank correlation of aleatoric with error"] == pytest.approx(
        stats.spearmanr(scores, depth - 1).statistic, abs=1e-6
    )


def test_a_score_that_says_the_same_of_all_pixels_ranks_nothing() -> None:
    depth = torch.linspace(1, 2, 200)
    found, curves = errors({"flow": Scored(torch.ones(200), {"aleatoric": torch.full((200,), 1.5)})}, depth)
    assert found["flow"]["rank correlation of aleatoric with error"] == 0
    assert curves["aleatoric"]["flow"] == pytest.approx([curves["aleatoric"]["flow"][0]] * 100)


def test_distances_of_distributions_against_scipy() -> None:
    values = torch.from_numpy(stats.betaprime(8, 4).rvs(3000, random_state=0))
    found = marginals(values)
    beta = stats.kstest(values.numpy(), stats.betaprime(*found.shape).cdf).statistic
    gaussian = stats.kstest(values.numpy(), stats.norm(values.mean(), values.std(correction=0)).cdf).statistic
    assert found.distance["beta-prime"] == pytest.approx(beta, abs=1e-6)
    assert found.distance["gaussian"] == pytest.approx(gaussian, abs=1e-6)
    assert found.likelihood["beta-prime"] > found.likelihood["gaussian"]
    step = found.curves["at"][1] - found.curves["at"][0]
    assert sum(found.curves["numbers"]) * step == pytest.approx(1)


def test_blur_against_scipy() -> None:
    images = torch.randint(256, (2, 3, 40, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = ndimage.gaussian_filter(images.double().numpy() / 255, (0, 0, 2, 2), mode="mirror", truncate=3)
    torch.testing.assert_close(blurred(images, 2.0).double(), torch.from_numpy(expected), rtol=0, atol=1e-5)


def test_changes_keep_the_range_and_the_images() -> None:
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    for name, change in CHANGES.items():
        changed = change(images)
        top = 1.0 if changed.is_floating_point() else 255
        assert changed.shape == images.shape and changed.min() >= 0 and changed.max() <= top, name
    assert torch.equal(images, before)


@pytest.mark.parametrize(("share", "alike", "holds"), [(1.0, 0.3, True), (0.99, 0.1, False)])
def test_claims_follow_the_numbers(tmp_path: Path, share: float, alike: float, holds: bool) -> None:
    values = {
        "share of steps that rise, aleatoric": share,
        "rank correlation of aleatoric with error": alike,
        "rmse of the half with least aleatoric": 0.4,
        "rmse": 0.6,
    }
    rows = [
        {"train": "NYU v2", "ood": None, "method": method, "metric": metric, "mean": mean, "std": 0.01, "n": 3}
        for method in ("network", "flow-paper", "flow", "joint-mixture")
        for metric, mean in values.items()
    ]
    (tmp_path / "depth-estimation.json").write_text(json.dumps({"rows": rows}))
    results = claims_base.Results(tmp_path)
    for judge in (claims_dense._monotone, claims_dense._larger):
        assert [finding.holds for finding in judge(results)] == [holds] * 3
