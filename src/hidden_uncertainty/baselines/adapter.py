"""Detectors of pytorch-ood, or objects like them, behind the interface of every other method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar, Unpack

import torch
from torch import Tensor, nn

from ..detector import Detector
from ..extract import Features, Reader
from ..extract.reader import chosen
from ..model.batches import Batch
from ..model.capture import lend, run
from ..model.tasks import Condition, Prediction, as_task
from ..precision import put_back_after
from ..scoring.terms import Layers, Term
from ..uncertainty import LayerScores
from .base import AsRead, LayerDetector, LayerOptions, Options, RowMethod, ScoringReader, single_input

T = TypeVar("T")
OWN = "the detector's own"  # unit
WHO = "detectors take"  # in the error of `single_input`


class PytorchOOD(Detector):
    """A detector that runs a network by itself: `detector.predict(x)` gives outlier scores, higher when more so.

    While the detector works, the network is in evaluation mode; after it, modes and gradients are what they were.
    For detectors of features see `PytorchOODFeatures`.

    Args:
        detector: has `predict(x)`, or can be called, and `fit(loader)` if there is something to fit.
        model: the network whose predictions are judged, usually the one that the detector holds.
        options: `task`, `output`, `unpack` and `progress`, as for `Detector`.

    Example:
        >>> model = nn.Linear(2, 3)
        >>> class Energy:
        ...     def predict(self, x):
        ...         return -model(x).logsumexp(1)
        >>> PytorchOOD(Energy(), model)(torch.randn(5, 2)).epistemic.shape
        torch.Size([5])
    """

    def __init__(self, detector: Any, model: nn.Module, **options: Unpack[Options]) -> None:
        if not callable(getattr(detector, "predict", None)) and not callable(detector):
            _refuse(detector, "predict(x), and cannot be called")
        self.detector, progress = detector, options.pop("progress", None)
        task, output = options.pop("task", None), options.pop("output", None)
        reader = AdaptedReader(detector, model, task=as_task(task, output), output=output, **options)
        super().__init__(model, [Term(AsRead(OWN))], pixels=reader.pixels, progress=progress, reader=reader)


class AdaptedReader(ScoringReader):
    """Lets a detector of another library score each batch."""

    repeats = False  # it may draw random numbers

    def __init__(self, detector: Any, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.detector, self.learns = detector, callable(getattr(detector, "fit", None))

    def learn(self, loader: Iterable[Any], holdout: float) -> None:
        """Fit the detector to inputs and labels; nothing where it has no `fit`."""
        if self.learns:
            pairs = _Pairs(loader, self, holdout)
            _lent(self.model, lambda: self.detector.fit(pairs))

    def parts(self, batch: Batch) -> tuple[Prediction, LayerScores]:
        """The network's predictions, and the detector's scores."""
        output, _ = run(self.model, {}, batch.args, batch.kwargs)
        task = self.known_task(output, batch)
        prediction = task.predict(output)
        wrong = task.unusable(output, prediction)
        predict = getattr(self.detector, "predict", self.detector)
        scores = _lent(self.model, lambda: _checked(predict(single_input(batch, WHO)), len(batch), self.detector))
        scores = scores.to(prediction.value.device, torch.promote_types(scores.dtype, torch.float32))
        return prediction, LayerScores(epistemic=scores if wrong is None else scores.masked_fill(wrong, math.nan))


class PytorchOODFeatures(LayerDetector):
    """A detector of features, on activations of any layers: `fit_features(z, y)` and `predict_features(z)`.

    Args:
        detector: copied for every layer. pytorch-ood's are best made with `encoder=None`: it would be copied too, and
            is not used.
        condition: y are the labels, as pytorch-ood means it, or what the network predicts.
        model, layers, options: as for `LayerDetector`.

    Example:
        >>> class Norm:
        ...     def fit_features(self, z, y):
        ...         self.middle = z.mean(0)
        ...         return self
        ...     def predict_features(self, z):
        ...         return (z - self.middle).norm(dim=1)
        >>> model, x = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(50, 2)
        >>> method = PytorchOODFeatures(Norm(), model, "0", condition="prediction").fit([x])
        >>> method(x).epistemic.shape
        torch.Size([50])
    """

    def __init__(
        self,
        detector: Any,
        model: nn.Module,
        layers: Layers,
        *,
        condition: Condition = "label",
        **options: Unpack[LayerOptions],
    ) -> None:
        for name in ("fit_features", "predict_features"):
            if not callable(getattr(detector, name, None)):
                _refuse(detector, name)
        self.detector = detector
        super().__init__(model, layers, AdaptedMethod(detector), condition=condition, **options)


class AdaptedMethod(RowMethod):
    """A detector of another library, fitted to rows."""

    unit = OWN

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.detector, self.dtype = detector, torch.float32

    def config(self) -> dict[str, Any]:
        """None: what another library has fitted is not only numbers."""
        raise NotImplementedError(f"{type(self.detector).__name__} cannot be saved, nor sent to other processes.")

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Fit the detector."""
        self.detector.fit_features(z, y)
        self.dtype = z.dtype
        return self

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The detector's scores."""
        scores = self.detector.predict_features(z.to(self.dtype))
        return _checked(scores, len(z), self.detector).to(z.device).double()


class _Pairs:
    """A loader of (x, y), without what is set apart, as often as it is asked for."""

    def __init__(self, loader: Iterable[Any], reader: Reader, holdout: float) -> None:
        self.loader, self.reader, self.holdout = loader, reader, holdout

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.reader.batches(self.loader, "fitting"):
            if batch.label is None:
                raise ValueError("the detector is fitted to inputs with labels, but the loader gives none: (x, y).")
            some = ~chosen(batch, self.holdout)
            yield single_input(batch, WHO)[some], batch.label[some]

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]


def _lent(model: nn.Module, work: Callable[[], T]) -> T:
    """Let a detector work, which may switch modes, take gradients and leave them, with the model in evaluation mode."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]

    def put_back() -> None:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module in model.modules():
            module.training = False  # as it was lent

    @torch.enable_grad()
    def alone() -> T:
        for parameter, _ in gradients:
            parameter.grad = None  # else a backward pass would add to the user's own
        return work()

    return lend(model, {}, lambda inner: put_back_after(alone, put_back), exclusive=True)


def _checked(scores: Any, count: int, detector: Any) -> Tensor:
    name = type(detector).__name__
    if not isinstance(scores, Tensor):
        raise TypeError(f"{name} gave {type(scores).__name__} where a tensor of scores is expected.")
    if tuple(scores.shape) != (count,):
        raise ValueError(f"{name} gave scores of shape {tuple(scores.shape)} for {count} inputs; expected ({count},).")
    return scores.detach()


def _refuse(detector: Any, lacks: str) -> None:
    raise TypeError(
        f"{type(detector).__name__} has no {lacks}: give a detector as those of pytorch-ood "
        "(pip install 'hidden-uncertainty[pytorch-ood]')."
    )
