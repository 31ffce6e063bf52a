"""What else the default could be: each variant changes one thing. They are measured on development families alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Reduce, Uncertainty
from hidden_uncertainty.latent import POOLING
from hidden_uncertainty.scoring.combination import Tail

from .methods import Fitted, Scores

OUTPUTS = "outputs"
HINGE = 2.3  # -log p of the highest tenth
Tails = Mapping[str, Tail]
Terms = dict[str, Tensor]  # by layer, (n,)
Score = Callable[[Tensor, Scores, Uncertainty], Scores]


def combined(tails: Tails, terms: Terms, *, power: float = 1.0) -> Tensor:
    """The sum of weighted -log p, with weights to a power: at 1 it is the default's.

    Args:
        tails: of each term.
        terms: the terms' scores.
        power: of the weights, which are κ².
    """
    return torch.stack([_rare(tail, terms[name]) * tail.weight**power for name, tail in tails.items()]).sum(0)


def fit(fitted: Fitted, network: nn.Module, train: Tensor, unseen: tuple[Tensor, Tensor], batch: int) -> Score:
    """Fit what variants need; the result scores inputs from what the default and single methods say of them.

    Args:
        fitted: the default and single methods.
        network: that they were fitted to.
        train: what it was trained on.
        unseen: inputs that it was not trained on, with labels.
        batch: inputs per batch.
    """
    tails = _learnt(fitted.default)
    *before, last = (choice.layer for choice in fitted.choices)
    calibration = list(zip(*(part.split(batch) for part in unseen), strict=True))

    def refit(density: GaussianMixture, *, unit: tuple[bool, bool]) -> LatentDensity:
        """The layers again, with another density, at unit length (before the head, at the head) or not."""
        layers = {
            choice.layer: Reduce(
                choice.how, 512, pool=choice.pool, read=choice.read, normalise=unit[choice.layer == last]
            )
            for choice in fitted.choices
        }
        other = LatentDensity(network, layers, density, combine="fisher", task="classification", progress=False)
        return other.fit(train.split(batch), calibration=calibration)

    pooled = GaussianMixture(pooling=POOLING)
    others = {
        "one covariance for all classes": refit(GaussianMixture(covariance="pooled"), unit=(False, True)),
        "one covariance per class, shrunk": refit(GaussianMixture(1), unit=(False, True)),
        "head's features as they are": refit(pooled, unit=(False, False)),
        "all layers at unit length": refit(pooled, unit=(True, True)),
    }
    scores, _ = fitted.score(unseen[0])
    replaced = {  # a single method in the place of a term, with its weight
        "softmax entropy instead of GEN": (OUTPUTS, "softmax entropy"),
        "energy instead of GEN": (OUTPUTS, "energy"),
        "neighbours instead of the head's density": (last, "nearest neighbours"),
    }
    new = {name: Tail.fit(scores[method], tails[place].weight) for name, (place, method) in replaced.items()}

    def without(*names: str) -> dict[str, Tail]:
        return {name: tail for name, tail in tails.items() if name not in names}

    def score(x: Tensor, single: Scores, u: Uncertainty) -> Scores:
        terms = {name: layer.epistemic.cpu() for name, layer in u.layers.items()}
        found = {
            "equal weights": combined(tails, terms, power=0),
            "weights κ": combined(tails, terms, power=0.5),
            "weights κ⁴": combined(tails, terms, power=2),
            "highest term instead of the sum": torch.stack([t(terms[n]) for n, t in tails.items()]).amax(0),
            "without the outputs": combined(without(OUTPUTS), terms),
            "without the head's features": combined(without(last), terms),
            "without the layers before the head": combined(without(*before), terms),
            "layers before the head only beyond their 90 % quantile, full weight": combined(without(*before), terms)
            + sum((_rare(tails[name], terms[name]) - HINGE).clamp(min=0) for name in before),
        }
        for name, (place, method) in replaced.items():
            found[name] = combined({**tails, place: new[name]}, {**terms, place: single[method]})
        for name, other in others.items():
            own = {layer: part.epistemic.cpu() for layer, part in other.predict(x.split(batch)).layers.items()}
            found[name] = combined({**_learnt(other), OUTPUTS: tails[OUTPUTS]}, {**own, OUTPUTS: terms[OUTPUTS]})
        return found

    return score


def _rare(tail: Tail, scores: Tensor) -> Tensor:
    """-log p without its weight."""
    return tail._replace(weight=1.0)(scores.double())


def _learnt(detector: LatentDensity) -> dict[str, Tail]:
    assert detector.head is not None
    return {name: tail for name, tail in detector.head.combination.learnt.items() if isinstance(tail, Tail)}
