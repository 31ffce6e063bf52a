"""`LatentDensity`: uncertainty from the density of a trained network's activations."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from .density import Density, GaussianMixture
from .detector import Detector
from .extract import OUTPUTS, Pixels
from .marginal import Marginal
from .marginal.base import MarginalName
from .model.batches import Adapter
from .model.capture import run
from .model.choice import Choice, Choices, choose_layers
from .model.layers import with_names
from .model.tasks import Condition, MultiLabel, Task, TaskName, from_config
from .notes import note
from .precision import gradients
from .reduce import How, Reduce
from .scoring.bayes import DEFAULTS, DensityMethod, Prior
from .scoring.combination import Combine
from .scoring.distribution import OutputDistribution, grid
from .scoring.outputs import GENMethod
from .scoring.terms import Layers, Term, chosen_layers
from .team import team

POOLING = 10.0  # of covariances of classes, which score better than one for all while there is enough to fit them
LARGEST = 1 << 23  # numbers in these covariances at most: products with more take as long as small networks


class LatentDensity(Detector):
    r"""Epistemic and aleatoric uncertainty of a trained network, from the density of its hidden activations.

    .. math::
        \text{epistemic} = -\log p(z) = -\log \sum_{\hat y} p(z \mid \hat y)\, p(\hat y), \qquad
        \text{aleatoric} = -\sum_{\hat y} p(\hat y \mid z) \log p(\hat y \mid z)

    with z the activations of a layer, reduced to at most `max_dim` dimensions (paper, eq. 5, 6 and Algorithm 1); the
    sums are integrals where the network predicts numbers. The model is referenced, not owned: it is never changed,
    moved or saved.

    Args:
        model: any trained `nn.Module`; None to fit and score features alone (`Features.from_arrays`).
        layers: the dotted name of a layer, or the layer itself, several of them, or a mapping from them to how each is
            reduced (`Reduce`). List them with `layers(model, example)`. `"auto"` chooses them at the fit: for classes,
            what the last layer reads, brought to length one, two layers before it, and the outputs; for numbers, what
            the last layer reads. `suggest(model, loader)` shows which.
        density: p(z | ŷ), copied for every layer; or a mapping with one for each layer. None is a `GaussianMixture` per
            class for classes, one Gaussian of a covariance that all share per set of labels, and a `JointMixture` for
            numbers; for layers that were chosen, one Gaussian per class, of
            covariances that classes share in part, or wholly where there are many.
        max_dim: layers that are wider are reduced to this many dimensions, or to twice as many where layers are chosen
            and read by their moments; None never reduces.
        reduce: how a layer's output becomes a vector: `"flatten"`, `"channels"`, `"tokens"`, `"token"`, `"project"`, or
            a `Reduce`, whose own `max_dim` then counts.
        task: what the network predicts, `"classification"`, `"regression"`, `"multi-label"`, or a task that says more,
            as a `Regression` where a predicted variance is; None infers one of the first two where the outputs leave no
            doubt, and logs it.
        condition: fit p(z | ŷ) given the network's predictions, as in the paper, or given the labels. With predictions
            p(ŷ | z) is as narrow as the density allows, since ŷ is a function of z; labels show the noise of the data.
        marginal: p(ŷ) of numbers: `"uniform"`, `"gaussian"`, `"beta-prime"` or `"histogram"`; `"auto"` chooses by
            held-out likelihood among the last three, which have tails. A marginal of your own can say its support too.
        combine: how several layers become one score: `"last"`, `"mean"`, `"fisher"` or weights, as for `Detector`. None
            is `"fisher"` for layers that were chosen, and `"last"` for others.
        output, pixels, unpack, seed, progress: as for `Detector`.

    Example:
        >>> from hidden_uncertainty import GaussianMixture
        >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> x = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0))
        >>> detector = LatentDensity(model, layers="0", density=GaussianMixture(components=2), task="classification")
        >>> detector = detector.fit(x[:2000].split(100), calibration=x[2000:].split(100))
        >>> threshold = detector.threshold(false_alarm=0.01)
        >>> detector(torch.tensor([[0.1, 0.2], [30.0, -20.0]])).surprising
        tensor([False,  True])
    """

    _auto: dict[str, Any] | None = None  # what is asked of layers that are chosen at the fit

    def __init__(
        self,
        model: nn.Module | None,
        layers: Layers | Literal["auto"] = "auto",
        density: Density | Mapping[str, Density] | Mapping[nn.Module, Density] | None = None,
        *,
        max_dim: int | None = 512,
        reduce: How | Reduce | None = None,
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        condition: Condition = "prediction",
        marginal: MarginalName | Literal["auto"] | Marginal = "auto",
        combine: Combine | str | None = None,
        pixels: Pixels | None = None,
        unpack: Adapter | None = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        if isinstance(marginal, str) and marginal not in ("auto", *get_args(MarginalName)):
            raise ValueError(
                f"marginal must be 'auto', one of {get_args(MarginalName)} or a marginal, not {marginal!r}."
            )
        options: dict[str, Any] = {"task": task, "output": output, "unpack": unpack, "seed": seed, "progress": progress}
        options |= {"condition": condition, "pixels": pixels}
        if isinstance(layers, str) and layers == "auto":
            _check_auto(model, density, reduce, pixels)
            self._auto = {"density": density, "max_dim": max_dim, "marginal": marginal, "combine": combine}
            # Until the network has run, no more is known than that it has outputs.
            super().__init__(model, [Term(GENMethod(), name="auto"), Term(GENMethod())], combine="fisher", **options)
            return
        chosen = chosen_layers(model, layers, reduce or "flatten", max_dim)
        densities, prior = _densities(model, density, chosen), Prior(marginal)
        terms = [Term(DensityMethod(densities[name], prior), name, how) for name, how in chosen.items()]
        super().__init__(model, terms, combine=combine or "last", **options)

    @property
    def weights(self) -> dict[str, float]:
        """What each layer's word weighs in the combined score, where that was learnt by `combine="fisher"`."""
        combination = self._fitted().head.combination
        if not combination.tails:
            raise RuntimeError("weights are learnt with combine='fisher' and several layers.")
        return {name: learnt[-1] for name, learnt in combination.learnt.items()}

    @property
    def densities(self) -> dict[str, Density | None]:
        """What is to be fitted to each layer; None is the default of the task."""
        return {name: method.density for name, method in _densities_of(self.terms).items()}

    @property
    def fitted_densities(self) -> dict[str, Density]:
        """What was fitted to each layer."""
        return {name: method.fitted for name, method in _densities_of(self._fitted().head.terms).items()}

    @property
    def fitted_marginal(self) -> Marginal:
        """The marginal p(ŷ) that was fitted."""
        return next(iter(_densities_of(self._fitted().head.terms).values())).prior.fitted

    @gradients(False)
    def distribution(self, *args: Any, **kwargs: Any) -> OutputDistribution:
        """p(ŷ | z) as a whole, for networks that predict one number: quantiles, and regions of asked mass.

        It describes predictions: only with `condition="label"` do its quantiles and regions say where labels lie.
        `interval` covers labels in both cases.

        Inputs are given as the model takes them; z is that of the last layer that `combine` counts. For pixels, there
        is one for each, row by row of each image.
        """
        head = self._fitted().head
        name, device = head.leading, head.device
        term, method = head.terms[name], head.terms[name].method
        reading = self.reader.reading(self.reader.called(*args, **kwargs), {name: term.reduction})
        prediction = reading.prediction.value.to(device)
        prediction = prediction if self.pixels is None else prediction.flatten()
        numbers = prediction.dim() == 1 and prediction.is_floating_point()
        if not numbers or not isinstance(method, DensityMethod):
            raise TypeError("a distribution over a grid is for networks that predict one number per input.")
        parts: list[tuple[Tensor, Tensor]] = []
        for z, _, some in reading.rows(name):
            parts += method.posteriors(z.to(device), some.to(device), grid)
        support, log_mass = (torch.cat(part) for part in zip(*parts, strict=True))
        return OutputDistribution(support, log_mass, prediction)

    def _ready(self, loader: Iterable[Any]) -> tuple[Self, Iterable[Any]]:
        """A detector of layers that were found by running the model on the first batch, and all of the loader."""
        if self._auto is None:
            return self, loader
        reader, crew = self.reader, team()
        found: tuple[Any, ...] | None = None
        with crew.step():
            stream = reader.batches(loader, "choosing layers")
            first = next(stream, None)
            if first is not None:
                parts = [first], stream
                loader = (batch for part in parts for batch in part) if isinstance(loader, Iterator) else loader
                batch = first.clone()  # networks may write into their inputs
                output, _ = run(self.model, {}, batch.args, batch.kwargs)
                with reader.tentative():
                    task = reader.known_task(output, first)
                    choices = choose_layers(self.model, first.clone(), task.output)
                    found = task.config(), [tuple(choice) for choice in choices], task.predict(output).classes
        known = [facts for facts in crew.all(found) if facts is not None]
        if not known:
            raise ValueError("no process was given any input: all shards are empty.")
        task, choices, classes = from_config(known[0][0]), [Choice(*choice) for choice in known[0][1]], known[0][2]
        choices = choices if classes is not None else choices[-1:]
        note(f"layers: {'; '.join(map(str, choices))}. Name them with layers= to choose others.")
        chosen = type(self).__new__(type(self))
        asked = dict(self._auto)
        wanted = asked.pop("combine")
        if asked["density"] is None and isinstance(task, MultiLabel):
            asked["density"] = DEFAULTS[task.name]()  # as there are more sets of labels than there are labels
        terms, combine = _terms(choices, classes, **asked), wanted or "last"
        if classes is not None:
            largest = 100 if isinstance(task, MultiLabel) else max(10, classes // 10)  # as GEN's authors have it
            terms, combine = [*terms, Term(GENMethod(largest=largest))], wanted or "fisher"
        options: dict[str, Any] = {"task": task, "output": reader.output, "unpack": reader.unpack, "seed": self.seed}
        options |= {"condition": self.condition, "progress": self.progress, "combine": combine}
        Detector.__init__(chosen, self.model, terms, **options)
        return chosen, loader


def suggest(
    model: nn.Module, loader: Iterable[Any], *, output: int | str | None = None, unpack: Adapter | None = None
) -> Choices:
    """The layers that `LatentDensity(model)` would read, with the reason for each: print it.

    Args:
        model: any trained `nn.Module`.
        loader: gives batches; the first is run.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        unpack: turns what the loader gives into `(inputs, label)`, when it gives neither `x`, `(x, y)` nor a dict.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4))
        >>> print(suggest(model, [torch.randn(16, 3, 8, 8)]))
        layer  read    as        width  why
        0      output  moments      16  after 1 of 2 layers with weights before the head
        4      input   flatten     128  read by the layer that gives the network's output
    """
    first = next(LatentDensity(model, output=output, unpack=unpack).reader.batches(loader, "choosing layers"))
    return Choices(choose_layers(model, first.clone(), output))


def _check_auto(model: Any, density: Any, reduce: Any, pixels: Any) -> None:
    if model is None:
        raise ValueError(
            "without a network there are no layers to choose from: name the array, LatentDensity(None, 'z')."
        )
    if pixels is not None:
        raise ValueError(
            "layers='auto' is for whole inputs: with pixels=, name a layer. List them with layers(model, example)."
        )
    if reduce is not None:
        raise ValueError("layers='auto' reduces each layer as it needs: leave reduce= out, or name the layers.")
    if density is not None and not isinstance(density, Density):
        raise TypeError(f"with layers='auto', density= takes one density such as GaussianMixture(), not {density!r}.")


def _terms(
    choices: list[Choice], classes: int | None, density: Density | None, max_dim: int | None, marginal: Any
) -> list[Term]:
    """The terms of layers that were chosen.

    The last choice is what the head reads, whose length says little, as does that of a mean over places or tokens,
    which follows the contrast of an image. The length of other layers is what unfamiliar inputs change; where there are
    none before the head, that must do both.
    """
    prior, terms = Prior(marginal), list[Term]()
    for choice in choices:
        most = max_dim if max_dim is None or choice.pool != "moments" else 2 * max_dim  # as each channel has two
        unit = classes is not None and len(choices) > 1 and (choice is choices[-1] or choice.how != "flatten")
        reduce = Reduce(choice.how, max_dim=most, pool=choice.pool, read=choice.read, normalise=unit)
        own = density
        if density is None and classes is not None:
            width = min(choice.width, most or choice.width)
            small = classes * width**2 <= LARGEST
            own = GaussianMixture(pooling=POOLING) if small else GaussianMixture(covariance="pooled")
        # A layer may have the name that the network's own outputs go by.
        name = f"layer {OUTPUTS}" if choice.layer == OUTPUTS else choice.layer
        terms.append(Term(DensityMethod(copy.deepcopy(own), prior), choice.layer, reduce, name))
    return terms


def _densities_of(terms: Mapping[str, Any]) -> dict[str, DensityMethod]:
    return {name: term.method for name, term in terms.items() if isinstance(term.method, DensityMethod)}


def _densities(
    model: nn.Module | None, density: Density | Mapping[Any, Density] | None, layers: Mapping[str, Reduce]
) -> dict[str, Density | None]:
    """The density of each layer, by name: copies, of which each is fitted to its own layer."""
    if density is None or isinstance(density, Density):
        return {name: copy.deepcopy(density) for name in layers}
    if not isinstance(density, Mapping) or not all(isinstance(part, Density) for part in density.values()):
        raise TypeError(f"density= takes a density such as GaussianMixture(), or one for each layer, not {density!r}.")
    each = with_names(model, density)
    if set(each) != set(layers):
        raise ValueError(f"density names the layers {list(each)}, layers= names {list(layers)}: name the same ones.")
    return {name: copy.deepcopy(each[name]) for name in layers}
