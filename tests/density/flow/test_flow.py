"""The conditional flow against densities that are known, and what it says when it cannot be fitted."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hidden_uncertainty.density import flow as module
from hidden_uncertainty.density._coupling import Couplings
from hidden_uncertainty.density.flow import ConditionalFlow, Sample, log_likelihood, train


def small(**options: object) -> ConditionalFlow:
    return ConditionalFlow(**{"blocks": 2, "hidden": (32, 32), "patience": 30, **options})  # type: ignore[arg-type]


def rotating(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """z | y from a Gaussian whose mean, scales and axes change with y."""
    generator = torch.Generator().manual_seed(seed)
    y = 2 * torch.rand(n, generator=generator) - 1
    along, across = torch.randn(2, n, generator=generator)
    along, across = torch.exp(0.5 * y) * along, torch.exp(-0.5 * y) * across
    return torch.stack([along + 2 * torch.sin(2 * y), across + 0.8 * y * along], dim=1), y


def rotating_log_prob(z: Tensor, y: Tensor) -> Tensor:
    along = z[..., 0] - 2 * torch.sin(2 * y)
    across = z[..., 1] - 0.8 * y * along
    return -0.5 * (along.square() * torch.exp(-y) + across.square() * torch.exp(y)) - math.log(2 * math.pi)


@pytest.fixture(scope="module")
def fitted() -> ConditionalFlow:
    z, y = rotating(4000, seed=0)
    return small(hidden=(32,), patience=8, batch_size=256, learning_rate=3e-3).fit(z, y)


def test_recovers_a_conditional_gaussian(fitted: ConditionalFlow) -> None:
    z, y = rotating(3000, seed=1)
    found = fitted.log_prob(z, y[:, None, None])[:, 0]
    assert 0 < float((rotating_log_prob(z, y) - found).mean()) < 0.05


def test_integrates_to_one(fitted: ConditionalFlow) -> None:
    support = torch.tensor([-0.9, 0.0, 0.4, 1.5])
    edge = torch.linspace(-12, 12, 241)
    z = torch.cartesian_prod(edge, edge)
    mass = fitted.log_prob(z, support).double().exp().sum(0) * float(edge[1] - edge[0]) ** 2
    torch.testing.assert_close(mass, torch.ones(4, dtype=torch.float64), rtol=0.01, atol=0)


@pytest.mark.parametrize("size", [10.0, 1e6, 1e38])
def test_finite_for_predictions_far_from_all_others(fitted: ConditionalFlow, size: float) -> None:
    z, y = rotating(20, seed=3)
    near = fitted.log_prob(z, y).diagonal()
    far = fitted.log_prob(z, torch.tensor([-size, size]))
    assert far.isfinite().all()
    assert fitted.log_prob(1e30 * z, torch.tensor([-size, size])).isfinite().all()
    assert far.max() < near.mean()


def test_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([2, 5, 9])[torch.randint(0, 3, (1500,), generator=generator)]
    mean = torch.tensor([[0.0, 0, 0], [6, 0, 0], [0, 6, 0]])
    z = torch.randn(1500, 3, generator=generator) + mean[(y > 2).long() + (y > 5).long()]
    density = small().fit(z[:1200], y[:1200])
    assert density.classes is not None and density.classes.tolist() == [2, 5, 9]
    found = density.log_prob(z[1200:], torch.tensor([9, 2, 5]))
    assert (torch.tensor([9, 2, 5])[found.argmax(1)] == y[1200:]).float().mean() > 0.99
    own = found.gather(1, (y[1200:, None] == torch.tensor([9, 2, 5])).long().argmax(1, keepdim=True))
    entropy = 1.5 * (math.log(2 * math.pi) + 1)
    assert float(own.mean()) == pytest.approx(-entropy, abs=0.15)
    with pytest.raises(ValueError, match=r"class \[4\]; fitted: \[2, 5, 9\]"):
        density.log_prob(z, torch.tensor([2, 4]))


def test_one_dimension_is_a_gaussian_given_the_condition() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(3000, generator=generator)
    z = (3 * y + (0.2 + y) * torch.randn(3000, generator=generator))[:, None]
    density = small().fit(z, y)
    support = torch.tensor([0.2, 0.8])
    at = torch.linspace(-6, 12, 1000)[:, None]
    expected = torch.distributions.Normal(3 * support, 0.2 + support).log_prob(at)
    divergence = (expected.exp() * (expected - density.log_prob(at, support))).sum(0) * 0.018
    assert divergence.max() < 0.02


def test_a_thin_manifold(caplog: pytest.LogCaptureFixture) -> None:
    """A curve in 20 dimensions, two of them dead: finite, likely on the curve, unlikely off it."""
    generator = torch.Generator().manual_seed(0)
    t = 2 * torch.rand(400, generator=generator) - 1
    lift = torch.randn(3, 20, generator=generator)
    lift[:, 7:9] = 0
    z = torch.stack([t, torch.sin(3 * t), t.square()], dim=1) @ lift
    caplog.set_level("INFO", logger="hidden_uncertainty")
    density = small(hidden=(16,), learning_rate=3e-3, patience=10).fit(z[:300], t[:300])
    assert caplog.messages == ["3 of 20 directions kept: 2 never vary, 15 collinear with them"]
    on = density.log_prob(z[300:], t[300:]).diagonal()
    assert on.isfinite().all()
    assert float(on.median()) > density.log_prob(z[300:], t[300:].flip(0)).diagonal().median() + 5
    awake = z[300:].clone()
    awake[:, 7] += 0.5
    assert density.log_prob(awake, t[300:]).diagonal().max() < on.min()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_fits_where_gradients_are_off(mode: type[torch.no_grad]) -> None:
    z, y = rotating(200, seed=0)
    expected = small(hidden=(8,), patience=3).fit(z, y)
    with mode():
        density = small(hidden=(8,), patience=3).fit(z.clone(), y.clone())
        density.log_prob(z, y[:3])
    for name, value in density.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name])
        assert not value.is_inference()
    assert not any(value.requires_grad for value in density.parameters())
    copy.deepcopy(density).double().log_prob(z, y[:3])


def test_weights_best_for_the_holdout_are_kept() -> None:
    """Few rows, many weights: the likelihood of the rows that are fitted goes on growing, that of others falls."""
    generator = torch.Generator().manual_seed(0)
    u, c = torch.randn(6, 90, generator=generator), torch.randn(1, 90, generator=generator)
    flow = Couplings(6, 1, blocks=2)
    flow.reset(generator)
    fitted, holdout = Sample(u[:, :60], c[:, :60]), Sample(u[:, 60:], c[:, 60:])
    how = ConditionalFlow(noise=1e-6, learning_rate=3e-3, weight_decay=0.0, max_epochs=60, patience=40)
    trained = train(flow, fitted, holdout, how)
    assert trained.stopped and trained.epochs < 60
    assert float(log_likelihood(flow, *holdout).mean().detach()) == pytest.approx(trained.log_likelihood, abs=1e-3)


def test_goes_back_where_the_likelihood_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and it goes on at half the rate from the best weights; again and again, and it says so."""
    z, y = rotating(100, seed=0)
    rates = []
    optimiser, likelihood = module._optimiser, module.log_likelihood

    def noted(flow: Couplings, how: ConditionalFlow, rate: float) -> Any:
        rates.append(rate)
        return optimiser(flow, how, rate)

    def spoilt(flow: Couplings, u: Tensor, condition: Tensor) -> Tensor:
        if len(rates) == 1 and not torch.is_grad_enabled() and flow.steps()[0].coupling.bias.any():
            return u[0] * math.nan
        return likelihood(flow, u, condition)

    monkeypatch.setattr(module, "_optimiser", noted)
    monkeypatch.setattr(module, "log_likelihood", spoilt)
    density = small(learning_rate=0.01).fit(z, y)
    assert rates == [0.01, 0.005]
    assert float((density.log_prob(z, y[:, None, None])[:, 0] - rotating_log_prob(z, y)).mean()) > -0.5
    with pytest.raises(RuntimeError, match=r"NaN 6 times.*lower learning_rate, raise noise"):
        small(learning_rate=1e38).fit(z, y)


@pytest.mark.parametrize(("gain", "epochs"), [(0.01, 4), (0.0, 12)])
def test_small_gains_prolong_training_where_any_growth_counts(gain: float, epochs: int) -> None:
    """At a rate so low that the likelihood grows in every epoch, but hardly."""
    z, y = rotating(200, seed=0)
    u, c = z.mT.contiguous(), y[None]
    flow = Couplings(2, 1, blocks=2)
    flow.reset(torch.Generator().manual_seed(0))
    options = {"noise": 0.01, "learning_rate": 1e-5, "weight_decay": 0.0}
    how = ConditionalFlow(max_epochs=12, patience=4, gain=gain, **options)  # type: ignore[arg-type]
    trained = train(flow, Sample(u, c), Sample(u, c), how)
    assert trained.epochs == epochs and trained.stopped == (gain > 0)


def test_says_when_it_did_not_converge() -> None:
    z, y = rotating(200, seed=0)
    with pytest.warns(UserWarning, match=r"did not converge in max_epochs=3: .* Raise max_epochs or learning_rate"):
        small(max_epochs=3).fit(z, y)


def test_a_failed_fit_changes_nothing(fitted: ConditionalFlow) -> None:
    density = copy.deepcopy(fitted)
    density.learning_rate = 1e38
    z, y = rotating(100, seed=0)
    with pytest.raises(RuntimeError):
        density.fit(3 * z, y)
    for name, value in density.state_dict().items():
        assert torch.equal(value, fitted.state_dict()[name])


def test_data_that_cannot_be_fitted() -> None:
    z, y = rotating(100, seed=0)
    bad = y.clone()
    bad[[3, 8]] = math.nan
    with pytest.raises(ValueError, match="2 of 100 rows of y hold NaN or infinity"):
        small().fit(z, bad)
    with pytest.raises(ValueError, match="a flow needs at least 20 samples, not 10"):
        small().fit(z[:10], y[:10])


def test_support_of_another_shape(fitted: ConditionalFlow) -> None:
    z = rotating(4, seed=0)[0]
    for shape in ((3, 2), (5, 3, 1), (4, 3, 2)):
        with pytest.raises(ValueError, match=r"expected support of shape \(m,\), \(m, 1\) or \(4, m, 1\), as fitted"):
            fitted.log_prob(z, torch.zeros(shape))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"form": "maf"}, "form must be one of"),
        ({"blocks": 0}, "blocks must be a whole number of at least 1"),
        ({"patience": 0}, "patience must be"),
        ({"hidden": (0,)}, "hidden must be widths"),
        ({"noise": 0.0}, "noise must be above zero"),
        ({"gain": -0.1}, "gain must be zero or more"),
        ({"learning_rate": -1.0}, "learning_rate must be above zero"),
        ({"holdout": 1.0}, "holdout must be a share"),
        ({"dtype": "float16"}, "dtype must be"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ConditionalFlow(**options)  # type: ignore[arg-type]
