"""All methods on one network: the library's default, and each of the others with one setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from hidden_uncertainty import Features, GaussianMixture, LatentDensity, Reduce, Uncertainty, suggest
from hidden_uncertainty.baselines import (
    GEN,
    Energy,
    Mahalanobis,
    MaxProbability,
    NearestNeighbours,
    RelativeMahalanobis,
    SoftmaxEntropy,
    one_gaussian_per_class,
)
from hidden_uncertainty.model.choice import Choice

from .peers import ViM, fdbd, head_of

Scores = dict[str, Tensor]  # by method, (n,)
SOFTMAX, DEFAULT, PAPERS = "softmax", "default", "paper's mixture"
OUTPUTS: dict[str, type] = {
    SOFTMAX: MaxProbability,
    "softmax entropy": SoftmaxEntropy,
    "energy": Energy,
    "GEN": GEN,
}
FEATURES: dict[str, Callable[..., Any]] = {
    "Mahalanobis": Mahalanobis,
    "relative Mahalanobis": RelativeMahalanobis,
    "nearest neighbours": NearestNeighbours,
    "one Gaussian per class": one_gaussian_per_class,
}
PAPER: dict[str, Any] = {"components": 5, "shrinkage": None}
TERMS = ("early", "middle")  # the default's layers before the head


class Fitted(NamedTuple):
    """What was fitted to one network."""

    default: LatentDensity
    choices: Sequence[Choice]
    score: Callable[[Tensor], tuple[Scores, Uncertainty]]
    near: Callable[[Tensor], tuple[Scores, Tensor]]  # of the default, softmax and the paper's setting; predictions
    logits: Callable[[Tensor], Tensor]


def fit(
    network: nn.Module, train: Tensor, unseen: tuple[Tensor, Tensor], measured: Mapping[str, Reduce], batch: int
) -> Fitted:
    """Fit the default and all single methods.

    Args:
        network: trained, in evaluation mode.
        train: what it was trained on.
        unseen: inputs that it was not trained on, with labels: for the default's combination and calibration.
        measured: the layers of the paper's setting, from the first to the last.
        batch: inputs per batch.
    """
    loader = train.split(batch)
    choices = suggest(network, loader)
    last = choices[-1]
    default = LatentDensity(network, progress=False)
    default.fit(loader, calibration=list(zip(*(part.split(batch) for part in unseen), strict=True)))
    options: dict[str, Any] = {"task": "classification", "progress": False}
    outputs = {name: kind(nn.Identity(), **options) for name, kind in OUTPUTS.items()}  # these are given logits

    def reading(*, normalise: bool) -> dict[str, Reduce]:
        return {last.layer: Reduce(last.how, None, pool=last.pool, read=last.read, normalise=normalise)}

    plain = LatentDensity(network, reading(normalise=False), **options)
    features = plain.extract(loader)
    single = {name: kind(network, reading(normalise=False), **options) for name, kind in FEATURES.items()}
    for detector in single.values():
        detector.fit_features(features)
    unit = Mahalanobis(network, reading(normalise=True), **options).fit(loader)
    paper = LatentDensity(network, dict(measured), GaussianMixture(**PAPER), **options).fit(loader)
    head = head_of(network.get_submodule(last.layer))

    def read(some: Features) -> tuple[Tensor, Tensor]:
        z = some.z[last.layer].to(head[0])
        return z, z @ head[0].T + head[1]

    z, logits = read(features)
    vim, mean = ViM.fit(z, logits, head), z.mean(0)

    def of_paper(loader: Sequence[Tensor]) -> Scores:
        each = paper.predict(loader).layers
        return {
            f"{PAPERS}, layer {place} of {len(measured)}": each[layer].epistemic.cpu()
            for place, layer in enumerate(measured, 1)
        }

    def near(x: Tensor) -> tuple[Scores, Tensor]:
        loader = x.split(batch)
        u = default.predict(loader)
        softmax = outputs[SOFTMAX].predict(read(plain.extract(loader))[1].split(batch)).epistemic
        return {DEFAULT: u.epistemic.cpu(), SOFTMAX: softmax.cpu(), **of_paper(loader)}, u.prediction

    def score(x: Tensor) -> tuple[Scores, Uncertainty]:
        loader = x.split(batch)
        u = default.predict(loader)
        scores = {DEFAULT: u.epistemic}
        some = plain.extract(loader)
        z, logits = read(some)
        scores |= {name: detector.predict(logits.split(batch)).epistemic for name, detector in outputs.items()}
        scores |= {name: detector.predict_features(some).epistemic for name, detector in single.items()}
        scores["Mahalanobis, unit length"] = unit.predict(loader).epistemic
        scores["ViM"] = vim(z, logits)
        scores["fDBD"] = fdbd(z, logits, head, mean)
        names = [
            *(f"default's {place} layer" for place in TERMS[len(TERMS) + 1 - len(choices) :]),
            "default's head layer",
        ]
        for name, choice in zip(names, choices, strict=True):
            scores[name] = u.layers[choice.layer].epistemic
        return {name: values.cpu() for name, values in scores.items()} | of_paper(loader), u

    return Fitted(default, choices, score, near, lambda x: read(plain.extract(x.split(batch)))[1].cpu())
