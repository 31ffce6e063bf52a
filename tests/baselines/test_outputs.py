from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from scipy.stats import entropy
from torch import Tensor, nn

from hidden_uncertainty.baselines.outputs import GEN, Energy, MaxProbability, OutputDetector, SoftmaxEntropy
from hidden_uncertainty.model.tasks import Classification, Regression

METHODS: list[type[OutputDetector]] = [SoftmaxEntropy, MaxProbability, Energy, GEN]


class Given(nn.Module):
    """Returns its input: what is given are the outputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def logits(n: int = 40, classes: int = 5, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(n, classes, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("classes", [2, 5, 1000])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_scores_by_scipy(classes: int, dtype: torch.dtype, tolerance: float) -> None:
    x = logits(classes=classes).to(dtype)
    p = softmax(x.double().numpy(), axis=1)
    expected: dict[type[OutputDetector], np.ndarray] = {
        SoftmaxEntropy: entropy(p, axis=1),
        MaxProbability: 1 - p.max(1),
        Energy: -logsumexp(x.double().numpy(), axis=1),
    }
    for method, scores in expected.items():
        u = method(Given())(x)
        assert u.epistemic.dtype == dtype
        np.testing.assert_allclose(u.epistemic, scores, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(u.prediction, p.argmax(1))


def test_entropy_is_both_uncertainties_and_has_a_logarithm_where_it_underflows() -> None:
    gap = torch.tensor([1.0, 200.0, 1e5])
    u = SoftmaxEntropy(Given())(torch.stack([torch.zeros(3), -gap], 1))
    assert torch.equal(u.aleatoric, u.epistemic)
    torch.testing.assert_close(u.log_aleatoric[1:], (gap[1:] + 1).log() - gap[1:])
    assert u.log_aleatoric[0].exp().item() == pytest.approx(u.aleatoric[0].item())


def test_one_minus_the_largest_probability_keeps_its_digits() -> None:
    u = MaxProbability(Given())(torch.tensor([[30.0, 0.0, 0.0]]))
    assert u.epistemic.item() == pytest.approx(2 * math.exp(-30), rel=1e-5)
    assert u.aleatoric is None


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0, 1000.0])
def test_energy_of_a_temperature(temperature: float) -> None:
    x = logits()
    expected = -temperature * logsumexp(x.double().numpy() / temperature, axis=1)
    np.testing.assert_allclose(Energy(Given(), temperature=temperature)(x).epistemic, expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_a_single_column_is_the_logit_of_the_second_of_two_classes(shape: tuple[int, ...]) -> None:
    z = torch.tensor([-50.0, -2.0, 0.0, 0.5, 2.0, 50.0])
    p = torch.sigmoid(z.double())
    u = SoftmaxEntropy(Given())(z.reshape(shape))
    assert u.prediction.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(u.epistemic, entropy(torch.stack([1 - p, p]), axis=0), rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(MaxProbability(Given())(z.reshape(shape)).epistemic, torch.minimum(p, 1 - p), atol=1e-7)
    energy = Energy(Given())(z.reshape(shape)).epistemic
    torch.testing.assert_close(energy, -(2 * torch.cosh(z / 2)).log())


@pytest.mark.parametrize("method", [SoftmaxEntropy, MaxProbability])
@pytest.mark.parametrize("columns", [1, 4])
def test_probabilities_give_what_their_logits_give(method: type[OutputDetector], columns: int) -> None:
    x = logits(classes=columns)
    p = x.sigmoid() if columns == 1 else x.softmax(1)
    expected, found = method(Given())(x), method(Given(), logits=False)(p)
    torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-4, atol=1e-6)
    assert torch.equal(found.prediction, expected.prediction)
    asked = method(Given(), task=Classification(logits=False))(p)  # the task may say it instead
    assert torch.equal(asked.epistemic, found.epistemic)


def test_probabilities_of_zero_and_one() -> None:
    u = SoftmaxEntropy(Given(), logits=False)(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    torch.testing.assert_close(u.epistemic, torch.tensor([0.0, math.log(2)]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1e10, 3e38])
def test_finite_however_large(method: type[OutputDetector], size: float) -> None:
    u = method(Given())(torch.tensor([[size, -size, 0.0], [0.0, 1.0, 2.0], [-size, -size, -size]]))
    assert u.epistemic.isfinite().all()
    assert u.epistemic[0] < u.epistemic[1]


@pytest.mark.parametrize("method", METHODS)
def test_probabilities_taken_as_logits_warn_once(method: type[OutputDetector]) -> None:
    uncertainty = method(Given())
    with pytest.warns(UserWarning, match="look like probabilities") as caught:
        uncertainty(logits().softmax(1))
    assert len(caught) == 1
    uncertainty(logits().softmax(1))


def test_sigmoids_taken_as_logits_warn() -> None:
    with pytest.warns(UserWarning, match="Pass logits=False"):
        SoftmaxEntropy(Given())(logits(classes=1).sigmoid())
    SoftmaxEntropy(Given())(torch.tensor([[0.2], [0.7]]))  # two logits may lie there


def test_log_probabilities_do_for_entropy_but_not_for_energy() -> None:
    x = logits()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        u = SoftmaxEntropy(Given())(x.log_softmax(1))
    torch.testing.assert_close(u.epistemic, SoftmaxEntropy(Given())(x).epistemic, rtol=1e-4, atol=1e-5)
    with pytest.warns(UserWarning, match="whose energy says little"):
        Energy(Given())(x.log_softmax(1))


@pytest.mark.parametrize("wrong", [[[0.5, 0.6]], [[-0.5, 1.5]], [[2.0]]])
def test_logits_taken_as_probabilities(wrong: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="logits=False takes probabilities"):
        SoftmaxEntropy(Given(), logits=False)(torch.tensor(wrong))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", ["regression", Regression(spread="columns")])
def test_regression_has_no_classes(method: type[OutputDetector], task: str | Regression) -> None:
    with pytest.raises(ValueError, match=f"{method.__name__} compares the scores of classes, and a regression network"):
        method(Given(), task=task)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_temperature_is_positive(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be a positive number"):
        Energy(Given(), temperature=temperature)


def test_the_chosen_output_of_several() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"hidden": x[:, :1], "logits": x}

    x = logits()
    expected = SoftmaxEntropy(Given())(x).epistemic
    assert torch.equal(SoftmaxEntropy(Two(), output="logits")(x).epistemic, expected)
    with pytest.raises(ValueError, match="2 tensors to take"):
        SoftmaxEntropy(Two())(x)


def test_a_class_per_pixel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a classifier's output is \(n, classes\)"):
        SoftmaxEntropy(Given())(torch.zeros(2, 3, 4, 4))


@pytest.mark.parametrize(("classes", "largest"), [(2, 100), (5, 3), (300, 100)])
def test_generalised_entropy(classes: int, largest: int) -> None:
    given = logits(classes=classes).double()
    p = -np.sort(-softmax(given.numpy(), axis=1), axis=1)[:, :largest]
    u = GEN(Given(), largest=largest)(given)
    np.testing.assert_allclose(u.epistemic, ((p * (1 - p)) ** 0.1).sum(1), rtol=1e-9)
    np.testing.assert_allclose(u.aleatoric, entropy(softmax(given.numpy(), axis=1), axis=1), rtol=1e-9)


def test_generalised_entropy_ranks_inputs_that_are_almost_certain() -> None:
    sure = torch.tensor([[40.0, 0.0, 0.0], [60.0, 0.0, 0.0], [80.0, 0.0, 0.0]])  # 1 - p is zero in float32
    found = GEN(Given())(sure).epistemic
    assert (found.diff() < 0).all() and (found > 0).all()
    assert GEN(Given())(torch.tensor([[0.0, -math.inf]])).epistemic == 0


@pytest.mark.parametrize("options", [{"gamma": 0.0}, {"gamma": 1.5}, {"largest": 0}])
def test_options_of_generalised_entropy(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        GEN(Given(), **options)  # type: ignore[arg-type]
