"""Couplings against autograd, against themselves backwards, and row by row."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hidden_uncertainty.density import _coupling
from hidden_uncertainty.density._coupling import Coupling, Couplings, Form, log_prob

FORMS: tuple[Form, ...] = ("glow", "realnvp")
DIMS = (1, 2, 3, 5, 8)


def drawn(form: Form, dim: int, *, blocks: int = 3, hidden: tuple[int, ...] = (8, 7)) -> Couplings:
    """A flow in float64 that is far from the identity."""
    generator = torch.Generator().manual_seed(dim)
    flow = Couplings(dim, 2, form=form, blocks=blocks, hidden=hidden, condition_hidden=(6,)).double()
    flow.reset(generator)
    for weight in flow.parameters():
        weight.data += 0.2 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return flow


def columns(rows: int, count: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", DIMS)
def test_log_determinant_is_that_of_the_jacobian(form: Form, dim: int) -> None:
    flow, u, c = drawn(form, dim), columns(dim, 4), columns(2, 4, seed=1)
    _, log_scale = flow(u, c)
    for i in range(4):
        jacobian = torch.autograd.functional.jacobian(lambda x, i=i: flow(x[:, None], c[:, [i]])[0][:, 0], u[:, i])
        assert torch.linalg.slogdet(jacobian).logabsdet.item() == pytest.approx(log_scale[i].item(), abs=1e-10)
    assert log_scale.abs().mean() > 0.05


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("hidden", [(), (4,), (5, 4)])
def test_gradients_are_those_of_finite_differences(form: Form, dim: int, hidden: tuple[int, ...]) -> None:
    flow = drawn(form, dim, blocks=2, hidden=hidden)
    inputs = [columns(dim, 3).requires_grad_(), columns(2, 3, seed=1).requires_grad_(), *flow.parameters()]
    assert torch.autograd.gradcheck(lambda u, c, *_: flow(u, c), inputs, fast_mode=True)


@pytest.mark.parametrize("form", FORMS)
def test_starts_as_the_identity_up_to_order(form: Form) -> None:
    flow = Couplings(6, 1, form=form)
    flow.reset(torch.Generator().manual_seed(0))
    u = columns(6, 10).float()
    base, log_scale = flow(u, columns(1, 10).float())
    torch.testing.assert_close(base.sort(0).values, u.sort(0).values)
    assert torch.equal(base, u) == (form == "realnvp")
    assert not log_scale.any()
    assert all(order.unique().tolist() == list(range(6)) for order in flow.order)


@pytest.mark.parametrize("form", FORMS)
def test_the_condition_is_added_to_what_the_perceptron_gives(form: Form) -> None:
    """u₂' = (u₂ + g_t(u₁; c)) ⊙ g_s(u₁; c), by the formula."""
    flow, c = drawn(form, 5), columns(2, 7, seed=2)
    coupling = flow.steps()[0].coupling
    features = flow.features(c)
    first, second = columns(5, 7).split([2, 3])
    own = first
    for weight, bias in zip(coupling.weights, coupling.biases, strict=False):
        own = torch.tanh(weight @ own + bias)
    own = coupling.weights[-1] @ own
    condition = coupling.condition @ torch.relu(flow.weights[0] @ c + flow.biases[0]) + coupling.bias
    torch.testing.assert_close(coupling.perceptron(first), own)
    torch.testing.assert_close(coupling.added(features), condition)
    s, t = (own + condition).view(2, 3, 7)
    out, log_scale = coupling(first, second, features)
    torch.testing.assert_close(out, (second + t) * (2 * torch.tanh(s / 2)).exp())
    torch.testing.assert_close(log_scale, (2 * torch.tanh(s / 2)).sum(0))


def test_forms_have_the_perceptrons_that_the_paper_gives_them() -> None:
    glow, real = Couplings(7, 1, form="glow", blocks=3), Couplings(7, 1, form="realnvp", blocks=3)
    assert [step.half for step in glow.steps()] == [1, 0, 1, 0, 1, 0]
    assert [step.half for step in real.steps()] == [1, 0, 1]
    assert [len(step.coupling.bias) for step in glow.steps()] == [1] * 6
    assert [len(step.coupling.bias) for step in real.steps()] == [2] * 3
    assert [step.order is not None for step in glow.steps()] == [False, False, True, False, True, False]
    assert not len(real.order)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("chunk", [3, 16, 1024])
def test_grid_is_pair_by_pair(form: Form, dim: int, own: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_coupling, "CHUNK", chunk)
    flow, u = drawn(form, dim), columns(dim, 6)
    condition = columns(2, (6 if own else 1) * 5, seed=1).view(2, -1, 5)
    found = log_prob(flow, u, condition)
    pairs = u[:, :, None].expand(dim, 6, 5).reshape(dim, -1)
    base, log_scale = flow(pairs, condition.expand(2, 6, 5).reshape(2, -1))
    expected = log_scale - 0.5 * base.square().sum(0) - 0.5 * dim * math.log(2 * math.pi)
    torch.testing.assert_close(found, expected.view(6, 5).detach())


@pytest.mark.parametrize("form", FORMS)
def test_grid_takes_one_block_and_nothing_at_all(form: Form) -> None:
    flow = drawn(form, 4, blocks=1)
    for n, m in ((0, 3), (3, 0), (1, 1)):
        assert log_prob(flow, columns(4, n), columns(2, m).view(2, 1, m)).shape == (n, m)


@pytest.mark.parametrize("form", FORMS)
def test_as_zuko_transforms(form: Form) -> None:
    """zuko's coupling and affine transforms with the scales and shifts of ours, coupling by coupling."""
    transforms = pytest.importorskip("zuko.transforms")
    flow, u, c = drawn(form, 5), columns(5, 20), columns(2, 20, seed=1)
    features = flow.features(c)
    x, total = u.mT, torch.zeros(20, dtype=torch.float64)
    for order, half, coupling in flow.steps():
        x = x if order is None else x[:, order]
        kept = torch.arange(5) < flow.sizes[0]

        def meta(first: Tensor, coupling: Coupling = coupling) -> object:
            s, t = (coupling.perceptron(first.mT) + coupling.added(features)).reshape(2, -1, 20)
            log_scale = 2 * torch.tanh(s / 2)
            # (u + t) scale is zuko's u scale + shift; zuko's own soft clamp of log_scale is undone.
            clamped = log_scale / (1 - log_scale.abs() / math.log(1e3))
            affine = transforms.MonotonicAffineTransform((t * log_scale.exp()).mT, clamped.mT, slope=1e-3)
            return transforms.DependentTransform(affine, 1)

        transform = transforms.CouplingTransform(meta, kept if half else ~kept)
        out = transform(x)
        total = total + transform.log_abs_det_jacobian(x, out)
        x = out
    base, log_scale = flow(u, c)
    torch.testing.assert_close(base.mT, x)
    torch.testing.assert_close(log_scale, total)
