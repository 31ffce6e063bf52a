"""Threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hidden_uncertainty import GaussianMixture, LatentDensity
from tried import tried


@tried("eight threads scoring one detector", "each gets the answer it would get alone")
@pytest.mark.parametrize("training", [True, False])
def test_one_detector(trained, data, untouched, training):
    untouched(trained.train(training))
    detector = LatentDensity(trained, ["body", "hidden"]).fit(data["train"], calibration=data["unseen"])
    parts = [x for x, _ in data["test"]] * 8
    alone = [detector(x) for x in parts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(detector, parts, timeout=60))
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.epistemic, other.epistemic)
        torch.testing.assert_close(one.layers["body"].p_value, other.layers["body"].p_value)


@tried("two detectors on one model in eight threads, one of them fitting", "right answers, no deadlock")
def test_two_detectors(trained, data, untouched):
    untouched(trained)
    first = LatentDensity(trained, "body").fit(data["train"])
    second = LatentDensity(trained, "hidden", GaussianMixture(1)).fit(data["train"])
    expected = first.predict(data["test"]).epistemic, second.predict(data["test"]).epistemic

    def work(number):
        if number % 4 == 3:
            again = LatentDensity(trained, "hidden", GaussianMixture(1)).fit(data["train"])
            return again.predict(data["test"]).epistemic, expected[1]
        detector, wanted = ((first, expected[0]), (second, expected[1]))[number % 2]
        return detector.predict(data["test"]).epistemic, wanted

    with ThreadPoolExecutor(8) as pool:
        for found, wanted in pool.map(work, range(16), timeout=120):
            torch.testing.assert_close(found, wanted)
