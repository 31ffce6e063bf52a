"""Determinism."""

import copy

import pytest
import torch

from hidden_uncertainty import GaussianMixture, LatentDensity
from tried import tried


def fitted(model, data):
    detector = LatentDensity(model, ["body", "hidden"], GaussianMixture(3), max_dim=5)
    return detector.fit(data["train"], calibration=data["unseen"])


@tried("two fits with the same seed", "they are identical to the bit, whatever the global random state")
def test_same_seed(trained, data, untouched):
    untouched(trained)
    torch.manual_seed(1)
    one = fitted(trained, data).head.state_dict()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = fitted(trained, data).head.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@tried("other batch sizes and orders", "the same scores to 1e-4 nats")
def test_batches_and_order(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, ["body", "hidden"], max_dim=5).fit(data["train"])
    x = data["test"][0][0]
    whole = detector(x).epistemic
    for size in (1, 7, 64):
        torch.testing.assert_close(detector.predict(x.split(size)).epistemic, whole, rtol=1e-5, atol=1e-4)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(detector(x[order]).epistemic, whole[order], rtol=1e-5, atol=1e-4)


@tried("a loader that shuffles", "fits agree to 0.01 nats, thresholds too")
def test_order_of_training_data(trained, data, untouched):
    untouched(trained)
    inputs, labels = (torch.cat(parts) for parts in zip(*data["train"], strict=True))
    fits = []
    for seed in range(3):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
        loader = list(zip(inputs[order].split(50), labels[order].split(50), strict=True))
        detector = LatentDensity(trained, ["body", "hidden"], GaussianMixture(3), max_dim=5, combine="last")
        detector.fit(loader, calibration=data["unseen"])
        fits.append([detector.predict(data["test"]).epistemic, torch.tensor(detector.threshold(0.1))])
    for scores, threshold in fits[1:]:
        assert (scores - fits[0][0]).abs().max() < 0.01
        assert (threshold - fits[0][1]).abs() < 0.01


@tried("a GPU instead of a CPU", "the same scores within tolerance")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_devices(trained, data):
    here = fitted(trained, data).predict(data["test"])
    there = fitted(copy.deepcopy(trained).cuda(), data).predict(data["test"])
    torch.testing.assert_close(here.epistemic, there.epistemic, rtol=1e-2, atol=1e-2)
