"""Whether the neighbours agree with the prediction: the credibility of Papernot & McDaniel (2018)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from ..extract import Features, Reading, Rows, Unseen
from ..model.tasks import Classification, Condition
from ..scoring.head import Fitted
from ..scoring.terms import Layers
from ..uncertainty import Uncertainty
from .base import LayerDetector, LayerOptions
from .neighbours import Backend, LabelledPointMethod


class Disagreement(LabelledPointMethod):
    """How many of the k nearest points are of another class than the one predicted."""

    unit = "neighbours"
    smooth = False

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The count at each row."""
        _, near = self.searched.search(z, self.k)
        return (self.classes[near] != prediction[:, None]).sum(1).double()


class Credibility(LayerDetector):
    r"""How little the prediction is supported by the nearest training data in all layers: deep k-nearest neighbours.

    .. math::
        \alpha(x, c) = \sum_\ell \#\{i \in \mathrm{kNN}_\ell(x) : y_i \neq c\}, \qquad
        s(x) = 1 - \frac{1 + \#\{j : \alpha(x_j, y_j) \geq \alpha(x, \hat y)\}}{n + 1}

    over n calibration inputs (x_j, y_j) that the network was not trained on: one minus the credibility of Papernot &
    McDaniel (2018), which is in `u.p_value`. Two things differ. It is the network's prediction that is judged, not one
    that the neighbours vote for; and the input itself is counted, 1 in n + 1, where they take the plain share.

    There are only k + 1 possible counts per layer, so many inputs tie.

    Args:
        model: any trained classifier.
        layers: as for `LatentDensity`; the authors take all of them.
        condition: the classes of training and calibration data are their labels, as published, or what the network
            predicts for them.
        k: neighbours per layer.
        backend: of the search, as for `NearestNeighbours`.
        options: see `LayerDetector`; `combine` has no effect, disagreeing neighbours of all layers are counted.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
        >>> loader = [(rows, model(rows).argmax(1)) for rows in x.split(100)]
        >>> method = Credibility(model, ["0", "2"], k=10).fit(loader[:4], calibration=loader[4:])
        >>> bool((0 <= method(x).epistemic).all())
        True
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        *,
        condition: Condition = "label",
        k: int = 50,
        backend: Backend = "torch",
        **options: Unpack[LayerOptions],
    ) -> None:
        names = [layers] if isinstance(layers, str) else list(layers)
        options["combine"] = dict.fromkeys(names, 1.0)
        super().__init__(model, layers, Disagreement(k, backend), condition=condition, **options)

    @property
    def unit(self) -> str:
        """The unit of the epistemic score."""
        return "probability"

    def fit(
        self, loader: Iterable[Any], calibration: Iterable[Any] | None = None, *, holdout: float | None = None
    ) -> Self:
        """Keep the activations on training data, and how the neighbours of calibration data disagree with it.

        Args:
            loader: training data.
            calibration: data that the network was not trained on.
            holdout: as for `Detector.fit`.
        """
        if holdout is None:
            self._check(calibration)
        return super().fit(loader, calibration, holdout=holdout)

    def fit_features(self, features: Features, calibration: Features | None = None) -> Self:
        """Fit to features that `extract` gave, of this method or another."""
        self._check(calibration)
        return super().fit_features(features, calibration)

    def threshold(self, false_alarm: float, confidence: float | None = None) -> float:
        """The score above which inputs are surprising from now on, as for `Detector`."""
        fitted = self._fitted().alarm(false_alarm, confidence)
        calibration, count = fitted.head.calibration, fitted.threshold
        assert calibration is not None and count is not None
        # A threshold of the score, which is one minus the p-value of the count.
        known = calibration.scores
        score = (1 - calibration.p_value(known.new_tensor([count], dtype=torch.float64))).to(known.dtype)
        self._state = replace(fitted, threshold=float(score))
        return float(score)

    def _readings(self, unseen: Unseen, fitted: Fitted) -> Iterator[Reading]:
        """Neighbours are counted that disagree with what is true, where classes are labels."""
        return map(self._judged, super()._readings(unseen, fitted))

    def _judged(self, reading: Reading) -> Reading:
        assert isinstance(reading, Rows)
        prediction = reading.prediction
        judged = Classification().condition(prediction.value, reading.label, self.condition)
        return replace(reading, prediction=prediction._replace(value=judged))

    def _result(self, reading: Reading, fitted: Fitted) -> Uncertainty:
        """One minus the credibility; the scores of a layer are how many neighbours disagree there."""
        u = super()._result(reading, fitted)
        assert u.p_value is not None
        score = (1 - u.p_value).to(u.epistemic.dtype)
        return replace(u, epistemic=score.masked_fill(u.epistemic.isposinf(), math.inf))

    @staticmethod
    def _check(calibration: object) -> None:
        if calibration is None:
            raise ValueError(
                "credibility is a p-value against data that the network was not trained on: call "
                "fit(train_loader, calibration=unseen_loader)."
            )
