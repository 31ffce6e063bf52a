"""What each method can do beside scoring: the table that errors, documentation and tests read."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Ability = Literal["save", "features", "pixels", "labels", "export"]


class Abilities(NamedTuple):
    """What a method can do."""

    save: bool  # be written to a file and read again
    features: bool  # be fitted to features that were extracted before, and score them
    pixels: bool  # score every pixel of networks that predict for each
    labels: bool  # score networks that predict several labels per input
    export: bool  # become one graph with the network


ABILITIES: dict[str, Abilities] = {
    "Detector": Abilities(save=True, features=True, pixels=True, labels=True, export=True),
    "LatentDensity": Abilities(save=True, features=True, pixels=True, labels=True, export=True),
    "Mahalanobis": Abilities(save=True, features=True, pixels=True, labels=True, export=True),
    "RelativeMahalanobis": Abilities(save=True, features=True, pixels=True, labels=True, export=True),
    "NearestNeighbours": Abilities(save=True, features=True, pixels=True, labels=True, export=False),
    "SoftmaxEntropy": Abilities(save=True, features=True, pixels=True, labels=True, export=True),
    "MaxProbability": Abilities(save=True, features=True, pixels=True, labels=True, export=True),
    "Energy": Abilities(save=True, features=True, pixels=True, labels=True, export=True),
    "GEN": Abilities(save=True, features=True, pixels=True, labels=True, export=True),
    "DeepEnsemble": Abilities(save=False, features=False, pixels=True, labels=False, export=False),
    "MCDropout": Abilities(save=False, features=False, pixels=True, labels=False, export=False),
    "PytorchOOD": Abilities(save=False, features=False, pixels=False, labels=True, export=False),
    "PytorchOODFeatures": Abilities(save=False, features=True, pixels=True, labels=True, export=False),
}
_WORDS: dict[Ability, str] = {
    "save": "cannot be saved: what it holds is not only numbers of its own. Fit it again where it is needed",
    "features": "scores inputs, not features of them: use fit(loader) and predict(loader)",
    "pixels": "scores whole inputs, not pixels: leave pixels= out, or use another method",
    "labels": "is not for several labels per input: use LatentDensity, Mahalanobis, NearestNeighbours or GEN, or one "
    "detector per label, with task='classification' and a model that returns that label's logit alone",
    "export": "cannot be one graph with its network: it runs networks in its own way, or searches its training data. "
    "LatentDensity, Mahalanobis and methods on outputs can",
}


def require(method: Any, ability: Ability) -> None:
    """Raise, naming the method, unless it can do what is asked; a class of your own can what its nearest base can."""
    ours = [kind.__name__ for kind in type(method).__mro__ if kind.__module__.startswith("hidden_uncertainty.")]
    known = next(ABILITIES[name] for name in ours if name in ABILITIES)
    if not getattr(known, ability):
        raise NotImplementedError(f"{type(method).__name__} {_WORDS[ability]}.")
