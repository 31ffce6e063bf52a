from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from hidden_uncertainty.baselines.ensemble import DeepEnsemble
from hidden_uncertainty.baselines.outputs import SoftmaxEntropy
from hidden_uncertainty.model.tasks import Regression


def members(count: int = 4, outputs: int = 3) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [
            nn.Sequential(
                nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(16, outputs)
            )
            for _ in range(count)
        ]


def inputs(n: int = 20) -> Tensor:
    return 3 * torch.randn(n, 4, generator=torch.Generator().manual_seed(1))


def stacked(models: list[nn.Module], x: Tensor) -> Tensor:
    """Outputs of all members by vmap over their stacked weights, (members, n, ...)."""
    twins = [copy.deepcopy(model).eval() for model in models]
    base = copy.deepcopy(twins[0])
    state = stack_module_state(twins)
    with torch.no_grad():
        return torch.vmap(lambda weights, buffers: functional_call(base, (weights, buffers), (x,)))(*state)


def test_classes_by_scipy_and_vmap() -> None:
    models, x = members(), inputs()
    p = stacked(models, x).double().softmax(-1).numpy()
    u = DeepEnsemble(models)(x)
    own = entropy(p, axis=-1).mean(0)
    np.testing.assert_allclose(u.aleatoric, own, rtol=1e-5)
    np.testing.assert_allclose(u.log_aleatoric, np.log(own), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(u.epistemic, entropy(p.mean(0), axis=-1) - own, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(u.prediction, p.mean(0).argmax(-1))


@pytest.mark.parametrize("outputs", [1, 2])
def test_numbers_by_numpy_and_vmap(outputs: int) -> None:
    models, x = members(outputs=outputs), inputs()
    ensemble = DeepEnsemble(models, task="regression")
    u = ensemble(x)
    values = stacked(models, x).numpy()
    np.testing.assert_allclose(u.prediction, values.mean(0).squeeze(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(u.epistemic, values.var(0).sum(-1), rtol=1e-4, atol=1e-7)
    assert u.aleatoric is None
    assert ensemble.unit == "squared units of the output"


def test_the_mean_of_predicted_variances_is_aleatoric() -> None:
    models, x = members(outputs=2), inputs()
    u = DeepEnsemble(models, task=Regression(spread="columns", spread_is="log_variance"))(x)
    mean, log_variance = stacked(models, x).unbind(-1)
    torch.testing.assert_close(u.prediction, mean.mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(u.aleatoric, log_variance.exp().mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(u.epistemic, mean.var(0, correction=0), rtol=1e-4, atol=1e-6)


def test_copies_agree_and_say_what_one_says() -> None:
    model = members(1)[0]
    u = DeepEnsemble([copy.deepcopy(model) for _ in range(3)])(inputs())
    assert u.epistemic.eq(0).all()
    torch.testing.assert_close(u.aleatoric, SoftmaxEntropy(model)(inputs()).aleatoric)


def test_members_may_differ_in_architecture_and_in_mode() -> None:
    models = [members(1)[0].eval(), nn.Linear(4, 3)]
    u = DeepEnsemble(models)(inputs())
    p = torch.stack([model.eval()(inputs()).softmax(1) for model in models]).detach()
    torch.testing.assert_close(u.aleatoric, -(p * p.log()).sum(-1).mean(0))


def test_single_logits_and_probabilities() -> None:
    models, x = members(outputs=1), inputs()
    expected = DeepEnsemble(models, task="classification")(x)
    ends = [nn.Sequential(model, nn.Sigmoid()) for model in models]
    found = DeepEnsemble(ends, logits=False, task="classification")(x)
    torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-3, atol=1e-6)
    assert torch.equal(found.prediction, expected.prediction)
    with pytest.warns(UserWarning, match="Pass logits=False"):
        DeepEnsemble(ends, task="classification")(x)


def test_a_changed_member_counts_as_it_is_now() -> None:
    models = members()
    ensemble = DeepEnsemble(models)
    before = ensemble(inputs()).epistemic
    with torch.no_grad():
        for parameter in models[2].parameters():
            parameter.data.mul_(3)
    after = ensemble(inputs()).epistemic
    assert not torch.equal(after, before)
    assert torch.equal(after, DeepEnsemble(models)(inputs()).epistemic)


class Fails(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        raise ArithmeticError("no")


def test_members_are_what_they_were_also_when_one_raises() -> None:
    models = [*members(2), nn.Sequential(nn.Linear(4, 3), Fails(3, 3)), members(1)[0]]
    modes = [[module.training for module in model.modules()] for model in models]
    with pytest.raises(ArithmeticError):
        DeepEnsemble(models)(inputs())
    assert [[module.training for module in model.modules()] for model in models] == modes


def test_members_must_predict_the_same() -> None:
    with pytest.raises(ValueError, match=r"member 2 gave \(20, 5\) and member 0 \(20, 3\) for 20 inputs"):
        DeepEnsemble([*members(2), nn.Linear(4, 5)])(inputs())


LINEAR = nn.Linear(4, 3)


@pytest.mark.parametrize(
    ("models", "error", "text"),
    [
        ([], ValueError, "at least 2 networks to disagree, not 0"),
        ([LINEAR], ValueError, "not 1"),
        ([LINEAR, nn.Linear(4, 3), LINEAR], ValueError, "members 0 and 2 are one and the same"),
        ([LINEAR, "model.pt"], TypeError, r"member 1 must be a torch.nn.Module, not str"),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), TypeError, "one Sequential came"),
    ],
)
def test_errors(models: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        DeepEnsemble(models)


def test_a_module_list_and_a_generator_are_lists() -> None:
    models = members()
    expected = DeepEnsemble(models)(inputs()).epistemic
    assert torch.equal(DeepEnsemble(nn.ModuleList(models))(inputs()).epistemic, expected)
    assert torch.equal(DeepEnsemble(model for model in models)(inputs()).epistemic, expected)
