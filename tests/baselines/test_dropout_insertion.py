from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty.baselines.dropout import MCDropout, insert_dropout


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.linear(x)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(torch.relu(self.first(x))))


def inserted(model: nn.Module) -> list[str]:
    return [name.removesuffix("inserted_dropout").removesuffix(".") for name in of_dropout(model)]


def of_dropout(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p > 0]


@pytest.mark.parametrize(
    ("after", "names"),
    [
        ("linear", ["first", "blocks.0.linear", "blocks.1.linear"]),
        (Block, ["blocks.0", "blocks.1"]),
        (["first", "blocks.1"], ["first", "blocks.1"]),
        (["blocks.0", "blocks.0.linear"], ["blocks.0.linear", "blocks.0"]),
        (["blocks"], ["blocks.2"]),  # the last layer of a sequence
        ([""], [""]),
    ],
)
def test_where_it_is_inserted(after: Any, names: list[str]) -> None:
    model, x = Residual(), torch.randn(6, 4)
    before, state = [name for name, _ in model.named_modules()], copy.deepcopy(model.state_dict())
    twin = insert_dropout(model, 0.2, after=after)
    assert inserted(twin) == names
    assert [name for name, _ in model.named_modules()] == before

    # Weights go to and fro under the model's own names, in its own order.
    assert list(twin.state_dict()) == list(state)
    for name, value in twin.state_dict().items():
        assert torch.equal(value, state[name])
    other = Residual()
    assert not torch.equal(other.first.weight, model.first.weight)
    twin.load_state_dict(other.state_dict())
    other.load_state_dict(twin.state_dict())
    assert torch.equal(twin.eval()(x), other.eval()(x))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert (MCDropout(twin)(x).epistemic > 0).all()


def test_dropout_follows_training_mode_and_drops_the_share() -> None:
    model = nn.Sequential(nn.Linear(1, 10_000), nn.Linear(10_000, 1)).eval()
    twin = insert_dropout(model, 0.3)
    x = torch.ones(1, 1)
    assert not any(module.training for module in twin.modules())
    assert torch.equal(twin(x), model(x))
    dropped = (twin.train()[0](x) == 0).float().mean()  # type: ignore[index]
    assert dropped.item() == pytest.approx(0.3, abs=0.03)
    assert not any(module.training for module in model.modules())


def test_attributes_are_those_of_the_module() -> None:
    twin = insert_dropout(Residual(), 0.2)
    assert twin.first.in_features == 4  # type: ignore[union-attr]
    assert twin.first.weight.shape == (8, 4)  # type: ignore[union-attr]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(again: Any) -> None:
    twin = insert_dropout(Residual(), 0.2)
    other = again(twin)
    assert inserted(other) == inserted(twin)
    with torch.no_grad():
        twin.first.weight.zero_()  # type: ignore[union-attr, operator]
    assert not other.first.weight.eq(0).all()
    other.load_state_dict(twin.state_dict())
    assert other.first.weight.eq(0).all()


def test_a_module_used_twice_stays_one() -> None:
    layer = nn.Linear(4, 4)
    twin = insert_dropout(nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(4, 3)), 0.2)
    assert twin[0] is twin[2]  # type: ignore[index]
    assert inserted(twin) == ["0"]


def test_attention_keeps_its_linear_layers() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    twin = insert_dropout(nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3)), 0.2)
    assert inserted(twin) == ["0.linear1", "0.linear2"]
    assert (MCDropout(twin)(torch.randn(3, 5, 8)).epistemic > 0).all()


def test_a_compiled_model_is_copied_without_its_wrapper() -> None:
    model = torch.compile(Residual())
    assert isinstance(insert_dropout(model, 0.2), Residual)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("p", "after", "text"),
    [
        (1.0, "linear", "at least 0 and less than 1, not 1.0"),
        (-0.1, "linear", "not -0.1"),
        (0.1, "first", r"for one name: \['first'\]"),
        (0.1, nn.Conv2d, "no Conv2d"),
        (0.1, ["frist"], "nearest names: 'first'"),
        (0.1, [], "names no module"),
    ],
)
def test_errors(p: float, after: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        insert_dropout(Residual(), p, after=after)


def test_a_single_linear_layer_is_the_output() -> None:
    with pytest.raises(ValueError, match=r"has 1 nn\.Linear, and after the last there is no dropout"):
        insert_dropout(nn.Sequential(nn.ReLU(), nn.Linear(4, 3)), 0.1)


def test_a_module_that_returns_no_tensor() -> None:
    twin = insert_dropout(nn.GRU(4, 3), 0.1, after=nn.GRU)
    with pytest.raises(TypeError, match="after a GRU, which returns a tuple"):
        twin(torch.zeros(2, 5, 4))
