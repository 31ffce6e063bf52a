"""What a detector is made of: methods, terms, and how several terms' scores become one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..extract import OUTPUTS, Features, Lattice, Source
from ..io import Unusable, name_of, register
from ..notes import deprecated
from ..reduce import How, Reduce

Layers = str | Sequence[str] | Mapping[str, Reduce]
Combine = Literal["last", "mean"] | Mapping[str, float]


class Scores(NamedTuple):
    """Scores of n rows, higher when more uncertain; None where a method does not tell."""

    epistemic: Tensor  # (n,)
    aleatoric: Tensor | None = None  # (n,)
    log_aleatoric: Tensor | None = None  # (n,)
    expected_error: Tensor | None = None  # (n,), or (n, q); shown to users only of methods that were given labels


class Method(nn.Module, ABC):
    """What is fitted to one term's rows, and how it scores new ones.

    What was fitted lives in buffers, so that a method moves and saves like any module. `config` says how to build it
    again, empty; its buffers are then loaded into that.
    """

    kinds: ClassVar[dict[str, type[Method]]] = {}  # every method by its name, for files
    unit = "nats"  # of the epistemic score
    fits = True  # whether there is anything to fit
    conditional = True  # whether it is fitted given predictions or labels
    needs_classes = False
    smooth = True  # whether scores change little where z does; counts jump

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register(Method.kinds, cls)

    @property
    def shared(self) -> Sequence[nn.Module]:
        """What this method may share with those of other terms, such as a marginal; all else is its own."""
        return ()

    @property
    def interpolates(self) -> bool:
        """Whether `score` takes a lattice, and is then cheaper than for all interpolated rows."""
        return False

    @abstractmethod
    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Fit to training rows.

        Args:
            z: what the term reads, (n, d).
            y: what the rows are conditioned on, the predictions or the labels; None where `conditional` is False.
            features: all that is known of the rows.
        """

    @abstractmethod
    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> Scores:
        """Score rows.

        Args:
            z: (n, d), or a lattice that n pixels lie between, for a method that `interpolates`.
            prediction: what the network predicts for them, (n,) or (n, q).
            seen: whether they are rows that this was fitted to, none of which is to be its own neighbour.
        """

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON, before a fit and after it: files hold both."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved: it does not say its configuration.")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The method that `config` describes, its buffers zero until they are loaded."""
        raise NotImplementedError(f"{cls.__name__} cannot be loaded: it does not say how it is built.")


@dataclass(frozen=True, eq=False)
class Term:
    """One part of a detector.

    Args:
        method: what to fit; it says what is wanted and stays as it is.
        layer: the dotted name of a layer, or None for the network's own outputs.
        reduce: how a layer's output becomes a vector.
        name: what its scores are called; the layer's name, or `"outputs"`, when it is not given.

    Example:
        >>> from hidden_uncertainty.scoring.bayes import DensityMethod
        >>> Term(DensityMethod(), "layer3").name
        'layer3'
    """

    method: Method
    layer: str | None = None
    reduce: Reduce = field(default_factory=Reduce)
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method) or not isinstance(self.reduce, Reduce):
            raise TypeError(f"a term takes a Method and a Reduce(...), not {self.method!r} and {self.reduce!r}.")
        if not self.name:
            object.__setattr__(self, "name", OUTPUTS if self.layer is None else self.layer)

    @property
    def source(self) -> Source:
        """What is read."""
        return Source(self.layer, self.reduce)

    def config(self) -> dict[str, Any]:
        """Everything, as JSON."""
        method, reduce = with_kind(self.method), self.reduce.to_dict()
        return {"method": method, "layer": self.layer, "reduce": reduce, "name": self.name}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The inverse of `config`."""
        method = build(Method.kinds, config["method"], "method")
        return cls(method, config["layer"], Reduce.from_dict(config["reduce"]), config["name"])


class Combination:
    """One epistemic score from those of all terms.

    Args:
        combine: `"last"` takes the last term's; `"mean"` averages the scores, each standardised by its mean and
            deviation on training data; weights take the weighted sum of the scores as they are.
        names: of the terms.
        standard: of each term's scores, for `"mean"`.

    Example:
        >>> combination = Combination({"conv": 1.0, "fc": 2.0}, ["conv", "fc"])
        >>> combination({"conv": torch.tensor([1.0]), "fc": torch.tensor([3.0])})
        tensor([7.])
    """

    def __init__(self, combine: Combine, names: Sequence[str], standard: Mapping[str, Standard] | None = None) -> None:
        self.combine: Combine = dict(combine) if isinstance(combine, Mapping) else combine
        self.names, self.standard = list(names), dict(standard or {})
        weights = self.combine if isinstance(self.combine, dict) else None
        # The term that tells what is not combined, such as the aleatoric score: the last that counts.
        self.leading = [name for name in self.names if weights is None or name in weights][-1]
        # Whether the score is that of the leading term, as it is.
        self.single = [*weights.values()] == [1.0] if weights else self.combine == "last" or len(self.names) == 1
        self.learns = self.combine == "mean" and not self.single  # whether `standard` is needed

    def __call__(self, scores: Mapping[str, Tensor]) -> Tensor:
        """One score per input."""
        if self.single:
            return scores[self.leading]
        if isinstance(self.combine, Mapping):
            return torch.stack([weight * scores[name] for name, weight in self.combine.items()]).sum(0)
        parts = [(scores[name] - mean) / deviation for name, (mean, deviation) in self.standard.items()]
        return torch.stack(parts).mean(0)

    def learn(self, scores: Mapping[str, Tensor]) -> Combination:
        """The combination with the standard of scores on training data."""
        standard = {name: Standard(float(some.mean()), float(some.std()) or 1.0) for name, some in scores.items()}
        return Combination(self.combine, self.names, standard)

    def config(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {"combine": self.combine, "standard": {name: list(pair) for name, pair in self.standard.items()}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], names: Sequence[str]) -> Combination:
        """The inverse of `config`."""
        return cls(config["combine"], names, {name: Standard(*pair) for name, pair in config["standard"].items()})


def with_kind(part: Any) -> dict[str, Any]:
    """The configuration of a method, density or marginal with its kind, for `build`."""
    return {"kind": name_of(getattr(part, "kinds", {}), type(part)), **part.config()}


def build(kinds: Mapping[str, Any], config: Mapping[str, Any], what: str) -> Any:
    """The method, density or marginal that a configuration with its kind describes."""
    options = dict(config)
    kind = options.pop("kind")
    if kind not in kinds:
        raise Unusable(f"the file holds a {what} of kind {kind!r}; this version knows {', '.join(kinds)}.")
    return kinds[kind].from_config(options)


def by_name(terms: Sequence[Term]) -> dict[str, Term]:
    """Terms by their names, which must differ."""
    if isinstance(terms, Term) or not all(isinstance(term, Term) for term in terms):
        raise TypeError(f"terms= takes a list of Term(...), not {terms!r}.")
    named = {term.name: term for term in terms}
    if not terms or len(named) != len(terms):
        raise ValueError(f"give at least one term, each with a name of its own; got {[term.name for term in terms]}.")
    return named


def chosen_layers(layers: Layers, reduce: How | Reduce = "flatten", max_dim: int | None = 512) -> dict[str, Reduce]:
    """How each layer is reduced, by name.

    Args:
        layers: the name of a layer, several, or a mapping from names to how each is reduced.
        reduce: how, for layers that do not say it themselves.
        max_dim: the most dimensions, where `reduce` does not say it itself.

    Example:
        >>> chosen_layers(["conv", "fc"], "channels")["conv"].how
        'channels'
    """
    if isinstance(layers, str):
        layers = [layers]
    if isinstance(layers, Mapping):
        chosen = dict(layers)
    elif not isinstance(layers, Iterable):
        raise TypeError(f"layers takes the name of a layer, such as '0', or several, not {layers!r}.")
    else:
        default = reduce if isinstance(reduce, Reduce) else Reduce(reduce, max_dim=max_dim)
        chosen = dict.fromkeys(layers, default)
        if len(chosen) != len(layers):
            raise ValueError(f"a layer is named twice in {list(layers)}.")
    for name, how in chosen.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a layer is text, such as '0', not {name!r}.")
        if not isinstance(how, Reduce):
            raise TypeError(f"layers={{{name!r}: ...}} takes a Reduce(...), not {how!r}.")
    if not chosen:
        raise ValueError("name at least one layer. List them with layers(model, example).")
    return chosen


class Standard(NamedTuple):
    """Mean and deviation of a term's scores on training data."""

    mean: float
    deviation: float


def check_combine(combine: Any, names: Sequence[str]) -> Combine:
    """What `combine=` may be; a layer's name stands, as in version 0.1.0, for that layer alone."""
    if isinstance(combine, Mapping):
        if not combine or not set(combine) <= set(names):
            raise ValueError(f"combine has weights for {list(combine)}; name some of the layers {list(names)}.")
        numbers = all(isinstance(weight, Real) and math.isfinite(weight) for weight in combine.values())
        weights = {name: float(weight) for name, weight in combine.items() if weight != 0} if numbers else {}
        if not weights:
            raise ValueError(f"combine's weights are finite numbers, not all zero; got {list(combine.values())}.")
        return weights
    if combine in ("last", "mean"):
        return combine
    if combine in names:
        deprecated(f"combine={combine!r}, a layer's name,", f"combine={{{combine!r}: 1.0}}")
        return {combine: 1.0}
    raise ValueError(f"combine must be 'last', 'mean' or weights of the layers {list(names)}, not {combine!r}.")
