"""The network and what was fitted to it as one module, which `torch.export` traces into one graph."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ..density import GaussianMixture, JointMixture
from ..extract import Extractor, PixelExtractor, Rows, activation_of
from ..marginal import Categorical
from ..model.batches import Batch
from ..model.capture import device_of, find
from ..model.tasks import Classification, Prediction, Regression
from ..scoring.bayes import DensityMethod
from ..scoring.decisions import filled, unit_of
from ..scoring.fitted import Fitted
from ..scoring.head import FittedTerm
from ..uncertainty import LayerScores

Coverage = float | Literal["spread"] | None
WIDTH = 128  # columns of each Gaussian in a block: wider ones multiply more zeros, narrower ones are more nodes


class Graph(nn.Module):
    """What a detector's call does, without a branch on data, a loop over rows or anything to be looked up.

    It owns copies: of what was fitted, laid out for one product at a time; and of the network's modules, around the
    network's own tensors, so that neither tracing it nor a failure of that touches the user's network. The tensors of
    `batch` are its inputs; all else in it is a part of the graph. A `coverage` of `"spread"` gives what the widths of
    intervals are multiples of; None leaves intervals out.
    """

    def __init__(self, reader: Extractor, fitted: Fitted, coverage: Coverage, batch: Batch) -> None:
        super().__init__()
        self.model = copy_modules(reader.model)
        self.head = copy.deepcopy(fitted.head).to(device_of(reader.model) or "cpu")
        self.reader, self.sources, self.threshold = reader, reader.sources, fitted.threshold
        self.task: Any = reader.task
        self.example = [replace(batch, label=None)]
        self.stage = SimpleNamespace(name="the network")  # what is traced now, for errors
        if not isinstance(self.task, Classification | Regression):
            raise NotImplementedError(
                f"networks of {self.task!r} cannot be exported; those of classes and numbers can."
            )
        for name, term in self.head.terms.items():
            _prepare(name, term)
        term = self.head.terms[self.head.leading]
        self.coverage = None if self.task.discrete or term.conformal is None else coverage
        self.reach = term.conformal.covering(coverage) if isinstance(self.coverage, float) else None  # type: ignore[union-attr,arg-type]

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """All that is known of a batch, by name."""
        left, head = iter(inputs), self.head
        batch = self.example[0].map(lambda _: next(left))
        seen: dict[str, Any] = {}
        output = self._run(batch, seen)
        prediction = self.reader._predict(self.task, output, seen)
        z, strange = {}, [self._strange(output, prediction)]  # NaN where something is not finite, zero elsewhere
        for name, source in self.sources.items():
            self.stage.name = f"the reduction of layer {name!r}"
            found = self._outputs(output) if source.layer is None else seen[name]
            z[name], off = self._rows(name, found, prediction)
            strange += [] if source.layer is None else [off]
        unusable = sum(strange[1:], strange[0]).isnan()
        scores = {name: self._score(name, term, z[name], prediction) for name, term in head.terms.items()}
        self.stage.name = "the combination of scores"
        together = head.combination({name: some.epistemic for name, some in scores.items()})
        epistemic = filled(together.reshape(unusable.shape), unusable, math.inf)
        leading = scores[head.leading]
        found = {"prediction": prediction.value, "epistemic": epistemic}
        if leading.aleatoric is not None:
            found["aleatoric"] = filled(leading.aleatoric.reshape(unusable.shape), unusable, math.nan)
        if head.calibration is not None:
            found["p_value"] = head.calibration.p_value(epistemic)
        if self.threshold is not None:
            found["surprising"] = ~(epistemic.double() <= self.threshold)
        if self.coverage is not None:
            found |= self._interval(prediction, leading, unusable)
        if unusable.dim() == 1:
            told = head.terms[head.leading].method.probabilities(z[head.leading], prediction.value)
            found |= {} if told is None else {"probabilities": filled(told, unusable, math.nan)}
        return found

    def _run(self, batch: Batch, seen: dict[str, Any]) -> Any:
        """The network's output; what terms read of its layers goes to `seen`."""
        layers = find(self.model, [source.layer for source in self.sources.values() if source.layer is not None])
        modules = self.model.named_modules()
        handles = [module.register_forward_pre_hook(partial(self._enter, name)) for name, module in modules]

        def keep(name: str, _: nn.Module, args: Any, kwargs: Any, *output: Any) -> None:
            value = output[0] if output else (*args, *kwargs.values())
            seen[name] = self._look(name, value, batch)  # at once: the next layer may write into the same memory

        for name, source in self.sources.items():
            if source.layer is not None:
                layer, after = layers[source.layer], source.reduce.read == "output"
                register: Any = layer.register_forward_hook if after else layer.register_forward_pre_hook
                handles.append(register(partial(keep, name), with_kwargs=True))
        try:
            return self.model(*batch.args, **batch.kwargs)
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str, *_: Any) -> None:
        self.stage.name = f"layer {name!r}" if name else "the network"

    def _look(self, name: str, value: Any, batch: Batch) -> Any:
        """What is kept of what a layer returned: z, and what is NaN where it is not finite."""
        reduction, source = self.head.reductions[name], self.sources[name]
        activation = activation_of(value, source.reduce, batch, str(source.layer))
        flat = reduction.reduce.flat(activation, copy=False)
        return reduction(activation)[0], (flat - flat).sum(1)

    def _outputs(self, output: Any) -> Tensor:
        return self.task.scores(output, maps=self.reader.pixels is not None)

    def _rows(self, name: str, seen: Any, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """A term's rows (n, d), and what is NaN where they are not finite."""
        return (seen, seen) if isinstance(seen, Tensor) else seen

    def _strange(self, output: Any, prediction: Prediction) -> Tensor:
        """NaN where no class can be told, or a number or its variance is not finite."""
        if self.task.discrete:
            total = self._outputs(output).logsumexp(1)  # one class may be ruled out by -inf, not all
            if prediction.value.dim() == 3 and total.shape != prediction.value.shape:
                total = interpolate(total[:, None], prediction.value.shape[1:], mode="bilinear")[:, 0]
            return total - total
        known = [part for part in (prediction.value, prediction.variance) if part is not None]
        parts = [part - part for part in known]
        return sum(part.sum(1) if part.dim() == 2 else part for part in parts)  # type: ignore[return-value]

    def _score(self, name: str, term: FittedTerm, z: Tensor, prediction: Prediction) -> LayerScores:
        method, value = term.method, prediction.value
        self.stage.name = f"{_called(method)} of {name!r}"
        if name != self.head.leading and isinstance(method, DensityMethod) and self.task.discrete:
            support = method.prior.fitted.at(value)  # of all Bayes tells, its surprise alone
            return LayerScores(-(method.fitted.log_prob(z, support.points) + support.log_weight).logsumexp(1))
        return method.score(z, value.flatten() if value.dim() == 3 else value)

    def _interval(self, prediction: Prediction, scores: LayerScores, unusable: Tensor) -> dict[str, Tensor]:
        """As `Decisions.interval`."""
        value, term = prediction.value, self.head.terms[self.head.leading]
        unit = unit_of(term.spread, Rows(prediction=prediction), scores)
        if self.reach is None:
            return {} if unit is None else {"spread": filled(unit.reshape(value.shape), unusable, math.nan)}
        width = torch.ones_like(value) if unit is None else unit.reshape(value.shape)
        half = filled(self.reach * width, unusable, math.nan)
        half = half + 4 * torch.finfo(value.dtype).eps * (value.abs() + half)
        return {"lower": value - half, "upper": value + half}


class PixelGraph(Graph):
    """The same for every pixel: scores are maps (n, H, W)."""

    reader: PixelExtractor

    def _look(self, name: str, value: Any, batch: Batch) -> Any:
        source = self.sources[name]
        activation = activation_of(value, source.reduce, batch, str(source.layer), masked=False)
        return (activation if source.reduce.how == "tokens" else activation.permute(0, 2, 3, 1)).clone()

    def _rows(self, name: str, seen: Any, prediction: Prediction) -> tuple[Tensor, Tensor]:
        wrong, shape = ~seen.isfinite(), prediction.value.shape
        maps = seen.masked_fill(wrong, 0), wrong.any(3, keepdim=True).float()
        vectors, touched = (self.reader._latent(part, name, prediction).band(slice(None), 0, shape[1]) for part in maps)
        return self.head.reductions[name](vectors)[0], torch.where((touched > 0).any(1).reshape(shape), math.nan, 0.0)


def copy_modules(model: nn.Module) -> nn.Module:
    """The modules anew, in evaluation mode, around the same tensors, without gradients; wrappers are left out."""
    root = find(model, [""])[""]
    tensors: dict[int, Any] = {id(part): nn.Parameter(part.detach(), requires_grad=False) for part in root.parameters()}
    try:
        made = copy.deepcopy(root, {**tensors, **{id(part): part.detach() for part in root.buffers()}})
    except Exception as error:
        raise RuntimeError(
            f"{type(root).__name__} cannot be copied, which exporting it takes: {error}. Keep what it holds beside its "
            "layers, such as locks and open files, out of it."
        ) from error
    for module in list(made.modules()):
        for name, child in module.named_children():
            setattr(module, name, find(child, [""])[""])
    return made.eval()


def _prepare(name: str, term: FittedTerm) -> None:
    """Raise where a term's method cannot be exported; lay out its factors otherwise."""
    method = term.method
    if not isinstance(method, DensityMethod):
        return
    density, marginal = method.fitted, method.prior.fitted
    if not isinstance(density, GaussianMixture | JointMixture):
        raise NotImplementedError(
            f"{_called(method)} of {name!r} cannot be exported: give density=GaussianMixture() for classes, or "
            "JointMixture() for numbers."
        )
    if isinstance(density, GaussianMixture) and isinstance(marginal, Categorical):
        if not torch.equal(density.classes, marginal.support):
            raise NotImplementedError(f"the density and the marginal of {name!r} know different classes: fit it again.")
        density.classes = marginal.support  # one tensor: which classes are asked for need not be looked up
        density.lay_out(WIDTH)


def _called(method: nn.Module) -> str:
    return type(method.fitted if isinstance(method, DensityMethod) else method).__name__
