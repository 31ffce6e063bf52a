"""The penalty in a training loop: its value, its gradients, and that the model is left as it was."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capture_nets import data_parallel
from reproduction.nets.reconstruction import DenseDecoder, Reconstruction, ResidualDecoder


def images(n: int = 5, *, seed: int = 0) -> Tensor:
    return torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


def perceptron() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(16, 8),
            nn.ReLU(inplace=True),
            nn.Linear(8, 6),
            nn.ReLU(inplace=True),
            nn.Linear(6, 3),
        )


def decoder() -> DenseDecoder:
    return DenseDecoder(6, 8, (1, 4, 4), layers=2)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def expected(model: nn.Sequential, decode: nn.Module, x: Tensor) -> Tensor:
    """From layer 3 before its rectifier, without hooks."""
    z = model[3](model[1](x.flatten(1)).relu())
    return (decode(z) - x).square().mean()


def test_value_and_gradients_are_those_of_the_formula_although_the_next_layer_writes_in_place() -> None:
    model, decode, x = perceptron(), decoder(), images()
    penalty = Reconstruction(model, "3", decode)
    y = torch.tensor([0, 1, 2, 0, 1])
    loss = F.cross_entropy(model(x), y) + 0.3 * penalty(x)
    parameters = [*model.parameters(), *penalty.parameters()]
    found = torch.autograd.grad(loss, parameters)
    penalty.remove()
    reference = F.cross_entropy(model(x), y) + 0.3 * expected(model, decode, x)
    torch.testing.assert_close(loss, reference)
    for one, other in zip(found, torch.autograd.grad(reference, parameters), strict=True):
        torch.testing.assert_close(one, other)


def test_the_three_lines_lower_both_losses() -> None:
    model, x = perceptron(), images(64)
    y = x.flatten(1)[:, :3].argmax(1)
    penalty = Reconstruction(model, "3", example=x)
    optimiser = torch.optim.Adam([*model.parameters(), *penalty.parameters()], lr=0.01)
    seen = []
    for _ in range(60):
        fit = F.cross_entropy(model(x), y)
        own = penalty(x)
        seen.append((float(fit.detach()), float(own.detach())))
        optimiser.zero_grad()
        (fit + own).backward()
        optimiser.step()
    assert seen[-1][0] < 0.8 * seen[0][0] and seen[-1][1] < 0.8 * seen[0][1]


def test_the_model_is_as_it_was_after_remove_after_a_block_and_when_the_penalty_is_forgotten() -> None:
    model, x = perceptron(), images()
    before = copy.deepcopy(model.state_dict())
    penalty = Reconstruction(model, "3", decoder())
    assert hooks(model) == 2 and list(model.state_dict()) == list(before)
    assert {name.split(".")[0] for name in penalty.state_dict()} == {"decoder"}
    model(x)
    penalty.remove()
    penalty.remove()
    assert hooks(model) == 0
    with pytest.raises(ZeroDivisionError), Reconstruction(model, "3", decoder()):
        _ = 1 / 0
    assert hooks(model) == 0
    forgotten = Reconstruction(model, "3", decoder())
    model(x)
    del forgotten
    gc.collect()
    assert hooks(model) == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_copied_model_is_not_listened_to() -> None:
    model, x = perceptron(), images()
    penalty = Reconstruction(model, "3", decoder())
    model(x)
    copied = copy.deepcopy(model)
    copied(images(2))
    assert float(penalty(x).detach()) > 0


def test_a_layer_that_is_called_twice_has_no_single_activation() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu)
    x = torch.rand(3, 4)
    penalty = Reconstruction(model, "1", nn.Linear(4, 4))
    model(x)
    with pytest.raises(RuntimeError, match="'1' is called more than once"):
        penalty(x)


def test_reconstructions_to_look_at() -> None:
    model, decode, x = perceptron(), decoder(), images()
    with torch.no_grad(), Reconstruction(model.eval(), "3", decode) as penalty:
        model(x)
        made = penalty.reconstruct()
        model(x)
        torch.testing.assert_close(penalty(x), F.mse_loss(made, x))
    assert made.shape == x.shape and not made.requires_grad


@pytest.mark.parametrize("wrap", [data_parallel, lambda model: torch.compile(model, backend="eager")])
def test_wrappers_are_seen_through(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, decode, x = perceptron(), decoder(), images()
    wrapped = wrap(model)
    penalty = Reconstruction(wrapped, "3", decode)
    for _ in range(2):
        wrapped(x)
        torch.testing.assert_close(penalty(x), expected(model, decode, x))


@pytest.mark.parametrize("inside", [True, False])
def test_under_autocast_the_error_is_computed_in_float32(inside: bool) -> None:
    model, decode, x = perceptron(), decoder(), images()
    penalty = Reconstruction(model, "3", decode)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        found = penalty(x) if inside else None
    found = penalty(x) if found is None else found
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected(model, decode, x), rtol=0.05, atol=0)
    found.backward()
    assert model[1].weight.grad is not None


@pytest.mark.parametrize(("dtype", "result"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_models_of_another_precision(dtype: torch.dtype, result: torch.dtype) -> None:
    model, x = perceptron().to(dtype), images().to(dtype)
    for decode in (decoder(), decoder().to(dtype)):
        penalty = Reconstruction(model, "3", decode)
        model(x)
        assert penalty(x).dtype == result


class Several(nn.Module):
    """A layer that returns a tuple, one that is called on request, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.maybe, self.never = Pair(), nn.Linear(16, 6), nn.Linear(1, 1)

    def forward(self, x: Tensor, call: bool = True) -> Tensor:
        h = self.pair(x.flatten(1))[1]
        return self.maybe(x.flatten(1)) + h if call else h


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 4), nn.Linear(16, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


def test_one_of_several_outputs_is_selected() -> None:
    model, decode, x = Several(), decoder(), images()
    penalty = Reconstruction(model, "pair", decode, select=1)
    model(x)
    torch.testing.assert_close(penalty(x), F.mse_loss(decode(model.pair.b(x.flatten(1))), x))


@pytest.mark.parametrize(
    ("layer", "widths"),
    [("1", [(8, 16)]), ("2", [(8, 16)]), ("3", [(6, 8), (8, 16)]), ("5", [(3, 6), (6, 8), (8, 16)])],
)
def test_a_decoder_built_from_an_example_mirrors_the_linear_layers(layer: str, widths: list[tuple[int, int]]) -> None:
    model, x = perceptron(), images()
    penalty = Reconstruction(model, layer, example=(x, torch.zeros(5)))
    assert isinstance(penalty.decoder, DenseDecoder)
    assert [(linear.in_features, linear.out_features) for linear in penalty.decoder.linear] == widths
    model(x)
    assert penalty(x).shape == ()


def test_a_decoder_built_from_an_example_mirrors_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    penalty = Reconstruction(model, "2", example=images())
    assert isinstance(penalty.decoder, ResidualDecoder) and penalty.decoder.stacks == 2
    model(images())
    assert penalty(images()).shape == ()


def loop(act: Callable[[nn.Module, Reconstruction, Tensor], Any]) -> None:
    model = perceptron()
    act(model, Reconstruction(model, "3", decoder()), images())


def again(model: nn.Module, penalty: Reconstruction, x: Tensor) -> None:
    model(x)
    penalty(x)
    penalty(x)


def without_gradients(model: nn.Module, penalty: Reconstruction, x: Tensor) -> None:
    with torch.no_grad():
        model(x)
    penalty(x)


def removed(model: nn.Module, penalty: Reconstruction, x: Tensor) -> None:
    model(x)
    penalty.remove()
    penalty(x)


def not_called(model: nn.Module, penalty: Reconstruction, x: Tensor) -> None:
    several = Several()
    own = Reconstruction(several, "maybe", decoder())
    several(x)
    own(x)
    several(x)  # what it left must not be taken for that of the next run
    several(x, call=False)
    own(x)


@pytest.mark.parametrize(
    ("act", "error", "match"),
    [
        (lambda m, p, x: p(x), RuntimeError, "the model did not run since"),
        (again, RuntimeError, "the model did not run since"),
        (not_called, RuntimeError, "'maybe' was not called while the model ran"),
        (without_gradients, RuntimeError, "'3' has no gradient"),
        (removed, RuntimeError, "was removed from the model"),
        (lambda m, p, x: (m(x), p(x[:3])), ValueError, "last called on 5 inputs, x has 3"),
        (lambda m, p, x: (m(x), p(x.flatten(1))), ValueError, r"returned \(5, 1, 4, 4\) for x \(5, 16\)"),
        (lambda m, p, x: (m(x), p(x.byte())), TypeError, "floating point"),
        (lambda m, p, x: Reconstruction(m, "33", decoder()), ValueError, "layer '33' is not in the model"),
        (lambda m, p, x: Reconstruction(m, "3"), ValueError, "give a decoder from layer '3'"),
        (lambda m, p, x: Reconstruction(Several(), "never", example=x), RuntimeError, "'never' was not called"),
        (lambda m, p, x: Reconstruction(nn.Conv1d(4, 2, 1), "", example=x[:, 0]), ValueError, r"\(n, 2, 4\)"),
        (lambda m, p, x: Reconstruction(nn.Conv2d(1, 2, 2), "", example=x), ValueError, "from 3 × 3 to 4 × 4"),
    ],
)
def test_errors_say_what_to_do(act: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        loop(act)
