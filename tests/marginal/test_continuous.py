"""What every marginal of numbers keeps to."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from torch import Tensor

from hidden_uncertainty import io
from hidden_uncertainty.marginal import (
    KINDS,
    BetaPrime,
    Categorical,
    Continuous,
    Gaussian,
    Histogram,
    LabelSets,
    Uniform,
    by_name,
)
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
    assert set(KINDS.values()) == {Categorical, LabelSets, *KINDS_OF_NUMBERS}
    assert all(kind.__name__ == name for name, kind in KINDS.items())


# Points and weights


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_first_points_hold_all_values_and_nearly_all_mass(kind: type[Continuous], dtype: torch.dtype) -> None:
    y = positive(dtype=dtype)
    marginal = kind().fit(y)
    points, log_weight, log_volume = marginal.at(y)
    assert log_volume is not None and points.shape == (*log_weight.shape, 1)
    assert points[0, 0].item() <= y.min().item() + 1e-6 and points[-1, 0].item() >= y.max().item() - 1e-6
    assert (points.diff(dim=0) >= 0).all()
    assert log_weight.exp().sum().item() == pytest.approx(1, abs=2e-3)


def test_first_points_go_far_where_there_are_tails() -> None:
    y = positive()
    assert [kind().fit(y).tails for kind in KINDS_OF_NUMBERS] == [False, True, True, True]
    for kind in (Gaussian, Histogram):
        low, high = kind().fit(y).at(y).points[[0, -1], 0]
        assert low < -1000 * y.std() and high > 1000 * y.std()


def log_density(marginal: Continuous, y: np.ndarray) -> np.ndarray:
    """An independent density with the parameters that were fitted."""
    if isinstance(marginal, Uniform):
        low, high = marginal.bounds.tolist()
        return stats.uniform(low, high - low).logpdf(y)
    if isinstance(marginal, Gaussian):
        return stats.norm(marginal.mean.item(), marginal.factor.item()).logpdf(y)
    if isinstance(marginal, BetaPrime):
        return stats.betaprime(*marginal.shape.tolist()).logpdf(y)
    assert isinstance(marginal, Histogram) and marginal.tail is not None
    (low, high), (mass, length) = marginal.bounds.tolist(), marginal.tail.tolist()
    edges = np.linspace(low, high, len(marginal.mass) + 1)
    bins = stats.rv_histogram((marginal.mass.numpy(), edges), density=False)
    inside = bins.logpdf(y) + math.log(1 - 2 * mass)
    off = np.maximum(low - y, y - high)
    return np.where(off > 0, math.log(mass / length) - off / length, inside)


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
@pytest.mark.parametrize(
    ("centre", "deviation"), [(1.2, 0.5), (2.0, 0.05), (1.3, 1e-4), (0.9, 3.0), (8.0, 0.05), (15.0, 0.5), (15.0, 2.0)]
)
def test_evidence_and_entropy_under_a_gaussian_likelihood(
    kind: type[Continuous], centre: float, deviation: float
) -> None:
    """Within the values, which reach to 6, and up to 30 of their deviations beyond, by brute force."""
    marginal = kind().fit(positive())
    likelihood = stats.norm(centre, deviation)

    def log_prob(points: Tensor) -> Tensor:  # (m, 1) or (1, m, 1)
        with np.errstate(over="ignore"):
            return torch.as_tensor(likelihood.logpdf(points[..., 0].numpy())).clamp(min=-1e300).reshape(1, -1)

    support = marginal.at(torch.zeros(1), log_prob)
    posterior = infer(log_prob(support.points), *support[1:])

    low, high = centre - 30 * deviation, centre + 30 * deviation
    low = max(low, 1e-9) if isinstance(marginal, BetaPrime) else low
    if isinstance(marginal, Uniform):
        low, high = marginal.bounds.tolist()  # beyond, the nearest edge is what is left
        low = max(low, min(centre, high) - 30 * deviation)
        high = min(high, low + 60 * deviation)
    y = np.linspace(low, high, 1_000_001)
    with np.errstate(divide="ignore"):
        joint = log_density(marginal, y) + likelihood.logpdf(y)
    top = joint.max()
    evidence = integrate.trapezoid(np.exp(joint - top), y)
    p = np.exp(joint - top) / evidence
    entropy = integrate.trapezoid(special.entr(p), y)

    jumps = isinstance(marginal, Histogram)
    assert posterior.log_evidence.item() == pytest.approx(top + math.log(evidence), abs=2e-3 if jumps else 1e-5)
    assert posterior.entropy.item() == pytest.approx(entropy, abs=1e-2 if jumps else 2e-5)


def test_given_range_is_kept_to() -> None:
    y = positive(dtype=torch.float32)
    with pytest.warns(UserWarning, match="leaves out"):
        marginal = Gaussian(low=0.7, high=1.9, points=7).fit(y)
    flat = marginal.at(y[:2], lambda points: torch.zeros(2, points.shape[-2]))
    torch.testing.assert_close(flat.points[1, :, 0], torch.linspace(0.7, 1.9, 7, dtype=torch.float64))
    with pytest.warns(UserWarning, match="leaves out"):
        points = Gaussian(low=0.7).fit(y).at(y).points
    assert points[0].item() == 0.7 and points[-1].item() > 1000


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


def test_bounded_marginals_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="hidden_uncertainty")
    for kind in KINDS_OF_NUMBERS:
        kind().fit(positive())
    assert [message.partition(" gives predictions beyond")[0] for message in caplog.messages] == ["Uniform"]


# Modules


def test_rebuilt_from_its_configuration_and_tensors(case: tuple, tmp_path) -> None:
    build, y = case
    marginal = build().fit(y)
    config = json.loads(json.dumps(marginal.config()))
    assert config == marginal.config()
    rebuilt = type(marginal).from_config(config)
    assert rebuilt.config() == config
    assert not any(value.any() for value in rebuilt.state_dict().values())
    io.write(tmp_path / "marginal.safetensors", config, marginal.state_dict())
    rebuilt.load_state_dict(io.read(tmp_path / "marginal.safetensors")[1], strict=True)
    assert state(rebuilt) == state(marginal)
    # Bits depend on how a matrix lies in memory, which a file does not tell.
    assert all(value.is_contiguous() for value in marginal.state_dict().values())
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
        ({"points": 2}, "points must be a whole number from 3 to 1,000,000, or None, not 2"),
        ({"points": 10**18}, "points must be a whole number from 3 to 1,000,000, or None, not 1000"),
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
        (torch.tensor([1.0, 1e18]), ValueError, r"reach 1e\+18 .* float32 cannot hold with .*: rescale them"),
        (torch.tensor([1.0, 1e30]), ValueError, r"reach 1e\+30 .* float32 cannot hold with .*: rescale them"),
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
    for call in (kind().log_prob, kind().cdf, kind().at):
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
    flat = marginal.at(y[:1], lambda points: torch.zeros(1, points.shape[-2]))
    assert flat.log_volume is not None and flat.log_volume.isfinite().all()
    assert flat.log_weight.exp().sum().item() == pytest.approx(1, abs=0.03)
    assert marginal.log_prob(y).isfinite().all()
    p = marginal.cdf(y)
    assert (p >= 0).all() and (p <= 1).all() and (p[y.argsort()].diff() >= 0).all()


@pytest.mark.parametrize("shape", [(200,), (200, 2)])
def test_what_is_prepared_follows_the_tensors(shape: tuple[int, ...]) -> None:
    y = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    one, other = Gaussian().fit(y), Gaussian().fit(3 * y + 1)
    one.load_state_dict(other.state_dict())
    for found, expected in zip(one.at(y[:4]), other.at(y[:4]), strict=True):
        assert torch.equal(found, expected)
    for found, expected in zip(one.double().at(y[:4]), other.at(y[:4]), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, check_dtype=False)
