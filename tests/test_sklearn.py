"""The detector for scikit-learn: its own checks, the same scores as `LatentDensity`, and what its users do with it."""

from __future__ import annotations

import io

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.covariance import EllipticEnvelope
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture as Reference
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from hidden_uncertainty import Features, GaussianMixture, JointMixture, LatentDensity
from hidden_uncertainty.sklearn import DensityDetector


def blobs(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    return rng.normal(size=(n, 4)) + 4 * np.eye(3, 4)[y], np.array(["a", "b", "c"])[y]


@pytest.mark.filterwarnings("ignore:.* are too few for a false-alarm rate")
@pytest.mark.filterwarnings("ignore:class ")  # of few rows
@parametrize_with_checks(
    [
        DensityDetector(),
        DensityDetector(contamination=0.1),
        DensityDetector(GaussianMixture(2, covariance="diag"), false_alarm=0.1, calibration=0.5),
    ]
)
def test_estimator_checks(estimator, check):
    check(estimator)


def test_scores_are_those_of_latent_density():
    (x, y), (new, _) = blobs(1000, 0), blobs(200, 1)
    detector = DensityDetector(GaussianMixture(2), calibration=0.25, random_state=3).fit(x, y)
    codes = np.unique(y, return_inverse=True)[1]
    apart = np.isin(-detector.score_samples(x), detector.calibration_.scores.numpy())
    assert apart.sum() == 250
    train, unseen = (Features.from_arrays(x[rows], codes[rows]) for rows in (~apart, apart))
    same = LatentDensity(None, "z", GaussianMixture(2)).fit_features(train, calibration=unseen)
    same.threshold(false_alarm=0.05)
    u = same.predict_features(Features.from_arrays(new, np.zeros(200, dtype=int)))
    np.testing.assert_allclose(detector.score_samples(new), -u.epistemic, rtol=1e-12)
    np.testing.assert_array_equal(detector.p_value(new), u.p_value)
    np.testing.assert_array_equal(detector.predict(new) == -1, u.surprising)


def test_without_classes_it_is_one_gaussian_of_all_rows():
    x = np.random.default_rng(0).normal(size=(2000, 3)) @ np.diag([1.0, 2.0, 3.0])
    detector = DensityDetector(GaussianMixture(1, shrinkage=None, ridge=0.0)).fit(x)
    apart = np.isin(-detector.score_samples(x), detector.calibration_.scores.numpy())
    expected = Reference(1, reg_covar=0.0).fit(x[~apart]).score_samples(x)
    np.testing.assert_allclose(detector.score_samples(x), expected, rtol=1e-9)
    default, robust = DensityDetector(GaussianMixture(1)).fit(x), EllipticEnvelope(random_state=0).fit(x)
    order = [np.argsort(np.argsort(found.score_samples(x))) for found in (default, robust)]
    assert np.corrcoef(order)[0, 1] > 0.99


def test_false_alarms_are_as_rare_as_asked_for():
    rates = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        detector = DensityDetector(GaussianMixture(1), false_alarm=0.1, random_state=seed)
        detector.fit(rng.standard_t(3, size=(195, 2)))
        new = rng.standard_t(3, size=(500, 2))
        rates.append((detector.predict(new) == -1).mean())
        np.testing.assert_array_equal(detector.predict(new) == -1, detector.p_value(new) <= 0.1)
    error = np.std(rates) / 200**0.5
    assert 4 / 40 - 3 * error < np.mean(rates) < 0.1 + 3 * error  # 39 rows are set apart: four of forty ranks


def test_contamination_is_a_share_of_the_training_rows():
    x, y = blobs(500, 0)
    for share in (0.01, 0.1, 0.5):
        assert (DensityDetector(contamination=share).fit(x, y).predict(x) == -1).sum() == 500 * share


def test_classes_show_what_lies_between_them():
    x, y = blobs(2000, 0)
    between = np.full((1, 4), [2.0, 2.0, 2.0, 0.0])
    assert DensityDetector().fit(x, y).predict(between) == -1
    assert DensityDetector(GaussianMixture(1)).fit(x).predict(between) == 1


def test_few_rows_are_said_to_be_few():
    x, _ = blobs(20, 0)
    with pytest.warns(UserWarning, match=r"^4 rows .* too few for a false-alarm rate of 0.05: it is 0.2 instead"):
        detector = DensityDetector().fit(x)
    assert detector.predict(x + 100).tolist() == [-1] * 20


def test_in_a_pipeline_and_joblib():
    (x, y), (new, _) = blobs(600, 0), blobs(100, 1)
    frame = pd.DataFrame(x, columns=list("pqrs"))
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), DensityDetector()).fit(frame, y)
    assert pipeline[-1].feature_names_in_.tolist() == list("pqrs")
    file = io.BytesIO()
    joblib.dump(pipeline, file)
    file.seek(0)
    again = joblib.load(file)
    new = pd.DataFrame(new, columns=list("pqrs"))
    np.testing.assert_array_equal(again.decision_function(new), pipeline.decision_function(new))
    np.testing.assert_array_equal(
        again[-1].p_value(again[:-1].transform(new)), pipeline[-1].p_value(pipeline[:-1].transform(new))
    )


def test_in_cross_validation():
    x, y = blobs(600, 0)
    one, many = (cross_val_score(DensityDetector(GaussianMixture(1)), x, classes, cv=3).mean() for classes in (None, y))
    assert many > one + 0.1  # nats
    densities = [GaussianMixture(1), GaussianMixture(3)]
    search = GridSearchCV(DensityDetector(), {"density": densities}, cv=3, n_jobs=1).fit(x)
    assert search.best_params_["density"].components == 3
    density = GaussianMixture(2)
    copy = clone(DensityDetector(density, false_alarm=0.2))
    assert copy.density is not density and copy.density.components == 2 and copy.false_alarm == 0.2
    copy.fit(x)
    assert copy.density.mean is None and copy.density_.mean is not None


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"contamination": 0.7}, ValueError, "'auto' or a share above 0 and at most 0.5, not 0.7"),
        ({"contamination": "none"}, ValueError, "not 'none'"),
        ({"calibration": 2}, ValueError, "calibration must lie between 0 and 1, both excluded; got 2"),
        ({"false_alarm": 0}, ValueError, "false_alarm must lie between 0 and 1, both excluded; got 0"),
        ({"false_alarm": "auto"}, TypeError, "false_alarm must be a number between 0 and 1, not 'auto'"),
        ({"density": "gaussian"}, TypeError, r"GaussianMixture\(\), or None, not 'gaussian'"),
        ({"density": JointMixture()}, TypeError, "for classes use GaussianMixture"),
    ],
)
def test_errors(options, kind, match):
    x, y = blobs(100, 0)
    with pytest.raises(kind, match=match):
        DensityDetector(**options).fit(x, y)


def test_numbers_are_no_classes():
    x, _ = blobs(100, 0)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        DensityDetector().fit(x, x[:, 0])
    for method in ("predict", "p_value", "score_samples", "score"):
        with pytest.raises(NotFittedError):
            getattr(DensityDetector(), method)(x)
