"""What single networks of the default's comparison are measured by: formulas of the peers, ranges, probabilities."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import log_loss

from reproduction.studies.layer_depth.data import Shift
from reproduction.studies.one_score import (
    measure,
    near,
    peers,
    probabilities,
)


def test_vim_is_as_its_authors_wrote_it() -> None:
    random = np.random.default_rng(0)
    z, more = random.normal(size=(80, 6)) * [3, 2, 1, 1, 0.5, 0.1], random.normal(size=(9, 6))
    weight, bias = random.normal(size=(4, 6)), random.normal(size=4)
    u = -np.linalg.pinv(weight) @ bias  # their names
    values, vectors = np.linalg.eig((z - u).T @ (z - u) / 80)
    null = vectors[:, np.argsort(-values)[3:]]
    alpha = (z @ weight.T + bias).max(1).mean() / np.linalg.norm((z - u) @ null, axis=1).mean()
    logits = more @ weight.T + bias
    expected = alpha * np.linalg.norm((more - u) @ null, axis=1) - np.log(np.exp(logits).sum(1))
    head = (torch.tensor(weight), torch.tensor(bias))
    vim = peers.ViM.fit(torch.tensor(z), torch.tensor(z @ weight.T + bias), head)
    np.testing.assert_allclose(vim(torch.tensor(more), torch.tensor(logits)), expected)


def test_fdbd_is_the_distance_to_each_boundary() -> None:
    random = np.random.default_rng(0)
    z, weight, bias, mean = random.normal(size=(7, 5)), random.normal(size=(4, 5)), random.normal(size=4), np.ones(5)
    expected = []
    for row in z:
        logits = weight @ row + bias
        best = logits.argmax()
        far = []
        for c in set(range(4)) - {best}:
            normal, offset = weight[best] - weight[c], bias[best] - bias[c]
            foot = row - (normal @ row + offset) / (normal @ normal) * normal  # on the boundary
            far.append(np.linalg.norm(row - foot))
        expected.append(-np.mean(far) / np.linalg.norm(row - mean))
    parts = (torch.tensor(part) for part in (z, z @ weight.T + bias))
    found = peers.fdbd(*parts, (torch.tensor(weight), torch.tensor(bias)), torch.tensor(mean))
    np.testing.assert_allclose(found, expected)


def test_the_wide_range_is_that_of_thresholds_from_data() -> None:
    asked, known, calibrated = 0.05, 300, 199
    limits = measure.ranges(asked, known, calibrated)
    scores = torch.rand(5000, known + calibrated, generator=torch.Generator().manual_seed(0))
    threshold = scores[:, :calibrated].sort(1, descending=True).values[:, 9]  # of 200, 5 % are above the tenth highest
    shares = (scores[:, calibrated:] > threshold[:, None]).double().mean(1)
    within = ((shares >= limits["wide_low"]) & (shares <= limits["wide_high"])).double().mean()
    assert 0.945 < within < 0.97  # shares are multiples of 1/300
    assert limits["wide_low"] < limits["low"] < asked < limits["high"] < limits["wide_high"]


def test_scores_are_compared_with_accuracy_at_every_step() -> None:
    random = torch.Generator().manual_seed(0)
    base, labels = torch.rand(200, generator=random), torch.randint(3, (200,), generator=random)
    levels = iter((0.0, 1.0, 2.0))

    def read(x: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        level = next(levels)
        wrong = torch.arange(200) < 30 * level  # the first ones are told wrongly
        return {"follows": base + level, "opposes": base - level}, torch.where(wrong, labels + 1, labels)

    (found,) = near.follow(read, torch.zeros(200, 1, 4, 4), labels, [Shift("noise", (0, 10, 20))]).values()
    assert found["accuracy"] == [1.0, 0.85, 0.7] and found["steps"] == [0, 10, 20]
    assert found["rank correlation"] == {"follows": -1.0, "opposes": 1.0}
    assert found["auroc"] == {"follows": [1.0, 1.0], "opposes": [0.0, 0.0]}
    assert found["raulc"]["follows"] > 0 > found["raulc"]["opposes"]


def test_probabilities_are_judged_as_scikit_learn_does() -> None:
    random = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 4, generator=random)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=random)[:, 0]  # half as sure as they seem
    temperature = probabilities.scaled(logits, labels)
    near = [log_loss(labels, (logits.double() / (temperature + step)).softmax(1)) for step in (-0.01, 0, 0.01)]
    assert abs(temperature - 2) < 0.2 and near[1] < min(near[0], near[2])  # no other is likelier
    found = probabilities.judge((logits / 3).softmax(1), logits, labels, 2.0, seed=0)
    for method, scale in (("default", 3), ("softmax", 1), ("scaled softmax", 2)):
        expected = log_loss(labels, (logits.double() / scale).softmax(1))
        assert abs(found["nll"][method] - expected) < 1e-4
    losses = -(logits.double() / 2).log_softmax(1)[torch.arange(2000), labels]
    half = 1.96 * float(losses.std()) / 2000**0.5  # of the mean of many
    middle = found["nll"]["scaled softmax"]
    assert abs(found["nll"]["low"] - (middle - half)) < 0.1 * half
    assert abs(found["nll"]["high"] - (middle + half)) < 0.1 * half
    assert found["ece"]["scaled softmax"] < 0.03 < min(found["ece"]["softmax"], found["ece"]["default"])
    assert not probabilities.within(found["ece"])
    assert probabilities.within({"default": found["nll"]["scaled softmax"], **found["nll"]} | {"default": middle})
