from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hidden_uncertainty.density.gaussian import joint
from hidden_uncertainty.density.gaussian.joint import JointMixture
from mixture_draws import draw_numbers as draw


def network(n: int, inputs: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The last hidden layer of a tanh network with drawn weights, and the output that is affine in it."""
    fixed, random = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(n, inputs, generator=random) - 2
    h = torch.tanh(x @ torch.randn(inputs, width, generator=fixed) + torch.randn(width, generator=fixed))
    h = torch.tanh(1.5 * h @ torch.randn(width, width, generator=fixed) / math.sqrt(width))
    return h, h @ torch.randn(width, generator=fixed) / math.sqrt(width)


def own(y: Tensor) -> Tensor:
    return y.reshape(len(y), 1, -1)


def best_log_prob(density: JointMixture, z: Tensor, y: Tensor) -> Tensor:
    """log p(z | y) at the most favourable of 500 predictions."""
    return density.log_prob(z, torch.linspace(float(y.min()), float(y.max()), 500)).amax(1)


@pytest.mark.parametrize("q", [1, 2])
def test_one_component_on_a_gaussian_is_its_conditional(q: int) -> None:
    """Against the density that the data were drawn from."""
    random = torch.Generator().manual_seed(0)
    loading = torch.randn(3, 3, generator=random, dtype=torch.float64)
    slope = torch.randn(3, q, generator=random, dtype=torch.float64)
    n = 60_000
    z = torch.randn(n, 3, generator=random, dtype=torch.float64) @ loading + 5
    y = 10 * (z @ slope + torch.randn(n, q, generator=random, dtype=torch.float64)) - 3
    density = JointMixture(1, noise=1e-3).fit(z, y)
    cov_z = (loading.mT @ loading).numpy()
    cross = cov_z @ (10 * slope.numpy())  # (3, q)
    cov_y = 100 * (slope.mT.numpy() @ cov_z @ slope.numpy() + np.eye(q))
    mean_y = 10 * (np.full(3, 5.0) @ slope.numpy()) - 3
    gain = cross @ np.linalg.inv(cov_y)  # (3, q)
    expected = np.stack(
        [
            multivariate_normal(5 + gain @ (point - mean_y), cov_z - gain @ cross.T).logpdf(z[:200].numpy())
            for point in y[:20].numpy()
        ],
        axis=1,
    )
    np.testing.assert_allclose(density.log_prob(z[:200], y[:20]), expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("chunk", [1, 60, 300])
def test_chunks_change_nothing(per_row: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = draw(50, 5, 1)
    density = JointMixture(4).fit(z, y)
    support = y[:17, None].expand(50, 17, 1) if per_row else y[:17]
    whole = density.log_prob(z, support)
    monkeypatch.setattr(joint, "CHUNK", chunk)
    torch.testing.assert_close(density.log_prob(z, support), whole)
    assert density.log_prob(z[:0], y[:17]).shape == (0, 17)
    assert density.log_prob(z, y[:0]).shape == (50, 0)


@pytest.mark.parametrize("shape", [(100, 600), (2, 30_000)])
def test_memory_is_bounded(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert joint.CHUNK <= 1 << 22
    monkeypatch.setattr(joint, "CHUNK", 1 << 16)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            made = out if isinstance(out, tuple) else (out,)
            largest = max([largest, *(tensor.numel() for tensor in made if torch.is_tensor(tensor))])
            return out

    z, y = draw(300, 4, 1, dtype=torch.float32)
    density = JointMixture(10).fit(z, y)
    rows, points = shape
    assert rows * points * 10 > 2 * joint.CHUNK
    with Watch():
        density.log_prob(z[:rows], torch.linspace(-200, 200, points))
    assert rows * points <= largest <= joint.CHUNK


@pytest.mark.parametrize("covariance", ["full", "tied", "diag"])
def test_finite_for_support_however_far(covariance: Any) -> None:
    z, y = draw(200, 4, 1, dtype=torch.float32)
    density = JointMixture(3, covariance=covariance).fit(z, y)
    far = torch.tensor([-1e300, -1e38, -1e9, 0, 1e9, 1e38, 1e300], dtype=torch.float64)
    for x in (z.double(), 1e300 * z.double()):
        assert density.log_prob(x, far).isfinite().all()


def test_far_predictions_expect_activations_on_the_line_through_a_component() -> None:
    """p(z | y) of one Gaussian moves with y without end: at a hundred deviations it still finds the z that belongs."""
    z, y = draw(500, 3, 1)
    y = z[:, 0] + 0.5 * z[:, 1]
    density = JointMixture(1, dtype="float32").fit(z, y)
    for steps in (10.0, 100.0):
        far = z.mean(0) + steps * torch.tensor([1.0, 0.5, 0])
        answer = far[0] + 0.5 * far[1]
        grid = answer + torch.linspace(-3, 3, 301).double() * y.std()
        best = grid[density.log_prob(far[None], grid)[0].argmax()]
        assert abs(best - answer) < 0.03 * steps


def test_a_curve_in_many_dimensions() -> None:
    z, y = network(750, 1, 100)
    fresh, fresh_y = network(2000, 1, 100, seed=1)
    density = JointMixture().fit(z, y)
    assert density.directions.kept < 60
    before, after = density.log_prob(z, own(y)), density.log_prob(fresh, own(fresh_y))
    assert after.isfinite().all()
    assert (before.mean() - after.mean()).abs() < 2
    off = fresh + 0.05 * torch.randn(2000, 100, generator=torch.Generator().manual_seed(0))
    assert best_log_prob(density, off, y).max() < best_log_prob(density, fresh, y).min()


def test_dead_and_collinear_units(caplog: pytest.LogCaptureFixture) -> None:
    z, y = draw(400, 4, 1, dtype=torch.float32)
    wide = torch.cat([z, z[:, :2] - z[:, 2:], torch.zeros(400, 3)], dim=1)
    caplog.set_level("INFO", logger="hidden_uncertainty")
    density, plain = JointMixture(3).fit(wide, y), JointMixture(3).fit(z, y)
    assert caplog.messages == ["4 of 9 directions kept: 3 never vary, 2 collinear with them"]
    assert density.log_prob(wide, y[:50]).isfinite().all()
    # A unit that wakes up is surprising, and one that no longer is the difference of two others.
    for column in (4, 8):
        odd = wide.clone()
        odd[:, column] += 1
        assert (best_log_prob(density, wide, y) - best_log_prob(density, odd, y)).min() > 100
    # Where nothing is off, the predictions are as probable as without the superfluous units.
    support = torch.linspace(-300, 200, 200)
    likeliest = [d.log_prob(x, support).argmax(1) for d, x in ((density, wide), (plain, z))]
    assert ((likeliest[0] - likeliest[1]).abs() <= 4).float().mean() > 0.9


@pytest.mark.parametrize("covariance", ["full", "tied"])
def test_fewer_rows_than_dimensions(covariance: Any) -> None:
    z, y = network(60, 4, 100)
    fresh, fresh_y = network(1000, 4, 100, seed=1)
    density = JointMixture(3, covariance=covariance).fit(z, y)
    fitted, unseen = density.log_prob(z, own(y))[:, 0], density.log_prob(fresh, own(fresh_y))[:, 0]
    assert unseen.isfinite().all()
    assert fitted.mean() - unseen.mean() < 100  # one nat per dimension
    bare = JointMixture(3, covariance=covariance, shrinkage=None).fit(z, y).log_prob(fresh, own(fresh_y))
    assert unseen.mean() > bare.mean()  # which held-out rows had to find out


def test_automatic_shrinkage_takes_the_likelier() -> None:
    """None where samples abound, Ledoit-Wolf where they are few: the same bits as when asked for by name."""
    for n, expected in ((2000, None), (40, "ledoit-wolf")):
        z, y = network(n, 3, 20)
        chosen = JointMixture(4).fit(z, y).state_dict()
        named = JointMixture(4, shrinkage=expected).fit(z, y).state_dict()  # type: ignore[arg-type]
        assert all(torch.equal(chosen[name], named[name]) for name in chosen)


def test_noise_is_the_width_of_predictions_given_activations() -> None:
    z, _ = draw(3000, 3, 1, dtype=torch.float32)
    y = z @ torch.tensor([1.0, -2.0, 0.5])  # a penultimate layer
    grid = torch.linspace(float(y.min()), float(y.max()), 4001)
    for noise in (0.05, 0.2):
        density = JointMixture(1, noise=noise, shrinkage=None).fit(z, y)
        prior = torch.distributions.Normal(y.mean(), y.std() * math.sqrt(1 + noise**2)).log_prob(grid)
        posterior = (density.log_prob(z[:100], grid) + prior).softmax(1)
        mean = posterior @ grid
        width = (posterior @ grid.square() - mean.square()).sqrt() / y.std()
        # ŷ = β·u + blur of its own: of variance noise² (1 + ‖β‖²/(1 + noise²)), and ‖β‖ = 1 as both have unit variance.
        torch.testing.assert_close(width.mean(), torch.tensor(noise * math.sqrt(2)), rtol=0.1, atol=0)


def test_few_samples_get_fewer_components() -> None:
    z, y = draw(45, 3, 1)
    with pytest.warns(UserWarning, match="45 samples are too few for 10 components of 10 each: fitted 4"):
        density = JointMixture().fit(z, y)
    assert len(density.conditional.y_scale) == 4
    with pytest.warns(UserWarning, match="fitted 1"):
        tiny = JointMixture(2).fit(z[:3], y[:3])
    assert tiny.log_prob(z, y).isfinite().all()


def test_samples_that_repeat_are_not_too_few() -> None:
    z, y = draw(4, 3, 1)
    density = JointMixture(10, noise=1e-3).fit(z.repeat(50, 1), y.repeat(50))  # a warning would be an error
    assert len(density.conditional.y_scale) < 10


def test_says_when_it_did_not_converge() -> None:
    with pytest.warns(UserWarning, match="did not converge in max_iter=1 steps"):
        JointMixture(4, max_iter=1).fit(*draw(300, 4, 1))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda z, y: (z, y.long()), TypeError, "not torch.int64: for classes use GaussianMixture"),
        (lambda z, y: (z, y > 0), TypeError, "torch.bool"),
        (lambda z, y: (z, torch.where(y > y.median(), torch.nan, y)), ValueError, "50 of 100 rows of y hold NaN"),
        (lambda z, y: (z / (y > y.median())[:, None], y), ValueError, "rows of z hold NaN or infinity"),
        (lambda z, y: (z, y * 0 + 0.1), ValueError, "y is the same in all 100 rows: p"),
        (lambda z, y: (z, torch.stack([y, y * 0], 1)), ValueError, r"the same in all 100 rows in column \[1\]"),
        (lambda z, y: (z * 0 + 0.1, y), ValueError, "rows of z are the same"),
        (lambda z, y: (z[:2], y[:2]), ValueError, "at least 3 samples, not 2"),
        (lambda z, y: (z, y[:50]), ValueError, r"same length, not \(100, 4\) and \(50,\)"),
        (lambda z, y: (z, y[:, None, None]), ValueError, r"not \(100, 4\) and \(100, 1, 1\)"),
    ],
)
def test_bad_data(change: Any, error: type[Exception], text: str) -> None:
    z, y = draw(100, 4, 1)
    with pytest.raises(error, match=text):
        JointMixture(2).fit(*change(z, y))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"components": 0}, "components must be a whole number of at least 1"),
        ({"covariance": "spherical"}, "covariance must be one of"),
        ({"shrinkage": "some"}, "shrinkage must be 'auto'"),
        ({"shrinkage": "oas", "covariance": "diag"}, "with 'diag' use None"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"noise": 0}, "noise must be above zero, not 0"),
        ({"noise": float("nan")}, "noise must be above zero, not nan"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        JointMixture(**options)


def test_too_little_noise() -> None:
    z, _ = draw(200, 4, 1)
    with pytest.raises(ValueError, match="singular to working precision even with noise=1e-12: raise noise"):
        JointMixture(2, noise=1e-12, shrinkage=None).fit(z, z.sum(1))


@pytest.mark.parametrize(
    ("q", "shape", "text"),
    [
        (1, (3, 2), r"\(m,\), \(m, 1\) or \(90, m, 1\), as fitted, not \(3, 2\)"),
        (2, (3,), r"shape \(m, 2\) or \(90, m, 2\), as fitted, not \(3,\)"),
        (2, (80, 3, 2), r"not \(80, 3, 2\)"),
    ],
)
def test_bad_support(q: int, shape: tuple[int, ...], text: str) -> None:
    z, y = draw(90, 4, q)
    with pytest.raises(ValueError, match=text):
        JointMixture(2).fit(z, y).log_prob(z, torch.zeros(shape))


def test_what_is_prepared_follows_the_tensors() -> None:
    x, points = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)), torch.linspace(-3, 3, 20)[:, None]
    one, other = (JointMixture(2).fit(z, z[:, 0] + z[:, 1]) for z in (x, x.flip(0) * torch.tensor([1.0, 2.0, 3.0])))
    expected = other.log_prob(x, points)
    assert not torch.allclose(one.log_prob(x, points), expected)  # which keeps what it made of the points
    one.load_state_dict(other.state_dict())
    torch.testing.assert_close(one.log_prob(x, points), expected)
    torch.testing.assert_close(one.double().log_prob(x.double(), points.double()).float(), expected)
    before = other.log_prob(x, points[:5] + 1)
    other.log_prob(x, points)
    points += 1
    torch.testing.assert_close(other.log_prob(x, points)[:, :5], before)
