"""What classes the nearest training activations have, and how dense these are: kernels, and credibility."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, Self, Unpack, get_args

import torch
from torch import Tensor, nn

from ..extract import Features, Reading, Rows, Unseen
from ..io import expect, plain
from ..model.tasks import Classification, Condition
from ..scoring.fitted import Fitted
from ..scoring.terms import Layers, chosen_layers
from ..uncertainty import Uncertainty
from .base import LayerDetector, LayerOptions, RowMethod
from .neighbours import QUERIES, Backend, PointMethod, center_of, deviation_of, squared_distances

Kind = Literal["ratio", "gaussian"]
Rule = Literal["scott", "silverman"]


class LabelledPointMethod(PointMethod):
    """A method that keeps training points with their classes."""

    classes: Tensor

    def __init__(self, k: int, backend: Backend = "torch") -> None:
        super().__init__(k, backend)
        self.register_buffer("classes", None)

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Keep the rows and their classes."""
        assert y is not None
        self.classes = y.clone()
        return super().fit(z, y, features)

    def check(self) -> None:
        """Raise a ValueError where what was fitted cannot be."""
        known = self.classes is None or len(self.classes) == len(self.index.points)
        expect(known, "there is not one class per point")
        expect(self.classes is None or self.classes >= 0, "a class is negative")


class KernelRatio(LabelledPointMethod):
    """The share that points of other classes have in the local density; distances are in units of `deviation`."""

    unit = "share"

    def __init__(self, k: int, backend: Backend = "torch", *, deviation: float = 1.0) -> None:
        super().__init__(k, backend)
        self.deviation = deviation

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Keep the rows, their classes and their deviation."""
        self.deviation = deviation_of(z)
        return super().fit(z, y, features)

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The share at each row."""
        away, near = self.index.search(z, min(self.k + seen, len(self.classes)))
        away, near = away[:, int(seen) :], near[:, int(seen) :]
        share = (-away / self.deviation).softmax(1)  # exp(-‖z - z_j‖ / σ) over their sum, however far
        return (share * (self.classes[near] != prediction[:, None])).sum(1)


class Disagreement(LabelledPointMethod):
    """How many of the k nearest points are of another class than the one predicted."""

    unit = "neighbours"
    smooth = False

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The count at each row."""
        _, near = self.index.search(z, self.k)
        return (self.classes[near] != prediction[:, None]).sum(1).double()


class GaussianKernels(RowMethod):
    """-log of the mean of Gaussian kernels around all points."""

    needs_classes = False
    points: Tensor
    center: Tensor

    def __init__(self, bandwidth: float | Rule = "scott", *, found: float | None = None) -> None:
        super().__init__()
        self.bandwidth, self.found = bandwidth, found  # what is asked for, and what that is for the points
        self.register_buffer("points", None)
        self.register_buffer("center", None)

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Keep the rows and find the bandwidth."""
        self.points, self.center = z.detach().clone(), center_of(z)
        self.found = find_bandwidth(z, self.bandwidth)
        return self

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The negative log density at each row."""
        assert self.found is not None
        total = torch.cat([self._log_sum(rows, self.found) for rows in z.split(QUERIES)])
        count, dim = self.points.shape
        if seen:  # without the row's own kernel, which is exp(0)
            total, count = total.clamp(min=1e-12).expm1().log(), count - 1
        return math.log(count) + 0.5 * dim * math.log(2 * math.pi * self.found**2) - total

    def check(self) -> None:
        """Raise a ValueError where what was fitted cannot be."""
        expect(self.points is None or (self.found is not None and self.found > 0), "the bandwidth is not positive")

    def _log_sum(self, rows: Tensor, bandwidth: float) -> Tensor:
        blocks = squared_distances(rows, self.points, self.center)
        sums = [(-0.5 * squares / bandwidth**2).logsumexp(1) for _, squares in blocks]
        return torch.stack(sums).logsumexp(0)


class KernelDensity(LayerDetector):
    r"""How much of the local density around activations belongs to another class than the predicted one.

    .. math::
        s(z) = 1 - \frac{\sum_{j \in \mathrm{kNN}(z),\, y_j = \hat y} e^{-\lVert z - z_j \rVert / \sigma}}
                        {\sum_{j \in \mathrm{kNN}(z)} e^{-\lVert z - z_j \rVert / \sigma}}

    After Mandelbaum & Weinshall (2017), where σ is 1; here it is the root of the mean variance of the training
    activations, so that multiplying a layer by a constant changes nothing. The score says how contested a place is, not
    how far: amid strangers that agree with the prediction it is zero. `how="gaussian"` is a density instead, which
    needs no classes,

    .. math:: s(z) = -\log \frac 1 n \sum_j \mathcal N(z \mid z_j, h^2 I)

    Args:
        how: `"ratio"` or `"gaussian"`.
        condition: for the ratio, the classes of training data are what the network predicts, or their labels, as
            published.
        k: neighbours in the ratio.
        bandwidth: h of the Gaussian kernel: a number, or Scott's :math:`n^{-1/(d+4)}` or Silverman's
            :math:`(n (d + 2) / 4)^{-1/(d+4)}` rule times the root of the mean variance.
        backend: of the search, as for `NearestNeighbours`.
        model, layers, options: as for `LayerDetector`; the authors take the penultimate layer.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> method = KernelDensity(model, "0", how="gaussian", task="classification").fit(x.split(100))
        >>> u = method(torch.tensor([[0.0, 0.0], [30.0, -20.0]]))
        >>> bool(u.epistemic[1] > u.epistemic[0])
        True
    """

    def __init__(
        self,
        model: nn.Module | None,
        layers: Layers,
        *,
        how: Kind = "ratio",
        condition: Condition = "prediction",
        k: int = 50,
        bandwidth: float | Rule = "scott",
        backend: Backend = "torch",
        **options: Unpack[LayerOptions],
    ) -> None:
        if how not in get_args(Kind):
            raise ValueError(f"how must be one of {get_args(Kind)}, not {how!r}.")
        bandwidth = plain(bandwidth)
        if bandwidth not in get_args(Rule) and not (isinstance(bandwidth, int | float) and 0 < bandwidth < math.inf):
            raise ValueError(f"bandwidth must be a positive number or one of {get_args(Rule)}, not {bandwidth!r}.")
        ratio = KernelRatio(k, backend)
        method = ratio if how == "ratio" else GaussianKernels(bandwidth)
        super().__init__(model, layers, method, condition=condition, **options)


class Credibility(LayerDetector):
    r"""How little the prediction is supported by the nearest training data in all layers: deep k-nearest neighbours.

    .. math::
        \alpha(x, c) = \sum_\ell \#\{i \in \mathrm{kNN}_\ell(x) : y_i \neq c\}, \qquad
        s(x) = 1 - \frac{1 + \#\{j : \alpha(x_j, y_j) \geq \alpha(x, \hat y)\}}{n + 1}

    over n calibration inputs (x_j, y_j) that the network was not trained on: one minus the credibility of Papernot &
    McDaniel (2018), which is in `u.p_value`. Two things differ. It is the network's prediction that is judged, not one
    that the neighbours vote for; and the input itself is counted, 1 in n + 1. Counts are few, so many inputs tie.

    Args:
        condition: the classes of training and calibration data are their labels, as published, or what the network
            predicts for them.
        k: neighbours per layer.
        backend: of the search, as for `NearestNeighbours`.
        model, layers, options: as for `LayerDetector`; the authors take all layers. `combine` has no effect,
            disagreeing neighbours of all layers are counted.

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
        model: nn.Module | None,
        layers: Layers,
        *,
        condition: Condition = "label",
        k: int = 50,
        backend: Backend = "torch",
        **options: Unpack[LayerOptions],
    ) -> None:
        options["combine"] = dict.fromkeys(chosen_layers(model, layers), 1.0)
        super().__init__(model, layers, Disagreement(k, backend), condition=condition, **options)

    @property
    def unit(self) -> str:
        """The unit of the epistemic score."""
        return "probability"

    def fit(self, loader: Iterable[Any], calibration: Iterable[Any] | None = None, **options: Any) -> Self:
        """Fit as `Detector.fit`, to training data and to data that the network was not trained on."""
        if options.get("holdout") is None:
            self._check(calibration)
        return super().fit(loader, calibration, **options)

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


def find_bandwidth(z: Tensor, bandwidth: float | Rule) -> float:
    """The bandwidth for points z (n, d) that a rule gives, or the number itself."""
    if not isinstance(bandwidth, str):
        return float(bandwidth)
    count, dim = z.shape
    effective = count if bandwidth == "scott" else count * (dim + 2) / 4
    return float(deviation_of(z) * effective ** (-1 / (dim + 4)))
