"""What methods on layers share: one method, copied for each of them, and scores in float64 that stay finite."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from ..detector import Detector
from ..extract import Lattice, Pixels
from ..model.batches import Adapter
from ..model.tasks import Condition, Task, TaskName
from ..precision import saturate
from ..reduce import How, Reduce
from ..scoring.terms import Combine, Layers, Method, Scores, Term, chosen_layers

ROWS = 4096  # scored at a time


class LayerOptions(TypedDict, total=False):
    """Arguments that all methods on layers share; `LayerDetector` says what they mean."""

    combine: Combine | str
    max_dim: int | None
    reduce: How | Reduce
    task: TaskName | Task | None
    output: int | str | None
    pixels: Pixels | None
    unpack: Adapter | None
    seed: int
    progress: bool | None


class RowMethod(Method):
    """A method that scores rows in float64, finite for finite rows, however far."""

    needs_classes = True

    @property
    def conditional(self) -> bool:  # type: ignore[override]
        """Whether it is fitted given classes."""
        return self.needs_classes

    @abstractmethod
    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """Scores (n,) of rows z (n, d) in float64, higher when more uncertain.

        Args:
            z: reduced activations.
            prediction: what the network predicts for them.
            seen: whether they are rows that this was fitted to, none of which is to be its own neighbour.
        """

    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> Scores:
        """Score rows, some at a time."""
        assert isinstance(z, Tensor)
        limit = torch.finfo(torch.float32).max / 8
        pairs = zip(z.split(ROWS), prediction.split(ROWS), strict=True)
        found = [self.measure(saturate(rows, torch.float64), some, seen=seen) for rows, some in pairs]
        return Scores(torch.cat(found).clamp(-limit, limit).to(torch.promote_types(z.dtype, torch.float32)))


class LayerDetector(Detector):
    """A detector with one method, fitted to each layer by itself.

    Features that were extracted once serve many methods: `extract`, `fit_features`, `predict_features`. They may be
    those of a `LatentDensity` on the same layers.

    Args:
        model: any trained `nn.Module`; it is referenced, never changed.
        layers: the dotted name of a layer, several of them, or a mapping from names to how each is reduced.
        method: what to fit, copied for every layer.
        condition: classes are what the network predicts, or the labels.
        combine: how several layers become one score, as for `Detector`; `"mean"` by default.
        max_dim: layers that are wider are reduced to this many dimensions; None never reduces.
        reduce: how a layer's output becomes a vector, as for `LatentDensity`.
        task: what the network predicts; None infers it where the outputs leave no doubt, and logs it.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        pixels: for networks that predict for every pixel, as for `LatentDensity`.
        unpack: turns what a loader gives into `(inputs, label)`, when it gives neither `x`, `(x, y)` nor a dict.
        seed: of random projections.
        progress: show progress bars; None shows them on a terminal.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        method: Method,
        *,
        condition: Condition = "prediction",
        **options: Unpack[LayerOptions],
    ) -> None:
        unknown = sorted(set(options) - set(LayerOptions.__annotations__))
        if unknown:
            raise TypeError(f"{type(self).__name__} takes no argument {', '.join(map(repr, unknown))}.")
        chosen = chosen_layers(layers, options.pop("reduce", "flatten"), options.pop("max_dim", 512))
        terms = [Term(copy.deepcopy(method), name, reduce) for name, reduce in chosen.items()]
        combine = options.pop("combine", "mean")
        super().__init__(model, terms, condition=condition, combine=combine, **options)  # type: ignore[misc]
