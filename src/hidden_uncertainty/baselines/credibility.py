"""Whether the neighbours agree with the prediction: the credibility of Papernot & McDaniel (2018)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from .._condition import Condition
from ..calibration import Calibration
from ..extract import Features
from ..tasks import Prediction
from ..uncertainty import LayerScores, Uncertainty
from .features import FeatureBaseline, Layers, LayerScore, Options
from .neighbours import Backend, Labelled, check_search


class _Disagreement(Labelled):
    """How many of the k nearest points are of another class than the one predicted."""

    def forward(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        _, near = self.index.search(z, self.k)
        return (self.classes[near] != prediction[:, None]).sum(1).double()


class Credibility(FeatureBaseline):
    r"""How little the prediction is supported by the nearest training data in all layers: deep k-nearest neighbours.

    .. math::
        \alpha(x, c) = \sum_\ell \#\{i \in \mathrm{kNN}_\ell(x) : y_i \neq c\}, \qquad
        s(x) = 1 - \frac{1 + \#\{j : \alpha(x_j, y_j) \geq \alpha(x, \hat y)\}}{n + 1}

    over n calibration inputs (x_j, y_j) that the network was not trained on: one minus the credibility of Papernot &
    McDaniel (2018), which is in `u.p_value`. Two things differ. It is the network's prediction that is judged, not one
    that the neighbours vote for; and the input itself is counted, 1 in n + 1, where they take the plain share.

    There are only k + 1 possible counts a layer, so that many inputs tie.

    Args:
        model: any trained classifier.
        layers: as for `LatentDensity`; the authors take all of them.
        condition: the classes of training and calibration data are their labels, as published, or what the network
            predicts for them.
        k: neighbours a layer.
        backend: of the search, as for `NearestNeighbours`.
        options: see `FeatureBaseline`; `combine` has no effect, disagreeing neighbours of all layers are counted.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
        >>> loader = [(rows, model(rows).argmax(1)) for rows in x.split(100)]
        >>> method = Credibility(model, ["0", "2"], k=10).fit(loader[:4], calibration=loader[4:])
        >>> bool((0 <= method(x).epistemic).all())
        True
    """

    unit = "probability"

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        *,
        condition: Condition = "label",
        k: int = 50,
        backend: Backend = "torch",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, layers, condition=condition, **options)
        check_search(k, backend)
        self.k, self.backend = k, backend
        self.calibration = Calibration()

    def fit(self, loader: Iterable[Any], calibration: Iterable[Any] | None = None) -> Self:
        """Keep the activations on training data, and how the neighbours of calibration data disagree with it.

        Args:
            loader: training data.
            calibration: data that the network was not trained on.
        """
        self._check(calibration)
        assert calibration is not None
        features = self.extractor.fit(loader)[0]
        return self.fit_features(features, self.extractor.extract(calibration, features.reductions))

    def fit_features(self, features: Features, calibration: Features | None = None) -> Self:
        """Fit to features that `extract` gave, of this method or another."""
        self._check(calibration)
        assert calibration is not None
        calibration.require(self.layers, features.reductions)
        super().fit_features(features)
        scores = self._scores(calibration.z, self.classes(calibration))
        self.calibration = Calibration().fit(self.together(scores))
        return self

    def fit_layer(self, z: Tensor, y: Tensor | None) -> LayerScore:
        """Keep the activations to search, and their classes."""
        assert y is not None
        return _Disagreement(z, y, self.k, self.backend)

    def together(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Disagreeing neighbours of all layers."""
        return torch.stack(list(scores.values())).sum(0)

    def result(self, prediction: Prediction, z: Mapping[str, Tensor]) -> Uncertainty:
        """One minus the credibility; the scores of a layer are how many neighbours disagree there."""
        scores = self._scores(z, prediction.value)
        credibility = self.calibration.p_value(self.together(scores))
        layers = {name: LayerScores(values) for name, values in scores.items()}
        return Uncertainty(prediction.value, 1 - credibility, p_value=credibility, layers=layers)

    @staticmethod
    def _check(calibration: object) -> None:
        if calibration is None:
            raise ValueError(
                "credibility is a p-value against data that the network was not trained on: call "
                "fit(train_loader, calibration=unseen_loader)."
            )
