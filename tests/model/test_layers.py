from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capture_nets import Output, Returning, data_parallel, unchanged
from hidden_uncertainty.model.layers import LayerInfo, layers


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.shared = nn.Dropout(0.5)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.shared(self.shared(self.stem(x))).flatten(1))


def test_the_whole_list_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    model = Net()
    with unchanged(model):
        tree = layers(model, torch.randn(2, 1, 8, 8))
    assert str(tree).splitlines() == [
        "layer       type         output   width",
        '""          Net          n×3          3',
        "  stem      Sequential   n×4×6×6    144",
        "    stem.0  Conv2d       n×4×6×6    144",
        "    stem.1  BatchNorm2d  n×4×6×6    144",
        "    stem.2  ReLU         n×4×6×6    144",
        "  shared    Dropout      n×4×6×6    144  called 2 times",
        "  unused    Linear                       not called",
        "  head      Linear       n×3          3",
    ]
    assert capsys.readouterr().out == f"{tree}\n"


def test_entries_can_be_iterated_and_looked_up() -> None:
    model = Net()
    tree = layers(model, torch.randn(2, 1, 8, 8), show=False)
    assert [entry.name for entry in tree] == [name for name, _ in model.named_modules()]
    assert len(tree) == 8
    assert repr(tree) == "LayerTree(8 layers)"
    assert tree["stem.1"] == LayerInfo("stem.1", "BatchNorm2d", "n×4×6×6", 144, calls=1, depth=2)
    assert tree[""] == LayerInfo("", "Net", "n×3", 3, calls=1, depth=0)
    assert [entry.name for entry in tree if entry.calls != 1] == ["shared", "unused"]
    with pytest.raises(KeyError, match=r"layer 'stm.0' is not listed; nearest names: 'stem.0'"):
        tree["stm.0"]


def test_silence_and_depth(capsys: pytest.CaptureFixture[str]) -> None:
    tree = layers(Net(), torch.randn(2, 1, 8, 8), depth=1, show=False)
    assert [entry.name for entry in tree] == ["", "stem", "shared", "unused", "head"]
    assert [entry.name for entry in layers(Net(), torch.randn(2, 1, 8, 8), depth=0, show=False)] == [""]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("function", "shape", "width"),
    [
        (lambda x: x, "n×4", 4),
        (lambda x: x.T, "4×3", None),
        (lambda x: x[:, 0], "n", 1),
        (lambda x: x.sum(), "scalar", None),
        (lambda x: (x, x, None), "tuple(n×4, …)", 4),
        (lambda x: (x,), "tuple(n×4)", 4),
        (lambda x: [], "list()", None),
        (lambda x: {"hidden": x, "mask": None}, "{hidden: n×4, mask: NoneType}", 4),
        (lambda x: {"a": x, "b": (x[:, :2], x)}, "{a: n×4, b: tuple(n×2, …)}", 4),
        (lambda x: {"a": x, "b": x}, "{a: n×4, b: n×4}", None),
        (lambda x: Output(x), "{logits: n×4, loss: NoneType}", 4),
        (lambda x: "text", "str", None),
    ],
)
def test_outputs_of_all_kinds(function: Callable[[Tensor], Any], shape: str, width: int | None) -> None:
    tree = layers(Returning(function), torch.randn(3, 4), show=False)
    assert (tree[""].shape, tree[""].width) == (shape, width)


@pytest.mark.parametrize(
    "example",
    [
        (torch.zeros(3, 4), torch.zeros(3)),
        {"x": torch.zeros(3, 4), "labels": torch.zeros(3)},
        ((torch.zeros(3, 4),), None),
    ],
)
def test_examples_are_batches(example: Any) -> None:
    assert layers(Returning(lambda x: x), example, show=False)[""].shape == "n×4"


def test_a_transformer_shows_every_layer_that_can_be_read() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    tree = layers(model, torch.randn(3, 5, 8), show=False)
    assert [entry.name for entry in tree if entry.calls != 1] == [
        "layers",
        "layers.0.self_attn.out_proj",
        "layers.1.self_attn.out_proj",
    ]
    assert tree["layers.0.self_attn"].shape == "tuple(n×5×8, …)"
    assert tree["layers.1.linear1"] == LayerInfo("layers.1.linear1", "Linear", "n×5×16", 80, calls=1, depth=3)


def test_wrappers_do_not_show() -> None:
    plain = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    tree = layers(data_parallel(plain), torch.randn(3, 4), show=False)
    assert list(tree) == list(layers(plain, torch.randn(3, 4), show=False))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_is_named_as_such() -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.ReLU()))
    tree = layers(model, torch.randn(3, 4), show=False)
    assert tree["1"].kind == "TorchScript ReLU"
    assert str(tree).splitlines()[-1].endswith("cannot be read")


def test_a_model_on_another_device_gets_the_example_there() -> None:
    tree = layers(nn.Linear(4, 2, device="meta"), torch.randn(3, 4), show=False)
    assert tree[""].shape == "n×2"
