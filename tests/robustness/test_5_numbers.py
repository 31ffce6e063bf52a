"""Numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hidden_uncertainty import GaussianMixture, LatentDensity
from tried import tried


def features(n, d, seed, condition=1e2):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    mix = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    scale = torch.logspace(0, -0.5 * float(torch.tensor(condition).log10()), d, dtype=torch.float64)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64) * scale
    return (z + 2 * scale * y[:, None]) @ mix, y


@tried("features scaled, shifted and permuted", "log p(z) changes by the known constant, aleatoric not at all")
@settings(max_examples=20, deadline=None)
@given(
    scale=st.floats(1e-2, 1e2),
    shift=st.floats(-100, 100),
    seed=st.integers(0, 9),
    covariance=st.sampled_from(["full", "diag"]),
)
def test_units(scale, shift, seed, covariance):
    z, y = features(300, 5, seed)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    options = {"components": 2, "covariance": covariance, "shrinkage": None}
    plain = GaussianMixture(**options, ridge=1e-9).fit(z, y)
    moved = GaussianMixture(**options, ridge=1e-9 * scale**2).fit((z * scale + shift)[:, order], y)
    one = plain.log_prob(z, plain.classes)
    two = moved.log_prob((z * scale + shift)[:, order], moved.classes)
    torch.testing.assert_close(two + 5 * torch.tensor(scale, dtype=torch.float64).log(), one, rtol=1e-5, atol=1e-4)


@tried("inputs out to the end of float32", "finite scores that never fall along a ray")
@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_far(covariance):
    z, y = features(900, 4, 0)
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 3))
    with torch.no_grad():  # nearest class mean, so that all three are predicted
        means = torch.stack([z[y == c].mean(0) for c in range(3)]).float()
        model[1].weight.copy_(means)
        model[1].bias.copy_(-0.5 * means.square().sum(1))
    detector = LatentDensity(model, "0", GaussianMixture(2, covariance=covariance), task="classification")
    detector.fit(z.float().split(100), calibration=z.float().split(100))
    ray = torch.tensor([1.0, -0.5, 0.3, 0.1]) * torch.logspace(1, 38, 100)[:, None]
    u = detector(ray)
    for name in ("epistemic", "aleatoric", "log_aleatoric", "p_value"):
        assert bool(getattr(u, name).isfinite().all()), name
    assert bool((u.epistemic.diff() >= -1e-6 * u.epistemic[:-1].abs()).all())


@tried(
    "covariances of condition up to 1e6 in float32", "within 0.001, 0.01 and 0.15 nats of float64 at 1e2, 1e4 and 1e6"
)
@pytest.mark.parametrize(("condition", "error"), [(1e2, 1e-3), (1e4, 1e-2), (1e6, 0.15)])  # worst found: 0.107
@pytest.mark.parametrize("shrinkage", ["auto", None])
def test_single_precision(condition, error, shrinkage):
    z, y = features(1500, 32, 1, condition)
    single = GaussianMixture(1, shrinkage=shrinkage).fit(z.float(), y)
    double = GaussianMixture(1, shrinkage=shrinkage).fit(z, y)
    exact = double.log_prob(z, double.classes)
    torch.testing.assert_close(single.log_prob(z.float(), single.classes).double(), exact, rtol=0, atol=error)


@tried("two threads and 256 or 512 dimensions", "the same as one thread: no batched factorisation but Cholesky is used")
@pytest.mark.parametrize("dim", [256, 512])
def test_two_threads(dim):
    z, y = features(3 * dim + 90, dim, 2)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            density = GaussianMixture(1).fit(z.float(), y)
            found.append(density.log_prob(z.float()[:50], density.classes))
    finally:
        torch.set_num_threads(before)
    reference = GaussianMixture(1).fit(z, y)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-2)
    exact = reference.log_prob(z[:50], reference.classes)
    covariance = torch.linalg.inv(reference.factor[1, 0] @ reference.factor[1, 0].mT)
    normal = torch.distributions.MultivariateNormal(reference.mean[1, 0], covariance)
    torch.testing.assert_close(exact[:, 1], normal.log_prob(z[:50]), rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(found[1].double(), exact, rtol=1e-5, atol=1e-2)


@tried("other batch sizes and orders", "the same scores to 1e-5")
def test_batches_and_order(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, ["body", "hidden"], max_dim=5).fit(data["train"])
    x = torch.cat([x for x, _ in data["test"]])
    whole = detector(x).epistemic
    for size in (1, 7, 64):
        torch.testing.assert_close(detector.predict(x.split(size)).epistemic, whole, rtol=1e-5, atol=1e-5)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(detector(x[order]).epistemic, whole[order], rtol=1e-5, atol=1e-5)
