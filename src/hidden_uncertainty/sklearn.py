"""`DensityDetector`: an outlier detector for scikit-learn, on arrays of features."""

from __future__ import annotations

import copy
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from .density import Density, GaussianMixture
from .extract import Features
from .marginal import Categorical
from .notes import warn
from .scoring.bayes import DensityMethod, Prior
from .scoring.calibration import Calibration, check_share

# The best of a few by AUROC on scikit-learn's iris, wine and digits, columns scaled, a class at a time left out.
POOLING = 1.0
COMPONENTS = 5  # without y


class DensityDetector(OutlierMixin, BaseEstimator):
    r"""Finds rows that are unlike the training data, by their density; with classes, by the density of each.

    .. math:: \text{score}(x) = \log p(x) = \log \sum_y p(x \mid y)\, p(y)

    in nats, higher when more normal, as in all of scikit-learn: it is minus the epistemic score of `LatentDensity`. The
    unit of a column matters where covariances are shrunk: put a `StandardScaler` before it.

    A random part of the training rows is set apart, and nothing is fitted to it. It says what p-values are, and where
    the threshold lies when `contamination="auto"`: of new rows like those of the training, at most a share
    `false_alarm` is called an outlier, as `Calibration` explains. That holds if nothing else was fitted to these rows:
    where X holds features of a fitted model, give rows that the model was not fitted to.

    Args:
        density: p(x | y), a density for classes; without y, all rows are of one class. None is one Gaussian per class,
            of covariances that classes share in part; without y, a mixture of five, or fewer for less than 50 rows.
        contamination: `"auto"` takes the training rows for normal. A number, at most 0.5, is the share of outliers
            among them: the threshold then leaves this share of their scores below it, as in scikit-learn's detectors.
        false_alarm: the share of normal rows that may be called outliers, where contamination is `"auto"`.
        calibration: the share of training rows to set apart.
        random_state: decides which; an int, a `RandomState` or None.

    Attributes:
        density_: what was fitted.
        calibration_: the scores of the rows that were set apart.
        offset_: the score below which rows are outliers.
        n_features_in_, feature_names_in_: of the columns, as everywhere in scikit-learn.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = np.arange(1000) % 2
        >>> detector = DensityDetector(false_alarm=0.01).fit(rng.normal(size=(1000, 3)) + 5 * y[:, None], y)
        >>> detector.predict([[0, 0, 0], [5, 5, 5], [0, 5, 0]])
        array([ 1,  1, -1])
    """

    density_: Density
    calibration_: Calibration
    offset_: float
    _method: DensityMethod

    def __init__(
        self,
        density: Density | None = None,
        *,
        contamination: float | Literal["auto"] = "auto",
        false_alarm: float = 0.05,
        calibration: float = 0.2,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.density, self.contamination, self.false_alarm = density, contamination, false_alarm
        self.calibration, self.random_state = calibration, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to rows X (n, d), of classes y (n,) where these are given.

        y are classes of normal rows, known or predicted, not whether rows are outliers.
        """
        share = self.contamination
        if share != "auto" and not (isinstance(share, Real) and 0 < share <= 0.5):
            raise ValueError(f"contamination must be 'auto' or a share above 0 and at most 0.5, not {share!r}.")
        for name in ("calibration", "false_alarm"):
            check_share(name, getattr(self, name))
        if not (self.density is None or isinstance(self.density, Density)):
            raise TypeError(f"density takes a density such as GaussianMixture(), or None, not {self.density!r}.")
        options: dict[str, Any] = {"dtype": np.float64, "ensure_min_samples": 3}
        if y is None:
            X = validate_data(self, X, **options)
            classes = np.zeros(len(X), dtype=np.int64)
        else:
            X, y = validate_data(self, X, y, **options)
            check_classification_targets(y)
            classes = np.unique(y, return_inverse=True)[1]
        fitted, apart, classes, _ = train_test_split(
            X, classes, test_size=float(self.calibration), random_state=self.random_state
        )
        given = torch.tensor(classes, device="cpu")
        density = copy.deepcopy(self.density)
        if density is None:
            components = max(1, min(COMPONENTS, len(given) // 10))
            density = GaussianMixture(components) if y is None else GaussianMixture(pooling=POOLING)
        prior = Prior()
        prior.marginal = Categorical().fit(given)  # which may be of one class
        features = Features.from_arrays(fitted, given)
        self._method = DensityMethod(density, prior).fit(features.z["z"], given, features)
        self.density_ = self._method.fitted
        self.calibration_ = Calibration().fit(torch.from_numpy(-self._scores(apart)))
        self.offset_ = self._auto() if share == "auto" else float(np.quantile(self._scores(X), share))
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """log p(x) of each row in nats, (n,); lower when more unusual."""
        check_is_fitted(self)
        return self._scores(validate_data(self, X, dtype=np.float64, reset=False))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of log p(x), to choose a density by in cross-validation."""
        return float(self.score_samples(X).mean())

    def decision_function(self, X: Any) -> np.ndarray:
        """How far the score of each row lies above the threshold, (n,); negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """-1 for outliers, 1 for other rows, (n,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def p_value(self, X: Any) -> np.ndarray:
        """The share of rows that were set apart that are at least as unusual, the row itself counted, (n,)."""
        scores = torch.from_numpy(-self.score_samples(X))
        return self.calibration_.p_value(scores).numpy()

    def _scores(self, X: np.ndarray) -> np.ndarray:
        z = torch.tensor(X, device="cpu")
        return -self._method.score(z, z[:, 0]).epistemic.double().numpy()  # whatever is predicted

    def _auto(self) -> float:
        lowest = 1 / (len(self.calibration_.scores) + 1)
        if lowest > self.false_alarm:
            warn(
                f"{len(self.calibration_.scores)} rows that were set apart are too few for a false-alarm rate of "
                f"{self.false_alarm}: it is {lowest:.2g} instead. Give more rows, or a contamination."
            )
        return -self.calibration_.threshold(max(self.false_alarm, lowest))
