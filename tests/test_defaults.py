"""`torch.set_default_device` and `torch.set_default_dtype` are the user's: they change no result and no file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from defaults import assert_same
from hidden_uncertainty import (
    ConditionalFlow,
    GaussianMixture,
    JointMixture,
    LatentDensity,
    Pixels,
    Reduce,
    baselines,
    compare,
    io,
    layers,
    metrics,
)
from hidden_uncertainty.demo import DigitsNet, add_noise, digits
from hidden_uncertainty.reduce import pool_tokens

random = torch.Generator().manual_seed(0)
x = torch.randn(500, 4, generator=random)
classes = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
numbers = x[:, :1].exp() + 0.1 * torch.rand(500, 1, generator=random)
images = torch.rand(20, 3, 16, 16, generator=random)
real_tokens = torch.arange(256) < torch.tensor([[256], [100], [3]])
maps = (images.mean(1) * 8).long().clamp(2, 4) - 2


def loader(x: Tensor, y: Tensor, size: int = 100) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def drawn(network: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) / 2)
    return network.eval()


classifier = drawn(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3)))
other = drawn(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3)))
wide = drawn(nn.Sequential(nn.Linear(4, 2100), nn.ReLU(), nn.Linear(2100, 3)))
regressor = drawn(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1), nn.Softplus()))
vectors = drawn(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
dense = drawn(
    nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.Upsample(None, 2))
)
depths = drawn(
    nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1), nn.Upsample(None, 2))
)

of_classes = {"train": loader(x[:400], classes[:400]), "unseen": loader(x[400:], classes[400:])}
of_numbers = {"train": loader(x[:400], numbers[:400]), "unseen": loader(x[400:], numbers[400:])}
of_vectors = {"train": loader(x[:200], x[:200, :2]), "unseen": loader(x[400:450], x[400:450, :2])}
of_pixels = {"train": loader(images[:12], maps[:12], 4), "unseen": loader(images[12:], maps[12:], 4)}
of_depths = {"train": loader(images[:12], maps[:12] + 0.5, 4), "unseen": loader(images[12:], maps[12:] + 0.5, 4)}
quick: dict[str, Any] = {"blocks": 2, "hidden": (8,), "max_epochs": 2}


def detector(network: nn.Module, data: dict, folder: Path, layer: str = "1", **options: Any) -> list[Any]:
    """Fitted, calibrated, saved, loaded, and asked about all it knows."""
    fitted = LatentDensity(network, layer, **options).fit(data["train"], calibration=data["unseen"])
    fitted.save(folder / "detector")
    again = LatentDensity.load(folder / "detector", network)
    few = data["unseen"][0][0][:3]
    u, same = fitted.predict(data["unseen"]), again(few)
    known = [u.epistemic, u.aleatoric, same.epistemic, same[[0, 1]].p_value, fitted.threshold(0.2)]
    if data is of_numbers:
        known += [*fitted.interval(u, 0.8), fitted.distribution(few).quantile(0.5)]
    return known


def holdout(folder: Path) -> list[Any]:
    """Calibrated by a share of the training data; labels are lists, or of pixels."""
    data = [(some, label.tolist()) for some, label in of_classes["train"]]
    fitted = LatentDensity(wide, "1", GaussianMixture(1), reduce=Reduce(max_dim=4, residual=True)).fit(
        data, holdout=0.3
    )
    of_maps = LatentDensity(dense, "0", GaussianMixture(1), pixels=Pixels()).fit(of_pixels["train"], holdout=0.3)
    return [fitted(x[:3]).p_value, of_maps(images[:2]).p_value]


def baseline(make: Callable[[], Any], folder: Path, data: dict = of_classes) -> list[Tensor]:
    method = make()
    u = method.fit(data["train"], calibration=data["unseen"]).predict(data["unseen"])
    return [method(x[:5]).epistemic, u.epistemic, u.p_value]


def comparison(folder: Path) -> list[Any]:
    methods: dict[str, Any] = {
        "density": LatentDensity(classifier, "1"),
        "entropy": baselines.SoftmaxEntropy(classifier),
    }
    far = {"far": [x[400:] + 9]}
    found = compare(methods, of_classes["unseen"], far, train=of_classes["train"], rounds=1)
    return [found.value(name, "auroc", "far") for name in methods]


def measured(folder: Path) -> list[Any]:
    low, high, right = x[:, 0], x[:, 1] + 1, x[:, 2] > 0
    pairs: list[tuple[Any, Any]] = [(low, high), (low.numpy(), high.numpy()), (low.tolist(), high.tolist())]
    found: list[Any] = [metric(*pair) for pair in pairs for metric in (metrics.rmse, metrics.rank_correlation)]
    for metric in (metrics.auroc, metrics.average_precision, metrics.fpr_at_tpr):
        found += [metric(negative=negative, positive=positive) for negative, positive in pairs]
    found += [metrics.ause(uncertainty=low, error=high.abs()), *metrics.roc_curve(negative=low, positive=high)]
    found += [
        metrics.expected_calibration_error(high.sigmoid(), right),
        metrics.aurc(low, right),
        metrics.raulc(low, right),
    ]
    return [*found, metrics.psnr(images, images.flip(0))]


def tokens(folder: Path) -> list[Tensor]:
    some = images[:3].flatten(2).transpose(1, 2)
    pools: list[Any] = ["mean", "moments", "max", "last"]
    return [pool_tokens(some, pool, mask) for pool in pools for mask in (None, real_tokens)]


def written(folder: Path) -> list[Tensor]:
    io.write(folder / "file", {}, {"some": x, "none": x[:0]})
    return list(io.read(folder / "file")[1].values())


def on(method: Any, **options: Any) -> Callable[[Path], list[Tensor]]:
    return partial(baseline, partial(method, classifier, "1", **options))


CASES: dict[str, Callable[[Path], list[Any]]] = {
    "mixture": partial(detector, classifier, of_classes),
    "mixture, tied": partial(detector, classifier, of_classes, density=GaussianMixture(2, covariance="tied")),
    "mixture, diagonal": partial(detector, classifier, of_classes, density=GaussianMixture(2, covariance="diag")),
    "principal components": partial(detector, wide, of_classes, reduce=Reduce(max_dim=5)),
    "projection": partial(detector, classifier, of_classes, reduce=Reduce(max_dim=5, how="project", residual=True)),
    "holdout": holdout,
    "flow": partial(detector, classifier, of_classes, density=ConditionalFlow(**quick)),
    "flow, numbers": partial(detector, regressor, of_numbers, density=ConditionalFlow(form="realnvp", **quick)),
    "joint, diagonal": partial(detector, regressor, of_numbers, density=JointMixture(2, covariance="diag", max_iter=5)),
    **{
        f"joint, {name}": partial(detector, regressor, of_numbers, density=JointMixture(2, max_iter=5), marginal=name)
        for name in ("auto", "uniform", "gaussian", "beta-prime", "histogram")
    },
    **{
        f"vectors, {name}": partial(detector, vectors, of_vectors, density=JointMixture(2, max_iter=5), marginal=name)
        for name in ("uniform", "gaussian")
    },
    "pixels": partial(detector, dense, of_pixels, layer="0", pixels=Pixels(), density=GaussianMixture(2, max_iter=5)),
    "pixels, latent": partial(detector, dense, of_pixels, layer="0", pixels=Pixels(resolution="latent", patch=3)),
    "pixels, numbers": partial(
        detector, depths, of_depths, layer="0", pixels=Pixels(), density=JointMixture(2, max_iter=5)
    ),
    "layers": lambda folder: [repr(layers(classifier, x[:2], show=False))],
    "entropy": partial(baseline, partial(baselines.SoftmaxEntropy, classifier)),
    "probability": partial(baseline, partial(baselines.MaxProbability, classifier)),
    "energy": partial(baseline, partial(baselines.Energy, classifier)),
    "dropout": partial(baseline, partial(baselines.MCDropout, classifier, samples=5)),
    "inserted dropout": partial(
        baseline,
        lambda: baselines.MCDropout(baselines.insert_dropout(regressor, 0.2), samples=5, task="regression"),
        data=of_numbers,
    ),
    "ensemble": partial(baseline, lambda: baselines.DeepEnsemble([classifier, other])),
    "mahalanobis": on(baselines.Mahalanobis),
    "relative mahalanobis": on(baselines.RelativeMahalanobis),
    "neighbours": on(baselines.NearestNeighbours, k=5),
    "one gaussian per class": on(baselines.one_gaussian_per_class),
    "tokens": tokens,
    "compare": comparison,
    "metrics": measured,
    "digits": lambda folder: [digits(left_out=(9,)).train.images, add_noise(images, 0.1), *DigitsNet().parameters()],
    "files": written,
}


# What draws random numbers, or builds layers, in the default dtype.
FOLLOWS = {"flow", "flow, numbers", "vectors, gaussian", "vectors, uniform", "reconstruction"}


@pytest.mark.parametrize("case", CASES)
def test_defaults_change_nothing(case: str, tmp_path: Path) -> None:
    assert_same(["device"] if case in FOLLOWS else ["device", "dtype"], CASES[case], tmp_path)
