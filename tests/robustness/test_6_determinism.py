"""Determinism."""

import copy

import pytest
import torch

from hidden_uncertainty import GaussianMixture, LatentDensity
from tried import tried


def fitted(model, data, **options):
    detector = LatentDensity(model, ["body", "hidden"], GaussianMixture(3, restarts=2, **options), max_dim=5)
    return detector.fit(data["train"], calibration=data["unseen"])


@tried("two fits with the same seed", "identical to the bit, whatever the global random state")
def test_same_seed(trained, data, untouched):
    untouched(trained)
    torch.manual_seed(1)
    one = fitted(trained, data).head.state_dict()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = fitted(trained, data).head.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@tried("another seed", "other starts; the likelihoods are close")
def test_other_seed(trained, data, untouched):
    untouched(trained)
    one, two = fitted(trained, data), fitted(trained, data, seed=5)
    assert not torch.equal(one.head.layers["body"].density.mean, two.head.layers["body"].density.mean)
    means = [detector.predict(data["test"]).epistemic.mean() for detector in (one, two)]
    assert abs(float(means[0] - means[1])) < 2.0


@tried("a GPU instead of a CPU", "the same scores within tolerance")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_devices(trained, data):
    here = fitted(trained, data).predict(data["test"])
    there = fitted(copy.deepcopy(trained).cuda(), data).predict(data["test"])
    torch.testing.assert_close(here.epistemic, there.epistemic, rtol=1e-2, atol=1e-2)
