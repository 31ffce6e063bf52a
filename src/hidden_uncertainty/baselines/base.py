"""What methods share: on layers, one method copied for each; readers that score batches in their own way; options."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypedDict, Unpack

import torch
from torch import Tensor, nn

from ..arrays import pieces
from ..detector import Detector
from ..extract import OUTPUTS, Features, Grid, Later, Lattice, Pixels, Reader, Rows, label_maps
from ..model.batches import Adapter, Batch, require_repeatable
from ..model.tasks import Condition, Prediction, Task, TaskName
from ..precision import saturate
from ..reduce import How, Reduce, Reduction
from ..scoring.combination import Combine
from ..scoring.terms import Layers, Method, Term, chosen_layers
from ..uncertainty import LayerScores

ROWS = 4096  # scored at a time


class Options(TypedDict, total=False):
    """Arguments that all methods share; `Detector` says what they mean."""

    task: TaskName | Task | None
    output: int | str | None
    pixels: Pixels | None
    unpack: Adapter | None
    progress: bool | None


class LayerOptions(Options, total=False):
    """Arguments that all methods on layers share; `LayerDetector` says what they mean."""

    combine: Combine | str
    max_dim: int | None
    reduce: How | Reduce
    seed: int


def check_options(method: Any, options: Mapping[str, Any], known: type) -> None:
    """Raise where a method is given an argument that it does not know, as Python would."""
    unknown = sorted(set(options) - set(known.__annotations__))
    if unknown:
        raise TypeError(f"{type(method).__name__} takes no argument {', '.join(map(repr, unknown))}.")


class RowMethod(Method):
    """A method that scores rows in float64, finite for finite rows, however far."""

    needs_classes = True

    @abstractmethod
    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """Scores (n,) of rows z (n, d) in float64, with the arguments of `score`."""

    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> LayerScores:
        """Score rows, some at a time."""
        assert isinstance(z, Tensor)
        limit = torch.finfo(torch.float32).max / 8
        pairs = pieces(ROWS, z, prediction)
        found = [self.measure(saturate(rows, torch.float64), some, seen=seen) for rows, some in pairs]
        return LayerScores(torch.cat(found).clamp(-limit, limit).to(torch.promote_types(z.dtype, torch.float32)))


class LayerDetector(Detector):
    """A detector with one method, fitted to each layer by itself.

    Features that were extracted once serve many methods: `extract`, `fit_features`, `predict_features`. They may be
    those of a `LatentDensity` on the same layers.

    Args:
        model: any trained `nn.Module`; it is referenced, never changed.
        layers: the dotted name of a layer, or the layer itself, several of them, or a mapping from them to how each is
            reduced.
        method: what to fit, copied for every layer.
        condition: classes are what the network predicts, or the labels.
        combine: how several layers become one score, as for `Detector`; `"mean"` by default.
        max_dim: layers that are wider are reduced to this many dimensions; None never reduces.
        reduce: how a layer's output becomes a vector, as for `LatentDensity`.
        seed: of random projections.
        options: `task`, `output`, `pixels`, `unpack` and `progress`, as for `Detector`.
    """

    def __init__(
        self,
        model: nn.Module | None,
        layers: Layers,
        method: Method,
        *,
        condition: Condition = "prediction",
        **options: Unpack[LayerOptions],
    ) -> None:
        check_options(self, options, LayerOptions)
        reduces = chosen_layers(model, layers, options.pop("reduce", "flatten"), options.pop("max_dim", 512))
        terms = [Term(copy.deepcopy(method), name, reduce) for name, reduce in reduces.items()]
        combine = options.pop("combine", "mean")
        super().__init__(model, terms, condition=condition, combine=combine, **options)  # type: ignore[misc]


class AsRead(Method):
    """The scores that a reading comes with; `fits` says whether the reading step must be fitted first."""

    conditional = False

    def __init__(self, unit: str = "nats", *, fits: bool = False) -> None:
        super().__init__()
        self.unit, self.fits = unit, fits

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Nothing to do: the reading step is fitted."""
        return self

    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> LayerScores:
        """Rows cannot be scored without their inputs."""
        raise NotImplementedError


class ScoringReader(Reader):
    """Scores batches by itself; subclasses say with `parts` how."""

    learns = False

    def __init__(self, model: nn.Module, *, pixels: Pixels | None = None, **options: Any) -> None:
        super().__init__(model, **options)
        if pixels is not None and pixels.resolution == "latent":
            raise ValueError("resolution='latent' is the grid of a layer; outputs have their own: leave it out.")
        self.pixels = pixels

    @abstractmethod
    def parts(self, batch: Batch) -> tuple[Prediction, LayerScores]:
        """Predictions and scores of a batch, per input or per pixel; NaN where the networks gave NaN or infinity."""

    def learn(self, loader: Iterable[Any], holdout: float) -> None:
        """Fit to training data, without the share that is set apart; nothing to do for most."""

    def fit(self, loader: Iterable[Any], *, holdout: float = 0.0) -> tuple[None, Later]:
        """Fit to training data; there are no features."""
        if holdout:
            require_repeatable(loader, 2)
        self.learn(loader, holdout)
        return None, Later(self, loader, {}, holdout)

    def reading(
        self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None, *, labels: bool = False
    ) -> Rows | Grid:
        """Run the networks on one batch: predictions with their scores."""
        prediction, scores = self.parts(batch)
        wrong = scores.epistemic.isnan()
        options: dict[str, Any] = {"scores": {OUTPUTS: scores}, "unusable": wrong if bool(wrong.any()) else None}
        if self.pixels is None:
            return Rows(prediction=prediction, label=batch.label if labels else None, **options)
        label = label_maps(batch.label, prediction.value) if labels else None
        return Grid(prediction=prediction, pixels=self.pixels, label=label, **options)


def single_input(batch: Batch, who: str) -> Tensor:
    """The one tensor that a method takes; an error that names the method where there is more."""
    if len(batch.args) != 1 or batch.kwargs or not isinstance(batch.args[0], Tensor):
        raise TypeError(f"{who} one tensor, not {len(batch.args)} positional and {list(batch.kwargs)} keyword inputs.")
    return batch.args[0]
