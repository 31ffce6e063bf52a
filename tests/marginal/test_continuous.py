"""What every marginal of numbers keeps to."""

from __future__ import annotations

import copy
import itertools
import json
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

from hidden_uncertainty import io
from hidden_uncertainty.marginal import KINDS, BetaPrime, Categorical, Continuous, Gaussian, Histogram, Uniform, by_name
from hidden_uncertainty.scoring.bayes import infer

KINDS_OF_NUMBERS: list[type[Continuous]] = [Uniform, Gaussian, BetaPrime, Histogram]


def positive(n: int = 750, dtype: torch.dtype = torch.float64) -> Tensor:
    values = stats.betaprime.rvs(8, 6, size=n, random_state=np.random.default_rng(0))
    return torch.as_tensor(values).to(dtype)


def vectors(n: int = 400, numbers: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(numbers, numbers, generator=generator, dtype=torch.float64)
    return (torch.randn(n, numbers, generator=generator, dtype=torch.float64) @ mix + 2).to(dtype)


CASES: dict[str, tuple[Callable[[], Continuous], Callable[[], Tensor]]] = {
    **{kind.name: (kind, positive) for kind in KINDS_OF_NUMBERS},
    "single": (Gaussian, lambda: positive(dtype=torch.float32)),
    "bins": (lambda: Histogram(9, points=99), positive),
    "given": (lambda: Uniform(-10, 10, points=1000), positive),
    "box": (lambda: Uniform(points=64), vectors),
    "vectors": (lambda: Gaussian(points=65), vectors),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Callable[[], Continuous], Tensor]:
    build, data = CASES[request.param]
    return build, data()


def state(marginal: Continuous) -> dict[str, tuple[torch.dtype, list]]:
    return {name: (value.dtype, value.tolist()) for name, value in marginal.state_dict().items()}


def test_kinds_are_named_as_their_classes() -> None:
    assert set(KINDS.values()) == {Categorical, *KINDS_OF_NUMBERS}
    assert all(kind.__name__ == name for name, kind in KINDS.items())


# Points and weights


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
def test_weights_are_those_of_the_trapezoid_rule(kind: type[Continuous]) -> None:
    y = positive()
    marginal = kind(points=401).fit(y)
    points, log_weight, log_volume = marginal.at(y)
    assert log_volume is not None
    volume = np.full(401, (points[1] - points[0]).item())
    volume[[0, -1]] /= 2
    np.testing.assert_allclose(log_volume.exp(), volume, rtol=1e-12)
    np.testing.assert_allclose(points, np.linspace(points[0].item(), points[-1].item(), 401), rtol=1e-12)
    difference = (log_weight - log_volume - marginal.log_prob(points)).abs()
    # Bins have edges, where the mass of a step is not its density times its width.
    assert (difference > 1e-12).sum() <= (len(marginal.mass) if isinstance(marginal, Histogram) else 2)


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_default_support_holds_all_values_and_nearly_all_mass(kind: type[Continuous], dtype: torch.dtype) -> None:
    y = positive(dtype=dtype)
    marginal = kind().fit(y)
    points, log_weight, _ = marginal.at(y)
    assert points.shape == log_weight.shape == (512,)
    assert points.dtype == log_weight.dtype == dtype
    assert points[0] <= y.min() and points[-1] >= y.max()
    assert log_weight.exp().sum().item() == pytest.approx(1, abs=3e-4)


def density(marginal: Continuous) -> Callable[[float], float]:
    """An independent density with the parameters that were fitted."""
    if isinstance(marginal, Uniform):
        low, high = marginal.bounds.tolist()
        return stats.uniform(low, high - low).pdf
    if isinstance(marginal, Gaussian):
        return stats.norm(marginal.mean.item(), marginal.factor.item()).pdf
    if isinstance(marginal, BetaPrime):
        return stats.betaprime(*marginal.shape.tolist()).pdf
    assert isinstance(marginal, Histogram)
    edges = np.linspace(*marginal.bounds.tolist(), len(marginal.mass) + 1)
    return stats.rv_histogram((marginal.mass.numpy(), edges), density=False).pdf


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
@pytest.mark.parametrize(("centre", "deviation"), [(1.2, 0.5), (2.0, 0.05), (0.9, 3.0)])
def test_evidence_and_entropy_under_a_gaussian_likelihood(
    kind: type[Continuous], centre: float, deviation: float
) -> None:
    marginal = kind(points=2001).fit(positive())
    points, log_weight, log_volume = marginal.at(torch.zeros(1))
    likelihood = stats.norm(centre, deviation)
    posterior = infer(torch.as_tensor(likelihood.logpdf(points))[None], log_weight, log_volume)

    prior = density(marginal)
    low, high = points[0].item(), points[-1].item()
    edges = list(np.linspace(low, high, len(marginal.mass) + 1)) if isinstance(marginal, Histogram) else [low, high]
    edges = sorted({*edges, *np.clip([centre - 8 * deviation, centre, centre + 8 * deviation], low, high)})

    def integral(function: Callable[[float], float]) -> float:
        return sum(integrate.quad(function, a, b)[0] for a, b in itertools.pairwise(edges))

    evidence = integral(lambda y: prior(y) * likelihood.pdf(y))

    def surprise(y: float) -> float:
        p = prior(y) * likelihood.pdf(y) / evidence
        return -p * math.log(p) if p > 0 else 0.0

    jumps = isinstance(marginal, Histogram)
    assert posterior.log_evidence.item() == pytest.approx(math.log(evidence), abs=1e-2 if jumps else 1e-4)
    assert posterior.entropy.item() == pytest.approx(integral(surprise), abs=2e-2 if jumps else 2e-4)


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
def test_refining_halves_the_steps_and_keeps_the_points(kind: type[Continuous]) -> None:
    y = positive(dtype=torch.float32)
    marginal = kind().fit(y)
    assert not marginal.fixed
    before = marginal.at(y)
    marginal.refine()
    after = marginal.at(y)
    assert after.points.shape == (1023,)
    torch.testing.assert_close(after.points[::2], before.points)
    assert after.log_volume is not None and before.log_volume is not None
    torch.testing.assert_close(after.log_volume[::2], before.log_volume - math.log(2))
    assert after.log_weight.exp().sum().item() == pytest.approx(before.log_weight.exp().sum().item(), abs=2e-4)


def test_refining_what_is_fixed() -> None:
    marginal = Gaussian(points=100).fit(positive())
    assert marginal.fixed
    with pytest.raises(RuntimeError, match="points=100 was asked for, so the points stay"):
        marginal.refine()
    marginal = Gaussian().fit(vectors())
    assert marginal.fixed
    with pytest.raises(RuntimeError, match="draws of vectors"):
        marginal.refine()


def test_given_range_is_kept_to() -> None:
    y = positive(dtype=torch.float32)
    with pytest.warns(UserWarning, match="leaves out"):
        points = Gaussian(low=0.7, high=1.9, points=7).fit(y).at(y).points
    torch.testing.assert_close(points, torch.linspace(0.7, 1.9, 7))
    with pytest.warns(UserWarning, match="leaves out"):
        points = Gaussian(low=0.7).fit(y).at(y).points
    assert points[0] == torch.tensor(0.7) and points[-1] >= y.max()


def test_mass_outside_the_support_is_said() -> None:
    y = torch.as_tensor(stats.norm.ppf((np.arange(750) + 0.5) / 750))
    y /= y.std(correction=0)
    outside = int((y.abs() > 1).sum())
    with pytest.warns(UserWarning, match="leaves out") as record:
        Gaussian(low=-1, high=1).fit(y)
    assert [str(warning.message) for warning in record] == [
        f"the support from -1 to 1 leaves out 31.7 % of p(ŷ) and {outside} of 750 predictions: "
        "give a wider low and high, or neither."
    ]
    with pytest.warns(UserWarning, match=r"out 0\.3 % of p\(ŷ\): give"):
        Gaussian(low=-3, high=3).fit(y.clamp(-2.9, 2.9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Gaussian(low=-4, high=4).fit(y)


def test_steps_too_wide_for_a_long_tail_are_said() -> None:
    y = torch.as_tensor(stats.betaprime.rvs(1, 1, size=750, random_state=np.random.default_rng(0)))
    with pytest.warns(UserWarning, match=r"one of 512 points in equal steps .* stands for \d\d % of p\(ŷ\)"):
        BetaPrime().fit(y)


# Modules


def test_rebuilt_from_its_configuration_and_tensors(case: tuple, tmp_path) -> None:
    build, y = case
    marginal = build().fit(y)
    if not marginal.fixed:
        marginal.refine()
    config = json.loads(json.dumps(marginal.config()))
    assert config == marginal.config()
    rebuilt = type(marginal).from_config(config)
    assert rebuilt.config() == config
    assert not any(value.any() for value in rebuilt.state_dict().values())
    io.write(tmp_path / "marginal.safetensors", config, marginal.state_dict())
    rebuilt.load_state_dict(io.read(tmp_path / "marginal.safetensors")[1], strict=True)
    assert state(rebuilt) == state(marginal)
    for ours, theirs in zip(rebuilt.at(y[:3]), marginal.at(y[:3]), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(rebuilt.log_prob(y), marginal.log_prob(y))
    empty = type(marginal).from_config(json.loads(json.dumps(build().config())))
    assert state(rebuilt.fit(y)) == state(empty.fit(y)) == state(build().fit(y))


def test_fitting_again_forgets_and_copies_are_independent(case: tuple) -> None:
    build, y = case
    marginal = build().fit(2 * y) if not isinstance(build(), Uniform) else build().fit(y / 2)
    twin = copy.deepcopy(marginal)
    assert marginal.fit(y) is marginal
    assert state(marginal) == state(build().fit(y))
    if marginal.low is None:
        assert state(twin) != state(marginal)


def test_numbers_after_vectors() -> None:
    marginal = Gaussian().fit(vectors()).fit(positive())
    assert state(marginal) == state(Gaussian().fit(positive()))


def test_leaves_random_states_and_inputs_alone_and_has_no_gradients(case: tuple) -> None:
    build, y = case
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    values = y.clone().requires_grad_()
    marginal = build().fit(values)
    support = marginal.at(values[:2])
    assert not any(tensor.requires_grad for tensor in [*marginal.buffers(), *support])
    assert torch.equal(values, y)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # type: ignore[index]


def test_autocast_changes_nothing(case: tuple) -> None:
    build, y = case
    with torch.autocast("cpu", dtype=torch.bfloat16):
        marginal = build().fit(y)
        support, log_prob = marginal.at(y[:2]), marginal.log_prob(y)
    assert state(marginal) == state(build().fit(y))
    assert torch.equal(log_prob, marginal.log_prob(y))
    for ours, theirs in zip(support, marginal.at(y[:2]), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precisions_are_kept_in_float32(case: tuple, dtype: torch.dtype) -> None:
    build, y = case
    marginal = build().fit(y.to(dtype))
    assert {value.dtype for value in marginal.state_dict().values()} == {torch.float32}
    assert state(marginal) == state(build().fit(y.to(dtype).float()))
    assert marginal.log_prob(y.to(dtype)).dtype == torch.float32


def test_casts_with_its_buffers(case: tuple) -> None:
    build, y = case
    marginal = build().fit(y.float())
    double = copy.deepcopy(marginal).double()
    inside = y.float()[1:50]
    assert double.log_prob(inside).dtype == torch.float64
    torch.testing.assert_close(double.log_prob(inside).float(), marginal.log_prob(inside))
    assert double.at(inside).log_weight.dtype == torch.float64


def test_missing_values_are_missing_after(case: tuple) -> None:
    build, y = case
    values = y[:4].clone()
    values[(2, 0) if y.dim() == 2 else 2] = math.nan
    assert build().fit(y).log_prob(values).isnan().tolist() == [False, False, True, False]


# Errors


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"points": 2}, "points must be a whole number of at least 3, or None, not 2"),
        ({"points": 10.0}, r"not 10\.0"),
        ({"low": 1.0, "high": 1.0}, r"low must be below high, but low=1\.0 and high=1\.0"),
        ({"low": math.nan}, "low must be a finite number or None, not nan"),
        ({"high": math.inf}, "high must be a finite number or None, not inf"),
    ],
)
def test_errors_of_options(kind: type[Continuous], options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kind(**options)


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
@pytest.mark.parametrize(
    ("y", "error", "text"),
    [
        (torch.tensor([1, 2, 3]), TypeError, r"not torch\.int64: for classes use Categorical"),
        (torch.tensor([True, False]), TypeError, r"not torch\.bool"),
        (torch.ones(5, 1), ValueError, r"q of at least 2, not \(5, 1\)"),
        (torch.ones(5, 2, 2), ValueError, r"not \(5, 2, 2\)"),
        (torch.ones(1), ValueError, "at least 2 predictions, not 1"),
        (torch.tensor([1.0, math.nan, math.inf, 2.0]), ValueError, "2 of 4 predictions hold NaN or infinity"),
        (torch.full((750,), 0.5), ValueError, r"all 750 predictions are 0\.5: a constant has no density\. Check that"),
        (torch.tensor([[1.0, 2.0], [3.0, 2.0]]), ValueError, "column 1 of all 2 predictions is 2: a constant"),
        (torch.tensor([1.0, 1e18]), ValueError, r"reach 1e\+18 .* float32 cannot hold: rescale them"),
        (torch.tensor([1.0, 1e30]), ValueError, r"reach 1e\+30 .* float32 cannot hold: rescale them"),
    ],
)
def test_errors_of_values(kind: type[Continuous], y: Tensor, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kind().fit(y)


@pytest.mark.parametrize("kind", [Gaussian, BetaPrime, Histogram])
def test_support_beside_all_values(kind: type[Continuous]) -> None:
    y = positive()
    with pytest.raises(ValueError, match=r"all 750 predictions are at most .*, and low=1000\.0: lower it"):
        kind(low=1000).fit(y)
    with pytest.raises(ValueError, match=r"all 750 predictions are at least .*, and high=-1\.0: raise it"):
        kind(high=-1).fit(y)


def test_a_fit_that_fails_leaves_the_one_before() -> None:
    marginal = BetaPrime().fit(positive())
    before = state(marginal)
    with pytest.raises(ValueError, match="not positive"):
        marginal.fit(-positive())
    assert state(marginal) == before


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
def test_unfitted(kind: type[Continuous]) -> None:
    for call in (kind().log_prob, kind().cdf, kind().quantile, kind().at, lambda y: kind().refine()):
        with pytest.raises(RuntimeError, match=rf"this {kind.__name__} is not fitted: call fit\(y\) first"):
            call(torch.zeros(3))


def test_values_of_another_shape() -> None:
    numbers, three = Gaussian().fit(positive()), Gaussian().fit(vectors())
    with pytest.raises(ValueError, match=r"shape \(n,\), as fitted, not \(4, 2\)"):
        numbers.log_prob(torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"shape \(n, 3\), as fitted, not \(4, 2\)"):
        three.log_prob(torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"predictions \(n, 3\), as fitted, not \(4,\)"):
        three.at(torch.zeros(4))
    with pytest.raises(RuntimeError, match="fitted to vectors, which have no order"):
        three.cdf(torch.zeros(4))
    with pytest.raises(ValueError, match=r"between 0 and 1, but reaches from -1\.0 to 0\.5"):
        numbers.quantile(torch.tensor([-1.0, 0.5]))


@given(
    values=st.lists(st.floats(0.015625, 1000, width=32), min_size=2, max_size=30, unique=True),
    name=st.sampled_from([kind.name for kind in KINDS_OF_NUMBERS]),
)
@settings(max_examples=60, deadline=None)
def test_any_values_have_a_support_that_holds_them(values: list[float], name: str) -> None:
    y = torch.tensor(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of long tails
        marginal = by_name(name).fit(y)
    points, log_weight, log_volume = marginal.at(y)
    assert log_volume is not None and log_volume.isfinite().all()
    assert points[0] <= y.min() and points[-1] >= y.max()
    assert log_weight.exp().sum().item() == pytest.approx(1, abs=0.03)
    assert marginal.log_prob(y).isfinite().all()
    p = marginal.cdf(y)
    assert (p >= 0).all() and (p <= 1).all() and (p[y.argsort()].diff() >= 0).all()
