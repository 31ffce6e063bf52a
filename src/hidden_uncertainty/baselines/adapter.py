"""Detectors of pytorch-ood, or objects like them, behind the interface of every other method."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from .._condition import Condition
from ..batches import Adapter, Batch, batches
from ..capture import device_of, run, watch
from ..tasks import Task, TaskName
from ..uncertainty import Uncertainty
from .base import Baseline
from .features import FeatureBaseline, Layers, LayerScore, Options


class PytorchOOD(Baseline):
    """A detector that runs a network by itself: `detector.predict(x)` gives outlier scores, higher when more so.

    While the detector works, the network is in evaluation mode; after it, modes and gradients are what they were.
    For detectors of features see `PytorchOODFeatures`.

    Args:
        detector: has `predict(x)`, or can be called, and `fit(loader)` if there is something to fit.
        model: the network whose predictions are judged, usually the one that the detector holds.
        task: what the network predicts; None infers it where the outputs leave no doubt, and says so.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        unpack: turns what a loader gives into `(x, label)`, when it gives something else.
        progress: show progress bars; None shows them on a terminal.

    Example:
        >>> model = nn.Linear(2, 3)
        >>> class Energy:
        ...     def predict(self, x):
        ...         return -model(x).logsumexp(1)
        >>> PytorchOOD(Energy(), model)(torch.randn(5, 2)).epistemic.shape
        torch.Size([5])
    """

    unit = "the detector's own"

    def __init__(
        self,
        detector: Any,
        model: nn.Module,
        *,
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        unpack: Adapter | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__(model, task=task, output=output, unpack=unpack, progress=progress)
        if not callable(getattr(detector, "predict", None)) and not callable(detector):
            _refuse(detector, "predict(x), and cannot be called")
        self.detector = detector

    def fit(self, loader: Iterable[Any]) -> Self:
        """Fit the detector to a loader of inputs and labels; nothing where it has no `fit`.

        Args:
            loader: gives `(x, y)`, as pytorch-ood's detectors need them.
        """
        if callable(getattr(self.detector, "fit", None)):
            with _lent(self.model):
                self.detector.fit(_Pairs(loader, self.unpack, device_of(self.model)))
        return self

    def score(self, batch: Batch) -> Uncertainty:
        """Score one batch, which is where the model is."""
        output, _ = run(self.model, {}, batch.args, batch.kwargs)
        prediction = self.known_task(output, batch).predict(output)
        predict = getattr(self.detector, "predict", self.detector)
        with _lent(self.model):
            scores = _checked(predict(_single(batch)), len(batch), self.detector)
        return Uncertainty(prediction.value, scores.to(prediction.value.device), variance=prediction.variance)


class PytorchOODFeatures(FeatureBaseline):
    """A detector of features, on activations of any layers: `fit_features(z, y)` and `predict_features(z)`.

    Args:
        detector: copied for every layer. pytorch-ood's are best made with `encoder=None`: it would be copied too, and
            is not used.
        model: any trained network.
        layers: as for `LatentDensity`.
        condition: y are the labels, as pytorch-ood means it, or what the network predicts.
        options: see `FeatureBaseline`.

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

    unit = "the detector's own"

    def __init__(
        self,
        detector: Any,
        model: nn.Module,
        layers: Layers,
        *,
        condition: Condition = "label",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, layers, condition=condition, **options)
        for name in ("fit_features", "predict_features"):
            if not callable(getattr(detector, name, None)):
                _refuse(detector, name)
        self.detector = detector

    def fit_layer(self, z: Tensor, y: Tensor | None) -> LayerScore:
        """Fit a copy of the detector."""
        detector = copy.deepcopy(self.detector)
        detector.fit_features(z, y)
        return _Detected(detector, z.dtype)


class _Detected(LayerScore):
    def __init__(self, detector: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.detector, self.dtype = detector, dtype

    def forward(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        scores = _checked(self.detector.predict_features(z.to(self.dtype)), len(z), self.detector)
        return scores.to(z.device).double()


class _Pairs:
    """A loader of (x, y), as often as it is asked for."""

    def __init__(self, loader: Iterable[Any], unpack: Adapter | None, device: torch.device | None) -> None:
        self.loader, self.unpack, self.device = loader, unpack, device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches(self.loader, self.unpack, self.device):
            if batch.label is None:
                raise ValueError("the detector is fitted to inputs with labels, but the loader gives none: (x, y).")
            yield _single(batch), batch.label

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]


@contextmanager
def _lent(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, for a detector that may switch modes, take gradients and leave them."""
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    with watch(model, {}), torch.enable_grad():
        try:
            for parameter, _ in gradients:
                parameter.grad = None  # else a backward pass would add to the user's own
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, training in modes:
                module.training = training


def _single(batch: Batch) -> Tensor:
    if len(batch.args) != 1 or batch.kwargs or not isinstance(batch.args[0], Tensor):
        raise TypeError(
            f"detectors take one tensor, not {len(batch.args)} positional and {list(batch.kwargs)} keyword inputs."
        )
    return batch.args[0]


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
