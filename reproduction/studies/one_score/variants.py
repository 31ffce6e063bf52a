"""What else the default could be: each variant changes one thing. They are measured on development families alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hidden_uncertainty import Features, GaussianMixture, LatentDensity, Uncertainty
from hidden_uncertainty.extract import OUTPUTS
from hidden_uncertainty.latent import POOLING
from hidden_uncertainty.model.choice import Choice
from hidden_uncertainty.scoring.combination import FAMILIAR, LOWEST, STEEP, Tail

from .methods import Fitted, Scores, forms, means

Tails = Mapping[str, Tail]
Terms = dict[str, Tensor]  # by layer, (n,)
Score = Callable[[Features, Scores, Uncertainty], Scores]


def combined(
    tails: Tails, terms: Terms, *, power: float = 1.0, far: float | None = None, steep: float = STEEP
) -> Tensor:
    """The score of terms, with weights to a power: at 1 they are the default's.

    Args:
        tails: of each term.
        terms: the terms' scores.
        power: of the weights, which are κ⁴.
        far: what all terms together exceed where they are far from the data; None leaves that out.
        steep: how much counts what is beyond.
    """
    rare = {name: tail.rarity(terms[name]) for name, tail in tails.items()}
    near = torch.stack([tail.weight**power * rare[name] for name, tail in tails.items()]).sum(0)
    return near if far is None else torch.logaddexp(near, steep * (together(tails, terms) - far))


def together(tails: Tails, terms: Terms) -> Tensor:
    """How rare inputs are for all terms alike."""
    return torch.stack([tail.rarity(terms[name]) for name, tail in tails.items()]).sum(0)


def squared(tails: Tails, terms: Terms) -> Tensor:
    """The rule before: what is beyond the highest 5 % of each single term counts squared."""
    rare = torch.stack([tail.rarity(terms[name]) for name, tail in tails.items()])
    return combined(tails, terms) + (rare - LOWEST).clamp(min=0).square().sum(0) / 2


def fit(fitted: Fitted, features: Features, unseen: Features, single: Scores, u: Uncertainty) -> Score:
    """Fit what variants need; the result scores inputs from what the default and single methods say of them.

    Args:
        fitted: the default and single methods.
        features: of training data, as `Fitted.read` gives them.
        unseen: of inputs that the network was not trained on, alike.
        single: scores of these by single methods.
        u: scores of these by the default.
    """
    assert fitted.default.head is not None
    tails, far = _learnt(fitted.default), fitted.default.head.combination.far
    *before, last = (choice.layer for choice in fitted.choices)

    def refit(density: GaussianMixture, unit: Callable[[Choice], bool], *, spread: bool = True) -> LatentDensity:
        """The layers again, with another density, some at unit length, or by their means alone."""
        names = [
            means(choice.layer) if choice.pool == "moments" and not spread else forms(choice.layer)[unit(choice)]
            for choice in fitted.choices
        ]
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
        "means of maps and tokens alone": refit(pooled, usual, spread=False),
    }
    replaced = {  # a single method in the place of a term, with its weight
        "softmax entropy instead of GEN": (OUTPUTS, "softmax entropy"),
        "energy instead of GEN": (OUTPUTS, "energy"),
        "neighbours instead of the head's density": (last, "nearest neighbours"),
    }
    new = {name: Tail.fit(single[method], tails[place].weight) for name, (place, method) in replaced.items()}

    def without(*names: str) -> dict[str, Tail]:
        return {name: tail for name, tail in tails.items() if name not in names}

    def changed(some: Features, single: Scores, terms: Terms) -> dict[str, tuple[Tails, Terms]]:
        """Other terms, or fewer."""
        found: dict[str, tuple[Tails, Terms]] = {
            "without the outputs": (without(OUTPUTS), terms),
            "without the head's features": (without(last), terms),
            "without the layers before the head": (without(*before), terms),
        }
        for name, (place, method) in replaced.items():
            found[name] = ({**tails, place: new[name]}, {**terms, place: single[method]})
        for name, other in others.items():
            own = {layer: part.epistemic.cpu() for layer, part in other.predict_features(some).layers.items()}
            found[name] = ({**_learnt(other), OUTPUTS: tails[OUTPUTS]}, {**own, OUTPUTS: terms[OUTPUTS]})
        return found

    known = _terms(u)
    fars = {name: float(together(*both).quantile(FAMILIAR)) for name, both in changed(unseen, single, known).items()}
    twentieth = float(together(tails, known).quantile(0.95))

    def score(some: Features, single: Scores, u: Uncertainty) -> Scores:
        terms = _terms(u)
        return {
            "equal weights": combined(tails, terms, power=0, far=far),
            "weights κ²": combined(tails, terms, power=0.5, far=far),
            "weights κ⁸": combined(tails, terms, power=2, far=far),
            "nothing more where all terms are far": combined(tails, terms),
            "only what all terms say together": together(tails, terms),
            "far from the highest twentieth on": combined(tails, terms, far=twentieth),
            "far counts once": combined(tails, terms, far=far, steep=1),
            "far counts three times": combined(tails, terms, far=far, steep=3),
            "the rule before: squares beyond the highest 5 % of each term": squared(tails, terms),
            **{name: combined(*both, far=fars[name]) for name, both in changed(some, single, terms).items()},
        }

    return score


def _terms(u: Uncertainty) -> Terms:
    return {name: layer.epistemic.cpu() for name, layer in u.layers.items()}


def _learnt(detector: LatentDensity) -> dict[str, Tail]:
    assert detector.head is not None
    return {name: tail for name, tail in detector.head.combination.learnt.items() if isinstance(tail, Tail)}
