"""Bayes over one support, against many digits and closed forms; and densities as methods."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hidden_uncertainty import ConditionalFlow, Density, GaussianMixture, JointMixture, Regression
from hidden_uncertainty.extract import Features
from hidden_uncertainty.marginal import Categorical, Gaussian, Uniform
from hidden_uncertainty.model.tasks import Classification
from hidden_uncertainty.scoring import bayes
from hidden_uncertainty.scoring.bayes import DensityMethod, Prior, infer
from hidden_uncertainty.scoring.terms import Method, build, with_kind

LOWEST = torch.finfo(torch.float32).min


def reference(log_likelihood: Tensor, log_weight: Tensor) -> list[tuple[mpmath.mpf, list[mpmath.mpf], mpmath.mpf]]:
    """Evidence, posterior and entropy of each row by the definition, with enough digits that nothing underflows."""
    rows = []
    with mpmath.workdps(60):
        for row in log_likelihood.tolist():
            joint = [mpmath.exp(mpmath.mpf(a) + mpmath.mpf(b)) for a, b in zip(row, log_weight.tolist(), strict=True)]
            evidence = mpmath.fsum(joint)
            posterior = [value / evidence for value in joint]
            entropy = mpmath.fsum(surprise(joint, j) for j in range(len(joint)))
            rows.append((mpmath.log(evidence), posterior, entropy))
    return rows


def surprise(joint: list[mpmath.mpf], j: int) -> mpmath.mpf:
    """-p_j log p_j, without cancellation where p_j is one."""
    if not joint[j]:
        return mpmath.mpf(0)
    rest = mpmath.fsum(value for i, value in enumerate(joint) if i != j)
    return joint[j] / (joint[j] + rest) * mpmath.log1p(rest / joint[j])


def draw(n: int, m: int, spread: float, offset: float, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    log_likelihood = offset + spread * torch.randn(n, m, generator=generator, dtype=torch.float64)
    log_weight = torch.rand(m, generator=generator, dtype=torch.float64).log_softmax(0)
    return log_likelihood.to(dtype), log_weight.to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("spread", "offset"), [(0.01, 0.0), (1.0, 3.0), (5.0, -1000.0), (5.0, 2000.0)])
@pytest.mark.parametrize("m", [2, 10])
def test_all_quantities_match_many_digits(
    m: int, spread: float, offset: float, dtype: torch.dtype, tolerance: float
) -> None:
    log_likelihood, log_weight = draw(30, m, spread, offset, dtype)
    result = infer(log_likelihood, log_weight)
    for i, (log_evidence, posterior, entropy) in enumerate(reference(log_likelihood, log_weight)):
        assert result.log_evidence[i].item() == pytest.approx(float(log_evidence), rel=tolerance, abs=tolerance)
        expected = torch.tensor([float(value) for value in posterior])
        torch.testing.assert_close(result.log_posterior[i].exp().float(), expected, rtol=4e-6, atol=1e-7)
        assert result.entropy[i].item() == pytest.approx(float(entropy), rel=tolerance, abs=0)
        assert result.log_entropy[i].item() == pytest.approx(float(mpmath.log(entropy)), rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("gap", [1e-6, 1e-3, 1.0, 15.0, 17.0, 40.0, 80.0, 87.0])
def test_small_entropy_keeps_its_digits(gap: float) -> None:
    log_likelihood = torch.tensor([[0.0, -gap, -2 * gap], [-gap, 0.0, -gap]])
    result = infer(log_likelihood, torch.zeros(3))
    for i, (_, _, entropy) in enumerate(reference(log_likelihood, torch.zeros(3))):
        assert result.entropy[i].item() == pytest.approx(float(entropy), rel=1e-6, abs=0)


@pytest.mark.parametrize("gap", [88.0, 103.0, 150.0, 745.0, 1e3, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_entropy_where_entropy_underflows(gap: float, dtype: torch.dtype) -> None:
    log_likelihood = torch.tensor([[0.0, -gap, -gap - 1, -2 * gap]], dtype=dtype)
    log_weight = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=dtype).log()
    result = infer(log_likelihood, log_weight)
    ((_, _, entropy),) = reference(log_likelihood, log_weight)
    with mpmath.workdps(60):
        expected = float(mpmath.log(entropy))
    eps = torch.finfo(dtype).eps
    assert result.log_entropy.item() == pytest.approx(expected, rel=4 * eps)


def test_log_entropy_ranks_what_entropy_cannot() -> None:
    gaps = torch.tensor([200.0, 200.5, 1e3, 1e5, 1e5 + 1, 1e30])
    result = infer(torch.stack([torch.zeros(6), -gaps], dim=1), torch.zeros(2))
    assert result.entropy.eq(0).all()
    assert result.log_entropy.isfinite().all()
    assert result.log_entropy.diff().lt(0).all()


@pytest.mark.parametrize("m", [2, 3, 10, 1000])
def test_ties_have_entropy_log_m_and_no_more(m: int) -> None:
    result = infer(torch.full((4, m), -12.345), torch.full((m,), 1 / m).log())
    torch.testing.assert_close(result.entropy, torch.full((4,), math.log(m)))
    assert result.entropy.le(torch.tensor(math.log(m))).all()
    torch.testing.assert_close(result.log_entropy, torch.full((4,), math.log(math.log(m))))
    torch.testing.assert_close(result.log_evidence, torch.full((4,), -12.345))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_never_lifts_entropy_above_log_m(dtype: torch.dtype) -> None:
    for m in range(2, 200):
        nearly_equal, _ = draw(20, m, 1e-5, 0.0, dtype)
        result = infer(torch.cat([nearly_equal, torch.zeros(1, m, dtype=dtype)]), torch.zeros(m, dtype=dtype))
        assert result.entropy.max() <= torch.tensor(math.log(m), dtype=dtype)
        assert result.log_entropy.max() <= torch.tensor(math.log(math.log(m)), dtype=dtype)


def test_one_point_has_no_entropy() -> None:
    result = infer(torch.tensor([[-3.0], [1e30]]), torch.tensor([-0.5]))
    torch.testing.assert_close(result.log_evidence, torch.tensor([-3.5, 1e30]))
    assert result.log_posterior.eq(0).all()
    assert result.entropy.eq(0).all()
    assert result.log_entropy.eq(LOWEST).all()


@pytest.mark.parametrize("value", [-1e37, LOWEST, -LOWEST, -math.inf])
def test_saturated_likelihoods_leave_the_prior(value: float) -> None:
    prior = torch.tensor([0.2, 0.7, 0.1])
    result = infer(torch.full((2, 3), value), prior.log())
    torch.testing.assert_close(result.log_posterior.exp(), prior.expand(2, 3))
    torch.testing.assert_close(result.entropy, -(prior * prior.log()).sum().expand(2))
    assert result.log_evidence.eq(max(min(value, -LOWEST), LOWEST)).all()


@pytest.mark.parametrize("filler", [0.0, 500.0, -LOWEST, LOWEST])
def test_class_without_weight_is_as_if_absent(filler: float) -> None:
    log_likelihood, log_weight = draw(5, 3, 2.0, -10.0, torch.float32)
    with_column = torch.cat([log_likelihood[:, :1], torch.full((5, 1), filler), log_likelihood[:, 1:]], dim=1)
    with_weight = torch.cat([log_weight[:1], torch.tensor([-math.inf]), log_weight[1:]])
    expected, result = infer(log_likelihood, log_weight), infer(with_column, with_weight)
    assert result.log_posterior[:, 1].eq(-math.inf).all()
    torch.testing.assert_close(result.log_posterior[:, [0, 2, 3]], expected.log_posterior)
    for name in ("log_evidence", "entropy", "log_entropy"):
        torch.testing.assert_close(getattr(result, name), getattr(expected, name))


def test_only_one_class_with_weight() -> None:
    result = infer(torch.tensor([[-4.0, 9.0]]), torch.tensor([0.0, -math.inf]))
    assert result.log_evidence.item() == -4
    assert result.entropy.item() == 0
    assert result.log_entropy.item() == LOWEST


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.data(), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_any_finite_likelihood_gives_finite_results(data: st.DataObject, m: int) -> None:
    log_likelihood = torch.tensor([data.draw(st.lists(finite, min_size=m, max_size=m))])
    weights = st.one_of(st.floats(-100, 10, width=32), st.just(-math.inf))
    log_weight = torch.tensor(data.draw(st.lists(weights, min_size=m, max_size=m)))
    result = infer(log_likelihood, log_weight)
    assert result.log_evidence.isfinite().all()
    assert result.log_entropy.isfinite().all()
    assert not result.log_posterior.isnan().any()
    assert result.log_posterior.le(0).all()
    assert result.entropy.ge(0).all()
    assert result.entropy.le(torch.tensor(math.log(m))).all()
    if log_weight.isfinite().any():
        assert result.log_posterior.exp().sum().item() == pytest.approx(1, abs=1e-5)
        torch.testing.assert_close(result.log_entropy.exp(), result.entropy, rtol=2e-5, atol=1e-37)


def test_gradient_of_evidence_is_the_posterior() -> None:
    log_likelihood, log_weight = draw(6, 4, 3.0, -5.0, torch.float64)
    log_likelihood[0] = log_likelihood[0, 0]  # ties
    log_likelihood.requires_grad_()
    result = infer(log_likelihood, log_weight)
    (gradient,) = torch.autograd.grad(result.log_evidence.sum(), log_likelihood, retain_graph=True)
    torch.testing.assert_close(gradient, result.log_posterior.exp())
    (expected,) = torch.autograd.grad(
        torch.distributions.Categorical(logits=log_likelihood + log_weight).entropy().sum(), log_likelihood
    )
    (gradient,) = torch.autograd.grad(result.entropy.sum(), log_likelihood, retain_graph=True)
    torch.testing.assert_close(gradient, expected)
    (gradient,) = torch.autograd.grad(result.log_entropy.sum(), log_likelihood)
    torch.testing.assert_close(gradient * result.entropy[:, None], expected)


def test_gradient_is_finite_at_ties_and_where_entropy_underflows() -> None:
    rows = [[0.0, -1e5, 3.0, -1e4], [1e37, -1e37, 0.0, 1.0], [2.0, 2.0, 2.0, 2.0]]
    log_likelihood = torch.tensor(rows, requires_grad=True)
    result = infer(log_likelihood, torch.tensor([0.0, 0.0, -math.inf, 0.0]))
    for value in (result.log_evidence, result.entropy, result.log_entropy):
        (gradient,) = torch.autograd.grad(value.sum(), log_likelihood, retain_graph=True)
        assert gradient.isfinite().all()


def test_no_rows() -> None:
    result = infer(torch.zeros(0, 3), torch.zeros(3))
    assert [tuple(value.shape) for value in result] == [(0,), (0, 3), (0,), (0,)]


def test_exports() -> None:
    class Head(nn.Module):
        log_weight: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("log_weight", torch.tensor([0.5, 0.0, 0.5]).log())

        def forward(self, log_likelihood: Tensor) -> tuple[Tensor, ...]:
            return tuple(infer(log_likelihood, self.log_weight))

    batch = torch.export.Dim("batch", min=1, max=4096)
    example, _ = draw(4, 3, 3.0, 0.0, torch.float32)
    program = torch.export.export(Head(), (example,), dynamic_shapes=({0: batch},), strict=False)
    other, _ = draw(7, 3, 100.0, 0.0, torch.float32, seed=1)
    for result, expected in zip(program.module()(other), Head()(other), strict=True):
        torch.testing.assert_close(result, expected, equal_nan=False)


@pytest.mark.parametrize("own", [False, True], ids=["shared support", "own support"])
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (1.3, 0.2), (-2.0, 0.05)])
def test_integral_of_gaussians_is_the_closed_form(mean: float, deviation: float, own: bool) -> None:
    prior, seen = 1.5, torch.tensor([0.3, -1.0, 4.0], dtype=torch.float64)
    points = torch.linspace(-15, 15, 4001, dtype=torch.float64)
    points = points + 0.003 * torch.arange(3)[:, None] if own else points
    log_volume = torch.full_like(points, math.log(30 / 4000))
    log_volume[..., [0, -1]] -= math.log(2)

    def normal(mean: float | Tensor, deviation: float) -> torch.distributions.Normal:
        return torch.distributions.Normal(
            torch.as_tensor(mean, dtype=torch.float64), torch.tensor(deviation, dtype=torch.float64)
        )

    log_weight = normal(mean, prior).log_prob(points) + log_volume
    result = infer(normal(points, deviation).log_prob(seen[:, None]), log_weight, log_volume)
    expected = normal(mean, math.hypot(prior, deviation)).log_prob(seen)
    torch.testing.assert_close(result.log_evidence, expected, rtol=0, atol=1e-9)
    spread = math.sqrt(1 / (prior**-2 + deviation**-2))
    torch.testing.assert_close(result.entropy, normal(0.0, spread).entropy().expand(3), rtol=0, atol=1e-6)
    assert result.log_entropy is None
    torch.testing.assert_close(result.log_posterior.exp().sum(1), torch.ones(3, dtype=torch.float64))


def test_a_weight_of_each_input_takes_its_point_out() -> None:
    log_weight = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log()
    result = infer(torch.zeros(2, 2), log_weight, torch.zeros(2, 2))
    torch.testing.assert_close(result.entropy, torch.tensor([math.log(2), 0.0]))
    assert result.log_posterior[1, 1] == -math.inf


NOISE = 0.3


def drawn(classes: int | None = None, n: int = 600) -> tuple[Tensor, Tensor, Features]:
    """z = (y, -y) and noise, of numbers or of classes y."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(n, generator=generator) if classes is None else torch.arange(n) % classes
    z = torch.stack([y, -y], 1) + NOISE * torch.randn(n, 2, generator=generator)
    task = Regression() if classes is None else Classification()
    return z, y, Features(z={"z": z}, residual={"z": None}, prediction=y, task=task, reductions={}, classes=classes)


def test_scores_of_numbers_are_the_closed_form() -> None:
    z, y, features = drawn(n=4000)
    scores = DensityMethod(JointMixture(1), Prior("gaussian")).fit(z, y, features).score(z, y + 1)
    covariance = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) + NOISE**2 * torch.eye(2)
    expected = -torch.distributions.MultivariateNormal(torch.zeros(2), covariance).log_prob(z)
    torch.testing.assert_close(scores.epistemic, expected, rtol=0.03, atol=0.05)
    variance = 1 / (1 + 2 / NOISE**2)
    mean = variance * (z[:, 0] - z[:, 1]) / NOISE**2
    error = ((mean - y - 1).square() + variance).sqrt()
    assert scores.expected_error is not None and scores.aleatoric is not None
    torch.testing.assert_close(scores.expected_error, error, rtol=0.03, atol=0.05)
    wanted = 0.5 * math.log(2 * math.pi * math.e * variance)
    assert scores.aleatoric.median().item() == pytest.approx(wanted, abs=0.1)  # the blur of the density


@pytest.mark.parametrize(
    ("classes", "spec"), [(3, "auto"), (None, "auto"), (None, "histogram"), (None, Uniform(-9.0, 9.0, points=801))]
)
def test_a_method_is_rebuilt_and_scores_in_pieces(
    classes: int | None, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, y, features = drawn(classes)
    method = DensityMethod(None, Prior(spec)).fit(z, y, features)
    again = build(Method.kinds, json.loads(json.dumps(with_kind(method))), "method")
    again.load_state_dict(method.state_dict())
    expected = method.score(z, y)
    real, asked = again.density.given, []
    monkeypatch.setattr(again.density, "given", lambda rows: asked.append(len(rows)) or real(rows))
    monkeypatch.setattr(bayes, "ROWS", 7)
    torch.testing.assert_close(again.score(z, y)._tensors(), expected._tensors(), rtol=1e-4, atol=1e-4)
    assert max(asked) == 7 and sum(asked) == len(z)


def test_a_prior_is_fitted_once_for_all_terms() -> None:
    z, y, features = drawn(3)
    prior = Prior()
    with pytest.raises(RuntimeError, match="the marginal is not fitted yet"):
        _ = prior.fitted
    first = DensityMethod(GaussianMixture(1), prior).fit(z, y, features)
    fitted = prior.fitted
    assert DensityMethod(GaussianMixture(1), prior).fit(z + 1, y, features).prior.fitted is fitted
    assert first.prior.fitted is fitted


@pytest.mark.parametrize(
    ("classes", "spec", "error", "message"),
    [
        (3, "uniform", ValueError, "marginal='uniform' is for numbers; classes are counted"),
        (None, Categorical(), TypeError, "needs a continuous marginal"),
        (None, Uniform(-0.1, 0.1), ValueError, "outside"),
        (1, "auto", ValueError, "all 600 inputs have the same class, 0"),
        (601, "auto", ValueError, "600 inputs are fewer than the network's 601 classes"),
    ],
)
def test_marginals_that_do_not_fit(classes: int | None, spec: Any, error: type[Exception], message: str) -> None:
    z, y, features = drawn(classes)
    with pytest.raises(error, match=message):
        DensityMethod(None, Prior(spec)).fit(z, y, features)


def test_a_support_that_is_too_narrow() -> None:
    z, y, features = drawn()
    with pytest.warns(UserWarning, match=r"leaves out .* % of p\(ŷ\)"):
        DensityMethod(None, Prior(Gaussian(low=-0.5, high=0.5))).fit(z, y, features)


def test_a_support_that_is_far_wider_than_the_data_is_not_too_coarse() -> None:
    z, y, features = drawn()
    wide, narrow = (
        DensityMethod(JointMixture(1), Prior(Uniform(-end, end, points=99))).fit(z, y, features).score(z, y)
        for end in (1e5, 50.0)
    )
    torch.testing.assert_close(wide.epistemic - math.log(1e5), narrow.epistemic - math.log(50.0), rtol=0, atol=1e-3)
    torch.testing.assert_close(wide.aleatoric, narrow.aleatoric, rtol=0, atol=1e-3)


@cache
def _fitted(name: str, q: int) -> tuple[DensityMethod, Tensor, Tensor]:
    """A method fitted to z that mixes what y is linear in, and rows that lie 1, 4.5 and 12 deviations out."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(3, 5, generator=generator)
    t = torch.randn(1006, 3, generator=generator)
    t[1000:] = torch.tensor([1.0, 4.5, 12.0]).repeat(2)[:, None] * nn.functional.normalize(t[1000:], dim=1)
    z = t @ mix + 0.1 * torch.randn(1006, 5, generator=generator)
    y = torch.stack([t[:, 0] + 0.3 * t[:, 1], t[:, 1] - 0.5 * t[:, 2]], 1)[:, :q].squeeze(1)
    options: dict[str, Any] = {"task": Regression(), "reductions": {}, "classes": None}
    features = Features(z={"z": z[:1000]}, residual={"z": None}, prediction=y[:1000], **options)
    method = DensityMethod(copy.deepcopy(DENSITIES[name]), Prior("gaussian")).fit(z[:1000], y[:1000], features)
    return method, z[1000:], y[1000:]


@cache
def _brute_force(name: str, q: int) -> tuple[Tensor, Tensor]:
    """-log p(z) and h(y|z) by sums over grids that close in on the mass."""
    method, z, _ = _fitted(name, q)
    density, marginal = copy.deepcopy(method.fitted).double(), copy.deepcopy(method.prior.fitted).double()
    assert isinstance(marginal, Gaussian)
    count = 20001 if q == 1 else 201
    found = []
    for row in z.double():
        low, high = torch.full((2, q), 20.0).double() * torch.tensor([[-1.0], [1.0]])
        for fall in (200, 50, 25, 25):
            axes = [torch.linspace(float(a), float(b), count).double() for a, b in zip(low, high, strict=True)]
            points = torch.cartesian_prod(*axes).reshape(-1, q)
            joint = density.log_prob(row[None], points)[0] + marginal.log_prob(points.squeeze(1))
            step = (high - low) / (count - 1)
            kept = points[joint > joint.max() - fall]
            low, high = kept.amin(0) - 2 * step, kept.amax(0) + 2 * step
        log_step = step.log().sum()
        evidence = (joint + log_step).logsumexp(0)
        p = joint - evidence
        found.append(torch.stack([-evidence, -(p.exp() * p * log_step.exp()).sum()]))
    return tuple(torch.stack(found).mT)  # type: ignore[return-value]


FLOW = ConditionalFlow(blocks=2, hidden=(16,), learning_rate=5e-3, patience=10)
DENSITIES: dict[str, Density] = {"joint": JointMixture(2, tol=1e-2), "flow": FLOW}


@pytest.mark.parametrize(("q", "off"), [(1, 0.0), (2, 0.0), (2, 1.0)])
@pytest.mark.parametrize("name", DENSITIES)
def test_scores_are_those_of_brute_force_however_far(name: str, q: int, off: float) -> None:
    """Also where predictions are off by some deviations, for what the density knows."""
    method, z, prediction = _fitted(name, q)
    scores = method.score(z, prediction + off)
    epistemic, aleatoric = _brute_force(name, q)
    assert scores.aleatoric is not None
    torch.testing.assert_close(scores.epistemic.double(), epistemic, rtol=1e-4, atol=1e-3 if q == 1 else 0.03)
    torch.testing.assert_close(scores.aleatoric.double(), aleatoric, rtol=1e-4, atol=1e-3 if q == 1 else 0.03)


def test_surprise_grows_outwards_as_that_of_a_gaussian_does() -> None:
    z, y, features = drawn(n=4000)
    method = DensityMethod(JointMixture(1), Prior("gaussian")).fit(z, y, features)
    out = torch.linspace(0, 12, 25)
    deviation = math.sqrt(1 + NOISE**2 / 2)  # of (z₁ - z₂) / √2 / √2, with ŷ where the network has it
    far = method.score(torch.stack([out, -out], 1) * deviation, out)
    assert (far.epistemic.diff() > 0).all()
    torch.testing.assert_close(far.epistemic - far.epistemic[0], out.square() / 2, rtol=0.05, atol=0.05)
    assert far.aleatoric is not None and float(far.aleatoric.max() - far.aleatoric.min()) < 1e-3


@pytest.mark.parametrize("density", [JointMixture(1), FLOW], ids=DENSITIES)
@pytest.mark.parametrize(("scale", "positive"), [(1e-30, True), (1e-9, False), (1e15, True)])
def test_units_change_scores_by_a_constant(density: Density, scale: float, positive: bool) -> None:
    z, y, features = drawn()
    y = y.exp() if positive else y  # for which a beta prime comes into question
    one, other = (
        DensityMethod(copy.deepcopy(density)).fit(c * z, c * y, replace(features, prediction=c * y)) for c in (1, scale)
    )
    assert type(one.prior.fitted) is type(other.prior.fitted)
    ours, theirs = one.score(z, y), other.score(scale * z, scale * y)
    assert ours.aleatoric is not None and theirs.aleatoric is not None
    log = math.log(scale)
    torch.testing.assert_close(theirs.epistemic - z.shape[1] * log, ours.epistemic, rtol=1e-3, atol=2e-2)
    torch.testing.assert_close(theirs.aleatoric - log, ours.aleatoric, rtol=1e-3, atol=2e-2)


def test_predictions_that_are_all_the_same() -> None:
    z, y, features = drawn()
    with pytest.raises(ValueError, match="all 600 predictions are"):
        DensityMethod().fit(z, torch.ones_like(y), features)
