"""What a detector is made of: methods and terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from ..density import Moments, Sums
from ..extract import OUTPUTS, Features, Lattice, Source
from ..io import Unusable, name_of, register
from ..model.layers import with_names
from ..reduce import How, Reduce
from ..stored import Stored
from ..uncertainty import LayerScores

Layers = str | nn.Module | Sequence[str | nn.Module] | Mapping[str, Reduce] | Mapping[nn.Module, Reduce]


class Method(Stored, ABC):
    """What is fitted to one term's rows, kept in buffers, and how it scores new ones."""

    kinds: ClassVar[dict[str, type[Method]]] = {}  # every method by its name, for files
    unit = "nats"  # of the epistemic score
    fits = True  # whether there is anything to fit
    conditional = True  # whether it is fitted given predictions or labels
    needs_classes = False

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
        """Fit to training rows (n, d), given predictions or labels `y`; None where the method is not `conditional`.

        A method that `needs_classes` is given one class per row, also where these have several labels.
        """

    def agreement(self, z: Tensor, prediction: Tensor) -> float:
        """How far the classes that z alone tells of agree with those predicted, from 0 to 1; 1 where it tells none."""
        return 1.0

    @property
    def sums(self) -> Sums | None:
        """Which sums over rows `fit_gathered` takes instead of rows; None where it needs the rows themselves."""
        return None

    @property
    def chunks(self) -> bool:
        """Whether `fit_gathered` takes rows on disk."""
        return False

    def fit_gathered(self, data: Moments | Any, features: Features) -> Self:
        """Fit to sums over training rows, or to rows on disk, which say their `count`; `features` are a sample."""
        raise NotImplementedError(f"{type(self).__name__} needs all rows at once: call fit.")

    def probabilities(self, z: Tensor, prediction: Tensor) -> Tensor | None:
        """The probability of each class or label, (n, C), for a method that tells them; None for others."""
        return None

    def taught(self, z: Tensor, label: Tensor) -> Method:
        """The method with what labels, (n,) or (n, L), of data that it was not fitted to teach it."""
        return self

    @abstractmethod
    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> LayerScores:
        """Score rows (n, d), or pixels of a lattice for a method that `interpolates`, by what the network predicts.

        What a method does not tell stays None. No row that was `seen` in the fit is to be its own neighbour.
        """


@dataclass(frozen=True, eq=False)
class Term:
    """One part of a detector."""

    method: Method  # what to fit; it says what is wanted and stays as it is
    layer: str | None = None  # the dotted name of a layer, or None for the network's own outputs
    reduce: Reduce = field(default_factory=Reduce)  # how a layer's output becomes a vector
    name: str = ""  # what its scores are called; the layer's name, or "outputs", when it is not given

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
        return {**vars(self), "method": with_kind(self.method), "reduce": self.reduce.to_dict()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The inverse of `config`."""
        method = build(Method.kinds, config["method"], "method")
        return cls(method, config["layer"], Reduce.from_dict(config["reduce"]), config["name"])


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


def chosen_layers(
    model: nn.Module | None, layers: Layers, reduce: How | Reduce = "flatten", max_dim: int | None = 512
) -> dict[str, Reduce]:
    """How each layer is reduced, by name; `reduce` and `max_dim` are for those that do not say it themselves."""
    given = with_names(model, layers)
    if not isinstance(given, Iterable):
        raise TypeError(f"layers takes the name of a layer, such as '0', or several, not {given!r}.")
    names = [given] if isinstance(given, str) else list(given)
    default = reduce if isinstance(reduce, Reduce) else Reduce(reduce, max_dim=max_dim)
    chosen = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names, default)
    if len(chosen) != len(names):
        raise ValueError(f"a layer is named twice in {names}.")
    for name, how in chosen.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a layer is text, such as '0', not {name!r}.")
        if not isinstance(how, Reduce):
            raise TypeError(f"layers={{{name!r}: ...}} takes a Reduce(...), not {how!r}.")
    if not chosen:
        raise ValueError("name at least one layer. List them with layers(model, example).")
    return chosen
