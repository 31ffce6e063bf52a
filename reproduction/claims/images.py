"""Claims of the paper about images, depth of layers, regularisation and regression."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import correlation, fmean

from .base import STEPS, Claim, Finding, Results

GLOBAL = ("rotated", "hflip", "vflip")  # transformations of a whole image
LAYERS = {"MNIST": ("layer-1", "layer-10"), "SVHN": ("layer-1", "layer-34")}  # the shallowest and the deepest


def _quicker(results: Results) -> Iterator[Finding]:
    for train, (shallow, deep) in LAYERS.items():
        about = {"train": train, "ood": STEPS[train][0], "metric": "mean auroc over steps"}
        first, last = (results.row("layer-depth", method=method, **about) for method in (shallow, deep))
        spread = 2 * math.hypot(first["std"], last["std"])
        numbers = (
            f"mean AUROC over the steps: {shallow} {first['mean']:.3f} ± {first['std']:.3f}, "
            f"{deep} {last['mean']:.3f} ± {last['std']:.3f}"
        )
        yield Finding(train, numbers, first["mean"] - last["mean"] > spread)


def _follows(results: Results) -> Iterator[Finding]:
    for train, (shallow, deep) in LAYERS.items():
        for other in ("mc-dropout", "ensemble"):
            alike, far, near = (
                results.mean("layer-depth", train=train, ood=STEPS[train][0], method=method, metric=metric)
                for method, metric in (
                    (deep, f"correlation of curve with {other}"),
                    (shallow, f"distance of curve to {other}"),
                    (deep, f"distance of curve to {other}"),
                )
            )
            numbers = (
                f"{other}: correlation with {deep} {alike:.3f}; distance to {deep} {near:.3f}, to {shallow} {far:.3f}"
            )
            yield Finding(train, numbers, alike > 0.9 and near < far)


def _torn(results: Results) -> Iterator[Finding]:
    for train, (shallow, deep) in LAYERS.items():
        about = {"train": train, "ood": None, "metric": "distance of rejection curve to softmax"}
        far = {m: results.mean("layer-depth", method=m, **about) for m in (shallow, deep, "mc-dropout", "ensemble")}
        numbers = "distance to the softmax's curve: " + ", ".join(f"{m} {value:.4f}" for m, value in far.items())
        yield Finding(train, numbers, far[deep] < 0.01)


def _poor(results: Results) -> Iterator[Finding]:
    about = {"train": "SVHN", "ood": None, "metric": "area under accuracy-rejection"}
    areas = {m: results.mean("layer-depth", method=m, **about) for m in ("layer-1", "layer-34", "softmax")}
    numbers = "area under accuracy-rejection: " + ", ".join(f"{m} {value:.3f}" for m, value in areas.items())
    yield Finding("SVHN", numbers, areas["layer-1"] < areas["layer-34"] - 0.01)


def _far(results: Results) -> Iterator[Finding]:
    for name in ("table-1-fcnet", "table-1-resnet"):
        layers = [row for row in results.rows(name, metric="auroc") if row["method"] != "ensemble"]
        cells = [row for row in layers if row["ood"] not in GLOBAL]
        places = list(dict.fromkeys((row["train"], row["ood"]) for row in cells))
        first = []
        for place in places:
            areas = {row["method"]: row["mean"] for row in cells if (row["train"], row["ood"]) == place}
            if areas["layer-1"] >= max(areas.values()) - 0.005:
                first.append(" → ".join(place))
        numbers = f"layer 1 is first among layers in {len(first)} of {len(places)}: {', '.join(first)}"
        yield Finding(name, numbers, len(first) > len(places) / 2)


def _blind(results: Results) -> Iterator[Finding]:
    for train in ("SVHN", "CIFAR10"):
        areas = {
            method: fmean(
                results.mean("table-1-resnet", train=train, ood=ood, method=method, metric="auroc") for ood in GLOBAL
            )
            for method in ("layer-1", "layer-9", "layer-34")
        }
        numbers = "mean AUROC of rotation and flips: " + ", ".join(f"{m} {value:.3f}" for m, value in areas.items())
        yield Finding(train, numbers, max(areas["layer-1"], areas["layer-9"]) < min(0.65, areas["layer-34"]))


def _upside_down(results: Results) -> Iterator[Finding]:
    areas = {
        method: results.mean("table-1-resnet", train="CIFAR10", ood="SVHN", method=method, metric="auroc")
        for method in ("layer-1", "layer-9", "layer-19", "layer-34")
    }
    numbers = "AUROC: " + ", ".join(f"{m} {value:.3f}" for m, value in areas.items())
    shallow = [areas[m] for m in ("layer-1", "layer-9", "layer-19")]
    yield Finding("CIFAR10 → SVHN", numbers, max(shallow) < 0.5 < areas["layer-34"])


def _sufficient(results: Results) -> Iterator[Finding]:
    mixture, flow = (results.mean("digits", method=m, metric="auroc") for m in ("mixture-paper", "flow"))
    yield Finding("digits", f"AUROC of a mixture {mixture:.3f}, of a flow {flow:.3f}", mixture >= flow - 0.005)


def _regression(results: Results) -> Iterator[Finding]:
    alike = {
        other: results.mean("toy-regression", method="flow", metric=f"rank correlation with {other}")
        for other in ("gaussian-process", "ensemble")
    }
    numbers = "rank correlation over x: " + ", ".join(f"with the {m} {value:.3f}" for m, value in alike.items())
    yield Finding("the paper's curve", numbers, min(alike.values()) > 0.8)


def _weights(results: Results, train: str) -> list[str]:
    """Methods of the sweep, without reconstruction first."""
    rows = results.rows("regularisation", train=train, metric="accuracy", method="weight 0")
    methods = dict.fromkeys(row["method"] for row in results.rows("regularisation", train=train, metric="accuracy"))
    assert rows, f"no network without reconstruction on {train}"
    return sorted(methods, key=lambda method: float(method.removeprefix("weight ")))


def _reconstruction(results: Results) -> Iterator[Finding]:
    for train, ood in (("MNIST", "FashionMNIST"), ("SVHN", "STL10")):
        plain, *rest = _weights(results, train)

        def mean(method: str, metric: str, ood: str | None, train: str = train) -> float:
            return results.mean("regularisation", train=train, ood=ood, method=method, metric=metric)

        right = {m: mean(m, "accuracy", None) for m in (plain, *rest)}
        cheap = [m for m in rest if right[m] >= right[plain] - 0.005]
        areas = {m: mean(m, "auroc", ood) for m in (plain, *rest)}
        sharp = [mean(m, "psnr", None) for m in rest]
        best = max(cheap, key=areas.__getitem__, default=plain)
        numbers = (
            f"AUROC {areas[plain]:.3f} without, {areas[best]:.3f} with {best} at accuracy {right[best]:.3f} instead of "
            f"{right[plain]:.3f}; PSNR {sharp[0]:.1f} to {sharp[-1]:.1f} dB from the lowest to the highest weight"
        )
        yield Finding(f"{train} → {ood}", numbers, areas[best] > areas[plain] + 0.005 and sharp[-1] > sharp[0])


def _sides(results: Results) -> Iterator[Finding]:
    for train in STEPS:
        plain, *_, high = _weights(results, train)
        drops, votes = (results.curve("layer-depth", train, other) for other in ("mc-dropout", "ensemble"))
        own, regular = (results.curve("regularisation", train, method) for method in (plain, high))
        gaps = [_distance(own, drops), _distance(regular, drops), _distance(own, votes), _distance(regular, votes)]
        numbers = (
            f"distance to MC dropout: {plain} {gaps[0]:.3f}, {high} {gaps[1]:.3f}; to the ensemble: {gaps[2]:.3f}, "
            f"{gaps[3]:.3f}; correlation of {plain} with MC dropout {correlation(own, drops):.3f}, of {high} with the "
            f"ensemble {correlation(regular, votes):.3f}"
        )
        yield Finding(train, numbers, gaps[0] < gaps[1] and gaps[3] < gaps[2])


def _ambiguous(results: Results) -> Iterator[Finding]:
    for train, (_, label, steps) in STEPS.items():
        near = [label.format(step) for step in list(steps)[:3]]
        spread = {
            metric: fmean(_range(results, train, ood, metric, _weights(results, train)) for ood in near)
            for metric in ("accuracy", "auroc")
        }
        numbers = (
            f"over the weights, in the first three steps, accuracy spans {spread['accuracy']:.3f}, "
            f"AUROC {spread['auroc']:.3f}"
        )
        yield Finding(train, numbers, spread["auroc"] > 2 * spread["accuracy"])


def _range(results: Results, train: str, ood: str, metric: str, methods: Sequence[str]) -> float:
    values = [results.mean("regularisation", train=train, ood=ood, method=m, metric=metric) for m in methods]
    return max(values) - min(values)


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(one, other, strict=True))


IMAGES = (
    Claim(
        "Shallow layers are quicker to call perturbed images unknown",
        "mean AUROC over the steps higher than the deepest layer's, by more than two combined deviations",
        _quicker,
    ),
    Claim(
        "Deep layers behave like MC dropout and ensembles",
        "the deepest layer's AUROC curve correlates above 0.9 with the other's, and lies closer to it than layer 1's",
        _follows,
    ),
    Claim(
        "Aleatoric uncertainty of deep layers is calibrated like softmax entropy",
        "the deepest layer's accuracy-rejection curve lies within 0.01 of the softmax's on average",
        _torn,
    ),
    Claim(
        "Aleatoric uncertainty of shallow layers can be poor, as for the residual network on SVHN",
        "area under accuracy-rejection at least 0.01 below the deepest layer's",
        _poor,
    ),
    Claim(
        "Shallow layers are best on data that are far away",
        "layer 1 is first among layers, or within 0.005, on more than half of other sets and noise",
        _far,
    ),
    Claim(
        "Shallow layers of convolutional networks are blind to global transformations",
        "mean AUROC of layers 1 and 9 below 0.65 and below the deepest layer's",
        _blind,
    ),
    Claim(
        "Trained on CIFAR10, shallow layers take SVHN for more familiar than CIFAR10; the deepest does not",
        "AUROC of layers 1, 9 and 19 below 0.5, of layer 34 above",
        _upside_down,
    ),
    Claim("A mixture is sufficient: a flow is no better", "AUROC no more than 0.005 below the flow's", _sufficient),
    Claim(
        "In regression, the density's uncertainty follows that of established methods",
        "rank correlation above 0.8 with a Gaussian process and an ensemble",
        _regression,
    ),
    Claim(
        "Reconstruction raises AUROC, at weights that do not cost accuracy, and PSNR rises with its weight",
        "some weight raises AUROC by 0.005 with accuracy lower by at most 0.005; PSNR higher at the highest weight",
        _reconstruction,
    ),
    Claim(
        "Without reconstruction the curves follow MC dropout, with high weights ensembles",
        "without, closer to MC dropout than with the highest weight; with it, closer to the ensemble than without",
        _sides,
    ),
    Claim(
        "Near the data the weight is ambiguous: equal accuracy, different AUROC",
        "AUROC differs between weights at least twice as much as accuracy",
        _ambiguous,
    ),
)
