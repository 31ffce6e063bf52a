"""Claims of the paper about networks that predict per pixel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .base import Claim, Finding, Results


def _of_pixels(results: Results, method: str, metric: str, **about: Any) -> float:
    ood = None if metric.startswith(("misclassification", "share", "milli")) else "Lost & Found"
    return results.mean("segmentation", ood=ood, method=method, metric=metric, **about)


def _as_softmax(results: Results) -> Iterator[Finding]:
    softmax = _of_pixels(results, "softmax-entropy", "misclassification auroc")
    for method, what in (("aleatoric", "underfit, as in the paper"), ("aleatoric-log", "not underfit, in log space")):
        area = _of_pixels(results, method, "misclassification auroc")
        numbers = f"AUROC of mistakes: {area:.3f} ({what}), softmax entropy {softmax:.3f}"
        yield Finding("Cityscapes", numbers, area >= softmax - 0.03)


def _apart(results: Results) -> Iterator[Finding]:
    torn = {m: _of_pixels(results, m, "misclassification auroc") for m in ("aleatoric", "epistemic")}
    caught = {m: _of_pixels(results, m, "ap") for m in torn}
    false = {m: _of_pixels(results, m, "fpr95") for m in torn}
    numbers = "; ".join(
        f"{m}: AUROC of mistakes {torn[m]:.3f}, AP of objects {caught[m]:.3f}, FPR95 {false[m]:.3f}" for m in torn
    )
    better = caught["epistemic"] > caught["aleatoric"] and false["epistemic"] < false["aleatoric"]
    yield Finding("Cityscapes, Lost & Found", numbers, torn["aleatoric"] > torn["epistemic"] and better)


def _high_recall(results: Results) -> Iterator[Finding]:
    found = {m: [_of_pixels(results, m, k) for k in ("ap", "fpr95")] for m in ("epistemic", "mc-dropout")}
    numbers = "; ".join(f"{m}: AP {area:.3f}, FPR95 {false:.3f}" for m, (area, false) in found.items())
    lower = all(own < other for own, other in zip(found["epistemic"], found["mc-dropout"], strict=True))
    yield Finding("Lost & Found", numbers, lower)


def _than_softmax(results: Results) -> Iterator[Finding]:
    found = {m: [_of_pixels(results, m, k) for k in ("ap", "fpr95")] for m in ("epistemic", "softmax-entropy")}
    numbers = "; ".join(f"{m}: AP {area:.3f}, FPR95 {false:.3f}" for m, (area, false) in found.items())
    own, softmax = found["epistemic"], found["softmax-entropy"]
    yield Finding("Lost & Found", numbers, own[0] > softmax[0] and own[1] < softmax[1])


def _elsewhere(results: Results) -> Iterator[Finding]:
    area, precision = (_of_pixels(results, "epistemic", metric) for metric in ("auroc", "ap"))
    yield Finding("Lost & Found", f"AUROC {area:.3f}, AP {precision:.3f}", area > 0.7 and precision < 0.1)


def _underflow(results: Results) -> Iterator[Finding]:
    share = _of_pixels(results, "aleatoric", "share of pixels with an entropy of 0", variant="not underfit")
    plain = _of_pixels(results, "aleatoric", "misclassification auroc", variant="not underfit")
    under, in_log = (_of_pixels(results, m, "misclassification auroc") for m in ("aleatoric", "aleatoric-log"))
    numbers = (
        f"{share:.1%} of the entropies are 0; AUROC of mistakes {plain:.3f}, underfit {under:.3f}, not underfit but in "
        f"log space {in_log:.3f}"
    )
    yield Finding("Cityscapes", numbers, share > 0.01 and plain < under)


def _of_depth(results: Results, method: str, metric: str) -> float:
    return results.mean("depth-estimation", ood=None, method=method, metric=metric)


def _monotone(results: Results) -> Iterator[Finding]:
    for method in ("flow-paper", "flow", "joint-mixture"):
        share = _of_depth(results, method, "share of steps that rise, aleatoric")
        half, everything = (
            _of_depth(results, *about)
            for about in ((method, "rmse of the half with least aleatoric"), ("network", "rmse"))
        )
        numbers = (
            f"{method}: {share:.0%} of the steps rise; RMSE of the lower half {half:.3f} m, of all {everything:.3f} m"
        )
        yield Finding("NYU v2", numbers, share == 1)


def _larger(results: Results) -> Iterator[Finding]:
    metric = "rank correlation of aleatoric with error"
    for method in ("flow-paper", "flow", "joint-mixture"):
        row = results.row("depth-estimation", ood=None, method=method, metric=metric)
        numbers = f"{method}: rank correlation {row['mean']:.3f} ± {row['std']:.3f} over {row['n']} networks"
        yield Finding("NYU v2", numbers, row["mean"] > 0.2)


def _beta_prime(results: Results) -> Iterator[Finding]:
    far = _of_depth(results, "beta-prime", "kolmogorov distance to predictions")
    likely, other = (
        _of_depth(results, name, "held-out log-likelihood of predictions") for name in ("beta-prime", "gaussian")
    )
    numbers = f"distance {far:.3f}; log-likelihood {likely:.3f}, of a Gaussian {other:.3f}"
    yield Finding("NYU v2", numbers, far < 0.05 and likely > other)


def _cheaper(results: Results) -> Iterator[Finding]:
    for method in ("flow", "joint-mixture"):
        own, ensemble, dropout = (
            _of_depth(results, name, "milliseconds per megapixel") for name in (method, "ensemble", "mc-dropout")
        )
        numbers = (
            f"milliseconds per megapixel: {method} {own:,.1f}, ensemble {ensemble:,.1f}, MC dropout {dropout:,.1f}"
        )
        yield Finding("NYU v2", numbers, own < min(ensemble, dropout))


DENSE = (
    Claim(
        "Segmentation: aleatoric uncertainty finds misclassified pixels as well as softmax entropy",
        "AUROC at most 0.03 lower",
        _as_softmax,
    ),
    Claim(
        "Segmentation: the two uncertainties are separated, aleatoric for mistakes, epistemic for unknown objects",
        "aleatoric has the higher AUROC of mistakes; epistemic has the higher AP and the lower FPR95 of objects",
        _apart,
    ),
    Claim(
        "Segmentation: unlike MC dropout, the density is poor where recall is low, and good where it is high",
        "AP lower than that of MC dropout, and FPR95 lower too",
        _high_recall,
    ),
    Claim(
        "Segmentation: the density finds unknown objects better than softmax entropy (the table)",
        "AP higher and FPR95 lower",
        _than_softmax,
    ),
    Claim(
        "Segmentation: unknown objects have a low density, but so do many other places",
        "AUROC of objects above 0.7, AP below 0.1",
        _elsewhere,
    ),
    Claim(
        "Segmentation: entropies fail numerically with well fitted mixtures, but not with underfit ones",
        "more than 1 % of the entropies are exactly 0, and AUROC of mistakes is lower than with underfit mixtures",
        _underflow,
    ),
    Claim(
        "Depth: the RMSE of pixels below a threshold of aleatoric uncertainty rises monotonically with it",
        "it rises at every step from one percentile to the next",
        _monotone,
    ),
    Claim(
        "Depth: larger errors have larger aleatoric uncertainty",
        "rank correlation with the absolute error above 0.2",
        _larger,
    ),
    Claim(
        "Depth: a beta prime distribution represents predicted depths well",
        "Kolmogorov distance below 0.05, and held-out predictions likelier than under a Gaussian",
        _beta_prime,
    ),
    Claim(
        "Depth: a density costs less than established methods",
        "whole maps take less time than those of the ensemble and of MC dropout",
        _cheaper,
    ),
)
