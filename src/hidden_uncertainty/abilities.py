"""What each method can do beside scoring: the table that errors, documentation and tests read."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Ability = Literal["save", "features", "pixels", "export"]


class Abilities(NamedTuple):
    """What a method can do."""

    save: bool  # be written to a file and read again
    features: bool  # be fitted to features that were extracted before, and score them
    pixels: bool  # score every pixel of networks that predict for each
    export: bool = False  # become one graph with the network


ABILITIES: dict[str, Abilities] = {
    "Detector": Abilities(save=True, features=True, pixels=True, export=True),
    "LatentDensity": Abilities(save=True, features=True, pixels=True, export=True),
    "Mahalanobis": Abilities(save=True, features=True, pixels=True, export=True),
    "RelativeMahalanobis": Abilities(save=True, features=True, pixels=True, export=True),
    "NearestNeighbours": Abilities(save=True, features=True, pixels=True),
    "KernelDensity": Abilities(save=True, features=True, pixels=True),
    "Credibility": Abilities(save=True, features=True, pixels=False),
    "SoftmaxEntropy": Abilities(save=True, features=True, pixels=True, export=True),
    "MaxProbability": Abilities(save=True, features=True, pixels=True, export=True),
    "Energy": Abilities(save=True, features=True, pixels=True, export=True),
    "GEN": Abilities(save=True, features=True, pixels=True, export=True),
    "DeepEnsemble": Abilities(save=False, features=False, pixels=True),
    "MCDropout": Abilities(save=False, features=False, pixels=True),
    "GaussianProcess": Abilities(save=False, features=False, pixels=False),
    "PytorchOOD": Abilities(save=False, features=False, pixels=False),
    "PytorchOODFeatures": Abilities(save=False, features=True, pixels=True),
}
_WORDS: dict[Ability, str] = {
    "save": "cannot be saved: what it holds is not only numbers of its own. Fit it again where it is needed",
    "features": "scores inputs, not features of them: use fit(loader) and predict(loader)",
    "pixels": "scores whole inputs, not pixels: leave pixels= out, or use another method",
    "export": "cannot be one graph with its network: it runs networks in its own way, or searches its training data. "
    "LatentDensity, Mahalanobis and methods on outputs can",
}


def require(method: Any, ability: Ability) -> None:
    """Raise, naming the method, unless it can do what is asked; a class of your own can what its nearest base can.

    Example:
        >>> from hidden_uncertainty.baselines import GaussianProcess
        >>> require(GaussianProcess(), "save")
        Traceback (most recent call last):
        NotImplementedError: GaussianProcess cannot be saved: ...
    """
    ours = [kind.__name__ for kind in type(method).__mro__ if kind.__module__.startswith("hidden_uncertainty.")]
    known = next(ABILITIES[name] for name in ours if name in ABILITIES)
    if not getattr(known, ability):
        raise NotImplementedError(f"{type(method).__name__} {_WORDS[ability]}.")
