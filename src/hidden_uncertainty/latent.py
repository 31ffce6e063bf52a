"""`LatentDensity`: uncertainty from the density of a trained network's activations."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .density import Density
from .detector import Detector
from .extract import Pixels
from .marginal import Marginal
from .marginal.base import MarginalName
from .model.batches import Adapter
from .model.tasks import Condition, Task, TaskName
from .precision import gradients
from .reduce import How, Reduce
from .scoring.bayes import DensityMethod, Prior
from .scoring.distribution import OutputDistribution, grid
from .scoring.terms import Combine, Layers, Term, chosen_layers

MOST_MASSES = 1 << 27  # of distributions at a time: 2 GiB with their points, in float64


class LatentDensity(Detector):
    r"""Epistemic and aleatoric uncertainty of a trained network, from the density of its hidden activations.

    .. math::
        \text{epistemic} = -\log p(z) = -\log \sum_{\hat y} p(z \mid \hat y)\, p(\hat y), \qquad
        \text{aleatoric} = -\sum_{\hat y} p(\hat y \mid z) \log p(\hat y \mid z)

    with z the activations of a layer, reduced to at most `max_dim` dimensions (paper, eq. 5, 6 and Algorithm 1); the
    sums are integrals where the network predicts numbers. The model is referenced, not owned: it is never changed,
    moved or saved.

    Args:
        model: any trained `nn.Module`.
        layers: the dotted name of a layer, several of them, or a mapping from names to how each is reduced
            (`Reduce`). List them with `layers(model, example)`.
        density: p(z | ŷ), copied for every layer; or a mapping with one for each layer. None is a `GaussianMixture` per
            class for classes and a `JointMixture` for numbers.
        max_dim: layers that are wider are reduced to this many dimensions; None never reduces.
        reduce: how a layer's output becomes a vector: `"flatten"`, `"channels"`, `"tokens"`, `"token"`, `"project"`, or
            a `Reduce`, whose own `max_dim` then counts.
        task: what the network predicts, `"classification"`, `"regression"`, or a `Regression` that says where a
            predicted variance is; None infers it where the outputs leave no doubt, and logs it.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        condition: fit p(z | ŷ) given the network's predictions, as in the paper, or given the labels. With predictions
            p(ŷ | z) is as narrow as the density allows, since ŷ is a function of z; labels show the noise of the data.
        marginal: p(ŷ) of numbers: `"uniform"`, `"gaussian"`, `"beta-prime"` or `"histogram"`; `"auto"` chooses by
            held-out likelihood among the last three, which have tails. A marginal of your own can say its support too.
        combine: how several layers become one score: `"last"`, `"mean"` or weights, as for `Detector`.
        pixels: for networks that predict a class or a number for every pixel: how these are drawn, scored and
            calibrated. Every score is then a map (n, H, W).
        unpack: turns what a loader gives into `(inputs, label)`, when it gives neither `x`, `(x, y)` nor a dict.
        seed: of random projections, and of which pixels are drawn.
        progress: show progress bars; None shows them on a terminal.

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

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        density: Density | Mapping[str, Density] | None = None,
        *,
        max_dim: int | None = 512,
        reduce: How | Reduce = "flatten",
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        condition: Condition = "prediction",
        marginal: MarginalName | Literal["auto"] | Marginal = "auto",
        combine: Combine | str = "last",
        pixels: Pixels | None = None,
        unpack: Adapter | None = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        if isinstance(marginal, str) and marginal not in ("auto", *get_args(MarginalName)):
            raise ValueError(
                f"marginal must be 'auto', one of {get_args(MarginalName)} or a marginal, not {marginal!r}."
            )
        chosen = chosen_layers(layers, reduce, max_dim)
        densities, prior = _densities(density, chosen), Prior(marginal)
        terms = [Term(DensityMethod(densities[name], prior), name, how) for name, how in chosen.items()]
        options: dict[str, Any] = {"task": task, "output": output, "unpack": unpack, "seed": seed, "progress": progress}
        super().__init__(model, terms, combine=combine, condition=condition, pixels=pixels, **options)

    @property
    def densities(self) -> dict[str, Density | None]:
        """What is to be fitted to each layer; None is the default of the task."""
        return {name: method.density for name, method in self._methods(self.terms).items()}

    @property
    def fitted_densities(self) -> dict[str, Density]:
        """What was fitted to each layer."""
        return {name: method.fitted for name, method in self._methods(self._fitted().head.terms).items()}

    @property
    def fitted_marginal(self) -> Marginal:
        """The marginal p(ŷ) that was fitted."""
        return self._methods(self._fitted().head.terms)[self.layers[0]].prior.fitted

    @classmethod
    def restored(cls, terms: list[Term]) -> list[Term]:
        """The terms that a file holds, sharing one marginal."""
        for term in terms[1:]:
            term.method.prior = terms[0].method.prior
        return terms

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
        term = head.terms[name]
        method = self._methods({name: term})[name]
        reading = self.reader.reading(self._batch(args, kwargs), {name: term.reduction})
        prediction = reading.prediction.value.to(device)
        prediction = prediction if self.pixels is None else prediction.flatten()
        if prediction.dim() != 1 or not prediction.is_floating_point():
            raise TypeError("a distribution over a grid is for networks that predict one number per input.")
        points = method.prior.fitted.size
        if len(prediction) * points > MOST_MASSES:
            raise ValueError(
                f"the distributions of {len(prediction):,} numbers on {points:,} points each would take "
                f"{len(prediction) * points * 16 / 1e9:,.0f} GB: give fewer inputs at a time, or smaller ones."
            )
        parts: list[tuple[Tensor, Tensor]] = []
        for z, _, some in reading.rows(name):
            parts += method.posteriors(z.to(device), some.to(device), grid)
        support, log_mass = (torch.cat(part) for part in zip(*parts, strict=True))
        return OutputDistribution(support, log_mass, prediction)

    @staticmethod
    def _methods(terms: Mapping[str, Any]) -> dict[str, DensityMethod]:
        return {name: term.method for name, term in terms.items()}


def _densities(
    density: Density | Mapping[str, Density] | None, layers: Mapping[str, Reduce]
) -> dict[str, Density | None]:
    """The density of each layer, by name: copies, of which each is fitted to its own layer."""
    if density is None or isinstance(density, Density):
        return {name: copy.deepcopy(density) for name in layers}
    if not isinstance(density, Mapping) or not all(isinstance(part, Density) for part in density.values()):
        raise TypeError(f"density= takes a density such as GaussianMixture(), or one for each layer, not {density!r}.")
    if set(density) != set(layers):
        raise ValueError(f"density names the layers {list(density)}, layers= names {list(layers)}: name the same ones.")
    return {name: copy.deepcopy(density[name]) for name in layers}
