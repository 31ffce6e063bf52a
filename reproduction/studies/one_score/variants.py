"""What else the default could be: each variant changes one thing. They are measured on development families alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hidden_uncertainty import Features, GaussianMixture, LatentDensity, Uncertainty
from hidden_uncertainty.extract import OUTPUTS
from hidden_uncertainty.latent import POOLING
from hidden_uncertainty.model.choice import Choice
from hidden_uncertainty.scoring.combination import Tail

from .methods import Fitted, Scores, forms

Tails = Mapping[str, Tail]
Terms = dict[str, Tensor]  # by layer, (n,)
Score = Callable[[Features, Scores, Uncertainty], Scores]


def combined(tails: Tails, terms: Terms, *, power: float = 1.0, far: bool = True) -> Tensor:
    """The sum of what terms add, with weights to a power: at 1 it is the default's.

    Args:
        tails: of each term.
        terms: the terms' scores.
        power: of the weights, which are κ⁴.
        far: whether what is beyond the highest 5 % counts more.
    """
    changed = {name: tail._replace(weight=tail.weight**power) for name, tail in tails.items()}
    each = [
        tail(terms[name].double()) if far else tail.weight * tail.rarity(terms[name]) for name, tail in changed.items()
    ]
    return torch.stack(each).sum(0)


def fit(fitted: Fitted, features: Features, unseen: Features) -> Score:
    """Fit what variants need; the result scores inputs from what the default and single methods say of them.

    Args:
        fitted: the default and single methods.
        features: of training data, as `Fitted.read` gives them.
        unseen: of inputs that the network was not trained on, alike.
    """
    tails = _learnt(fitted.default)
    *before, last = (choice.layer for choice in fitted.choices)

    def refit(density: GaussianMixture, unit: Callable[[Choice], bool]) -> LatentDensity:
        """The layers again, with another density, some at unit length."""
        names = [forms(choice.layer)[unit(choice)] for choice in fitted.choices]
        other = LatentDensity(None, names, density, combine="fisher", task="classification", progress=False)
        return other.fit_features(features, calibration=unseen)

    def usual(choice: Choice) -> bool:
        return choice.layer == last or choice.how != "flatten"

    pooled = GaussianMixture(pooling=POOLING)
    others = {
        "one covariance for all classes": refit(GaussianMixture(covariance="pooled"), usual),
        "one covariance per class, shrunk": refit(GaussianMixture(1), usual),
        "head's features as they are": refit(pooled, lambda choice: choice.layer != last and usual(choice)),
        "layers before the head as they are": refit(pooled, lambda choice: choice.layer == last),
        "all layers at unit length": refit(pooled, lambda choice: True),
    }
    replaced = {  # a single method in the place of a term, with its weight
        "softmax entropy instead of GEN": (OUTPUTS, "softmax entropy"),
        "energy instead of GEN": (OUTPUTS, "energy"),
        "neighbours instead of the head's density": (last, "nearest neighbours"),
    }
    new = {
        name: Tail.fit(fitted.single[method].predict_features(unseen).epistemic.cpu(), tails[place].weight)
        for name, (place, method) in replaced.items()
    }

    def without(*names: str) -> dict[str, Tail]:
        return {name: tail for name, tail in tails.items() if name not in names}

    def score(some: Features, single: Scores, u: Uncertainty) -> Scores:
        terms = {name: layer.epistemic.cpu() for name, layer in u.layers.items()}
        found = {
            "equal weights": combined(tails, terms, power=0),
            "weights κ²": combined(tails, terms, power=0.5),
            "weights κ³": combined(tails, terms, power=0.75),
            "nothing more beyond the highest 5 %": combined(tails, terms, far=False),
            "weights κ², nothing more beyond the highest 5 %": combined(tails, terms, power=0.5, far=False),
            "highest term instead of the sum": torch.stack([t(terms[n]) for n, t in tails.items()]).amax(0),
            "without the outputs": combined(without(OUTPUTS), terms),
            "without the head's features": combined(without(last), terms),
            "without the layers before the head": combined(without(*before), terms),
        }
        for name, (place, method) in replaced.items():
            found[name] = combined({**tails, place: new[name]}, {**terms, place: single[method]})
        for name, other in others.items():
            own = {layer: part.epistemic.cpu() for layer, part in other.predict_features(some).layers.items()}
            found[name] = combined({**_learnt(other), OUTPUTS: tails[OUTPUTS]}, {**own, OUTPUTS: terms[OUTPUTS]})
        return found

    return score


def _learnt(detector: LatentDensity) -> dict[str, Tail]:
    assert detector.head is not None
    return {name: tail for name, tail in detector.head.combination.learnt.items() if isinstance(tail, Tail)}
