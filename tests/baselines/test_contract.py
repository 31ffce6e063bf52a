"""What every baseline keeps to. A new one is added with a line in BASELINES."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty.baselines import (
    Baseline,
    DeepEnsemble,
    Energy,
    KernelDensity,
    Mahalanobis,
    MaxProbability,
    MCDropout,
    NearestNeighbours,
    RelativeMahalanobis,
    SoftmaxEntropy,
)

Build = Callable[..., Baseline]  # of (model, **options); the network below has the layers "body", "hidden" and "out"


class Kind(NamedTuple):
    build: Build
    fits: bool = True  # needs fit; methods on outputs alone do not
    far: bool = True  # inputs far from all data score higher; else at least those between classes do
    random: bool = False  # a result depends on an input's place in its batch


def ensemble(model: nn.Module, **options: Any) -> Baseline:
    """Three members: the model, and two in which another half of the hidden units counts double."""
    members = [model]
    for half in (slice(0, 3), slice(3, 6)):
        member = copy.deepcopy(model)
        with torch.no_grad():
            member.out.weight[:, half] *= 2  # type: ignore[union-attr, index, operator]
        members.append(member)
    return DeepEnsemble(members, **options)


def on(layer: str, method: Callable[..., Baseline], **settings: Any) -> Build:
    """A method on features of a layer."""
    return lambda model, **options: method(model, layer, **settings, **options)


# Outputs alone say nothing of distance: far from all data a network is as sure as it can be.
BASELINES: dict[str, Kind] = {
    "SoftmaxEntropy": Kind(SoftmaxEntropy, fits=False, far=False),
    "MaxProbability": Kind(MaxProbability, fits=False, far=False),
    "Energy": Kind(Energy, fits=False, far=False),
    "MCDropout": Kind(MCDropout, fits=False, far=False, random=True),
    "DeepEnsemble": Kind(ensemble, fits=False, far=False),
    "Mahalanobis": Kind(on("hidden", Mahalanobis)),
    "Mahalanobis, inputs moved": Kind(on("hidden", Mahalanobis, epsilon=0.01)),
    "RelativeMahalanobis": Kind(on("hidden", RelativeMahalanobis), far=False),
    "NearestNeighbours": Kind(on("hidden", NearestNeighbours, k=5, normalise=False)),
    "NearestNeighbours, normalised": Kind(on("hidden", NearestNeighbours, k=5), far=False),
    "KernelDensity": Kind(on("hidden", KernelDensity), far=False),
    "KernelDensity, Gaussian": Kind(on("hidden", KernelDensity, how="gaussian")),
}

FIELDS = ("epistemic", "aleatoric", "log_aleatoric")


@pytest.fixture(params=BASELINES)
def kind(request: pytest.FixtureRequest) -> Kind:
    return BASELINES[request.param]


def close(one: Any, other: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    assert torch.equal(one.prediction, other.prediction)
    for name in FIELDS:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=rtol, atol=atol)


def snapshot(model: nn.Module) -> list[Any]:
    tensors = [tensor.clone() for tensor in model.state_dict().values()]
    modules = [(module.training, len(module._forward_hooks)) for module in model.modules()]
    return [tensors, modules, [(p.requires_grad, p.grad) for p in model.parameters()], list(model.state_dict())]


def test_fit_returns_the_method(kind: Kind, trained: nn.Module, data: dict[str, Any]) -> None:
    method = kind.build(trained)
    assert isinstance(method, Baseline)
    assert method.fit(data["train"]) is method
    assert method.model is trained
    assert method.unit


def test_one_finite_number_an_input(kind: Kind, trained: nn.Module, data: dict[str, Any]) -> None:
    u = kind.build(trained).fit(data["train"]).predict([*data["test"], data["far"], 1e20 * data["far"]])
    assert u.prediction.shape == u.epistemic.shape == (410,)
    assert u.prediction.dtype == torch.long
    for name in FIELDS:
        values = getattr(u, name)
        if values is not None:
            assert values.shape == (410,)
            assert values.device.type == "cpu"
            assert values.dtype.itemsize >= 4
            assert values.isfinite().all()
            assert not values.requires_grad
    assert (u.epistemic.max() > u.epistemic.min()).item()


def test_uncertain_inputs_score_higher(kind: Kind, trained: nn.Module, data: dict[str, Any]) -> None:
    method = kind.build(trained).fit(data["train"])
    usual = method.predict(data["test"]).epistemic
    if kind.far:
        assert method(data["far"]).epistemic.min() > usual.quantile(0.95)
    else:
        between = torch.tensor([[0.0, -1.0], [1.0, 0.5], [-1.0, 0.5]])  # half way from class to class
        assert method(between).epistemic.mean() > usual.mean()


def test_batch_by_batch_as_together(kind: Kind, trained: nn.Module, data: dict[str, Any]) -> None:
    method = kind.build(trained).fit(data["train"])
    x = torch.cat([x for x, _ in data["test"]])[:60]
    whole = method(x)
    if kind.random:
        close(method.predict([x]), whole)
        close(method(x), whole)
    else:
        for size in (1, 7, 60):
            close(method.predict(x.split(size)), whole)


def test_loaders_of_inputs_with_and_without_labels(kind: Kind, trained: nn.Module, data: dict[str, Any]) -> None:
    with_labels, without = (
        kind.build(trained).fit(data["train"]),
        kind.build(trained).fit([x for x, _ in data["train"]]),
    )
    close(with_labels.predict(data["test"]), without.predict([x for x, _ in data["test"]]))
    x, y = data["test"][0]
    close(with_labels.predict([(x, y)]), with_labels(x))


def test_the_same_again(kind: Kind, trained: nn.Module, data: dict[str, Any]) -> None:
    state = torch.get_rng_state()
    first, second = (kind.build(trained).fit(data["train"]).predict(data["test"]) for _ in range(2))
    close(first, second, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("training", [True, False])
def test_model_and_inputs_are_what_they_were(
    kind: Kind, training: bool, trained: nn.Module, data: dict[str, Any]
) -> None:
    trained.train(training)
    trained.hidden.weight.requires_grad_(False)  # type: ignore[union-attr]
    before, inputs = snapshot(trained), [x.clone() for x, _ in data["test"]]
    kind.build(trained).fit(data["train"]).predict(data["test"])
    after = snapshot(trained)
    assert all(torch.equal(one, other) for one, other in zip(before[0], after[0], strict=True))
    assert after[1:] == before[1:]
    assert all(torch.equal(x, copied) for (x, _), copied in zip(data["test"], inputs, strict=True))


def test_the_model_is_what_it_was_also_when_it_raises(kind: Kind, trained: nn.Module, data: dict[str, Any]) -> None:
    method = kind.build(trained, task="classification").fit(data["train"])
    before = snapshot(trained)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        method(torch.zeros(3, 5))
    after = snapshot(trained)
    assert all(torch.equal(one, other) for one, other in zip(before[0], after[0], strict=True))
    assert after[1:] == before[1:]


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-4), (torch.bfloat16, 0.5)])
def test_models_of_other_precisions(
    kind: Kind, dtype: torch.dtype, rtol: float, trained: nn.Module, data: dict[str, Any]
) -> None:
    def cast(loader: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        return [(x.to(dtype), y) for x, y in loader]

    expected = kind.build(trained).fit(data["train"]).predict(data["test"]).epistemic
    u = kind.build(copy.deepcopy(trained).to(dtype)).fit(cast(data["train"])).predict(cast(data["test"]))
    assert u.epistemic.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert u.epistemic.isfinite().all()
    if kind.random:  # masks differ with the precision
        assert 0.5 < (u.epistemic.mean() / expected.mean()).item() < 2
    else:
        scale = expected.std().item() + expected.abs().mean().item()
        torch.testing.assert_close(u.epistemic.double(), expected.double(), rtol=rtol, atol=rtol * scale)


def test_unfitted(kind: Kind, trained: nn.Module, data: dict[str, Any]) -> None:
    method = kind.build(trained)
    if kind.fits:
        with pytest.raises(RuntimeError, match=r"not fitted: call fit\(loader\) first"):
            method(data["far"])
    else:
        fitted = kind.build(trained).fit(data["train"])
        close(method.predict(data["test"]), fitted.predict(data["test"]), rtol=0, atol=0)


def test_inputs_by_keyword(kind: Kind, trained: nn.Module, data: dict[str, Any]) -> None:
    method = kind.build(trained).fit(data["train"])
    x = data["test"][0][0]
    close(method(x=x), method(x))
