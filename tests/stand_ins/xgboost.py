"""A small stand-in for XGBoost: `XGBClassifier` with the calls that a page makes, by gradient boosting of sklearn."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier


class XGBClassifier:
    def __init__(self, *, n_estimators: int = 100, max_depth: int = 6, random_state: int | None = None) -> None:
        self._trees = GradientBoostingClassifier(
            n_estimators=n_estimators, max_depth=max_depth, random_state=random_state, subsample=0.8
        )

    def fit(self, X, y) -> XGBClassifier:
        if not np.array_equal(np.unique(y), np.arange(len(np.unique(y)))):
            raise ValueError("Invalid classes: expected whole numbers from 0.")  # as XGBoost asks for
        self._trees.fit(X, y)
        return self

    def predict(self, X, *, output_margin: bool = False) -> np.ndarray:
        return self._trees.decision_function(X).astype(np.float32) if output_margin else self._trees.predict(X)

    def predict_proba(self, X) -> np.ndarray:
        return self._trees.predict_proba(X).astype(np.float32)

    def apply(self, X) -> np.ndarray:
        return self._trees.apply(X).reshape(len(X), -1).astype(np.int32)  # (n, trees), trees of all classes in a row
