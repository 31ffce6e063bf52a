"""All methods on one network: the library's default, and each of the others with one setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from hidden_uncertainty import Detector, Features, GaussianMixture, LatentDensity, Reduce, Uncertainty, suggest
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
from hidden_uncertainty.extract import OUTPUTS
from hidden_uncertainty.model.choice import Choice

from .peers import ViM, fdbd, head_of

Scores = dict[str, Tensor]  # by method, (n,)
SOFTMAX, DEFAULT, PAPERS = "softmax", "default", "paper's mixture"
OF_OUTPUTS: dict[str, type[Detector]] = {
    SOFTMAX: MaxProbability,
    "softmax entropy": SoftmaxEntropy,
    "energy": Energy,
    "GEN": GEN,
}
OF_FEATURES: dict[str, Callable[..., Detector]] = {
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
    single: Mapping[str, Detector]  # methods that read the outputs, or the last of these layers
    read: Callable[[Tensor], Features]  # what each of the default's layers gives, in both `forms`, and the logits
    score: Callable[[Tensor, Features], tuple[Scores, Uncertainty]]
    near: Callable[[Tensor], tuple[Scores, Tensor]]  # of the default, softmax and the paper's setting; predictions


def forms(layer: str) -> tuple[str, str]:
    """The names of what a layer gives, as it is and at unit length."""
    return layer, f"{layer} at unit length"


def means(layer: str) -> str:
    """The name of what a layer gives by its means over places or tokens alone, at unit length."""
    return f"{layer} by its means"


def fit(
    network: nn.Module, train: Tensor, unseen: tuple[Tensor, Tensor], measured: Mapping[str, Reduce], batch: int
) -> tuple[Fitted, Features]:
    """Fit the default and all single methods; what the default's layers give for training data comes with them.

    Args:
        network: trained, in evaluation mode.
        train: what it was trained on.
        unseen: inputs that it was not trained on, with labels: for the default's combination and calibration.
        measured: the layers of the paper's setting, from the first to the last; none where that was measured before.
        batch: inputs per batch.
    """
    loader = train.split(batch)
    choices = suggest(network, loader)
    last = choices[-1].layer
    default = LatentDensity(network, progress=False)
    default.fit(loader, calibration=list(zip(*(part.split(batch) for part in unseen), strict=True)))
    options: dict[str, Any] = {"task": "classification", "progress": False}
    plain = {choice.layer: Reduce(choice.how, None, pool=choice.pool, read=choice.read) for choice in choices}
    reader = LatentDensity(network, plain, **options)
    paper = None
    if measured:
        paper = LatentDensity(network, dict(measured), GaussianMixture(**PAPER), **options).fit(loader)
    head = head_of(network.get_submodule(last))

    def read(x: Tensor) -> Features:
        given = reader.extract(x.split(batch))
        arrays: dict[str, Tensor] = {}
        for layer, z in given.z.items():
            arrays |= dict(zip(forms(layer), (z, functional.normalize(z)), strict=True))
            if plain[layer].pool == "moments":
                arrays[means(layer)] = functional.normalize(z[:, : z.shape[1] // 2])
        logits = given.z[last].to(head[0]) @ head[0].T + head[1]
        return Features.from_arrays(arrays | {OUTPUTS: logits}, given.prediction)

    features = read(train)
    as_is, unit = forms(last)
    single: dict[str, Detector] = {name: kind(None, **options) for name, kind in OF_OUTPUTS.items()}
    single |= {name: kind(None, as_is, **options) for name, kind in OF_FEATURES.items()}
    single["Mahalanobis, unit length"] = Mahalanobis(None, unit, **options)
    for name, detector in single.items():
        if name not in OF_OUTPUTS:
            detector.fit_features(features)
    vim, mean = ViM.fit(features.z[as_is].to(head[0]), features.z[OUTPUTS], head), features.z[as_is].double().mean(0)

    def of_paper(loader: Sequence[Tensor]) -> Scores:
        if paper is None:
            return {}
        each = paper.predict(loader).layers
        return {
            f"{PAPERS}, layer {place} of {len(measured)}": each[layer].epistemic.cpu()
            for place, layer in enumerate(measured, 1)
        }

    def near(x: Tensor) -> tuple[Scores, Tensor]:
        loader = x.split(batch)
        some = default.extract(loader)
        u = default.predict_features(some)
        scores = {DEFAULT: u.epistemic, SOFTMAX: single[SOFTMAX].predict_features(some).epistemic}
        return {name: values.cpu() for name, values in scores.items()} | of_paper(loader), u.prediction

    def score(x: Tensor, some: Features) -> tuple[Scores, Uncertainty]:
        loader = x.split(batch)
        u = default.predict(loader)
        scores = {DEFAULT: u.epistemic}
        scores |= {name: detector.predict_features(some).epistemic for name, detector in single.items()}
        z, logits = some.z[as_is].to(head[0]), some.z[OUTPUTS]
        scores["ViM"] = vim(z, logits)
        scores["fDBD"] = fdbd(z, logits, head, mean)
        names = [
            *(f"default's {place} layer" for place in TERMS[len(TERMS) + 1 - len(choices) :]),
            "default's head layer",
        ]
        for name, choice in zip(names, choices, strict=True):
            scores[name] = u.layers[choice.layer].epistemic
        return {name: values.cpu() for name, values in scores.items()} | of_paper(loader), u

    return Fitted(default, choices, single, read, score, near), features
