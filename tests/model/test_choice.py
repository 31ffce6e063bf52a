"""The features that a head reads are found in networks of all kinds, by how the output is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import suggest
from hidden_uncertainty.model.batches import Batch
from hidden_uncertainty.model.choice import Choice, Choices, choose_layers


class Made(nn.Module):
    """A network of named parts, and what it does with them."""

    def __init__(self, call: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.call = call

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        return self.call(self, *args, **kwargs)


class Case(NamedTuple):
    model: nn.Module
    inputs: tuple[Tensor, ...]
    expected: list[tuple[str, str, str]]  # layer, read, how
    output: int | str | None = None


def convolutions(count: int = 6) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Conv2d(3 if i == 0 else 5, 5, 3), nn.ReLU()) for i in range(count)))


def encoder(layers: int = 3) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    images, words, rows = torch.randn(4, 3, 16, 16), torch.randint(0, 9, (4, 7)), torch.randn(4, 6)
    mlp = nn.Sequential(*(part for i in range(4) for part in (nn.Linear(6, 6), nn.ReLU())), nn.Linear(6, 3))
    net = Made(lambda m, x: m.fc(m.body(x).mean((2, 3))), body=convolutions(), fc=nn.Linear(5, 3))
    blocks = [("body.1", "output", "channels"), ("body.3", "output", "channels")]
    return {
        "perceptron": Case(
            mlp, (rows,), [("0", "output", "flatten"), ("4", "output", "flatten"), ("8", "input", "flatten")]
        ),
        "convolutions": Case(net, (images,), [*blocks, ("fc", "input", "flatten")]),
        "a part of another": Case(
            Made(lambda m, x: {"aux": x, "logits": m.net(x)}, net=net),
            (images,),
            [*((f"net.{layer}", read, how) for layer, read, how in blocks), ("net.fc", "input", "flatten")],
            "logits",
        ),
        "a convolution as head, then mean and softmax": Case(
            Made(lambda m, x: m.head(m.body(x)).mean((2, 3)).softmax(1), body=convolutions(), head=nn.Conv2d(5, 3, 1)),
            (images,),
            [*blocks, ("head", "input", "channels")],
        ),
        "tokens, mean of log-softmax": Case(
            Made(
                lambda m, x: F.log_softmax(m.fc(m.body(m.words(x))).mean(1), 1),
                words=nn.Embedding(9, 8),
                body=encoder(),
                fc=nn.Linear(8, 3),
            ),
            (words,),
            [("body.layers.0", "output", "tokens"), ("body.layers.1", "output", "tokens"), ("fc", "input", "tokens")],
        ),
        "class token": Case(
            Made(
                lambda m, x: m.fc(m.body(m.words(x)))[:, 0],
                words=nn.Embedding(9, 8),
                body=encoder(),
                fc=nn.Linear(8, 3),
            ),
            (words,),
            [("body.layers.0", "output", "tokens"), ("body.layers.1", "output", "tokens"), ("fc", "input", "token")],
        ),
        "recurrent": Case(
            Made(
                lambda m, x: m.fc(m.body(m.words(x))[0][:, -1]),
                words=nn.Embedding(9, 8),
                body=nn.LSTM(8, 6, batch_first=True),
                fc=nn.Linear(6, 3),
            ),
            (words,),
            [("words", "output", "tokens"), ("fc", "input", "flatten")],
        ),
        "one sigmoid": Case(
            nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1), nn.Sigmoid()),
            (rows,),
            [("0", "output", "flatten"), ("2", "input", "flatten")],
        ),
        "weights without a layer": Case(
            Made(lambda m, x: F.normalize(m.body(x)) @ m.last.weight.T * 9, body=nn.Linear(6, 5), last=nn.Linear(5, 3)),
            (rows,),
            [("body", "output", "flatten")],
        ),
        "scaled outputs": Case(
            Made(lambda m, x: 3 * m.fc(m.body(x).relu()), body=nn.Linear(6, 5), fc=nn.Linear(5, 3)),
            (rows,),
            [("body", "output", "flatten"), ("fc", "input", "flatten")],
        ),
        "linear": Case(nn.Linear(6, 3), (rows,), [("", "input", "flatten")]),
    }


def found(choices: list[Choice]) -> list[tuple[str, str, str]]:
    return [(choice.layer, choice.read, choice.how) for choice in choices]


@pytest.mark.parametrize("name", cases())
def test_the_head_and_two_layers_before_it(name: str) -> None:
    model, inputs, expected, output = cases()[name]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert found(choose_layers(model.eval(), Batch(inputs, {}, None), output)) == expected
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_names_do_not_matter() -> None:
    torch.manual_seed(0)
    model = Made(
        lambda m, x: m.fc(m.head(x).relu()), head=nn.Linear(6, 3), fc=nn.Linear(3, 3)
    )  # as wide as the outputs
    assert choose_layers(model, Batch((torch.randn(4, 6),), {}, None))[-1].layer == "fc"
    turned = Made(lambda m, x: m.head(m.fc(x).relu()), fc=nn.Linear(6, 3), head=nn.Linear(3, 3))
    assert choose_layers(turned, Batch((torch.randn(4, 6),), {}, None))[-1].layer == "head"


def test_which_token_and_how_wide() -> None:
    torch.manual_seed(0)
    model = Made(lambda m, x: m.fc(m.body(x))[:, -1], body=nn.Linear(6, 8), fc=nn.Linear(8, 3))
    choice = choose_layers(model, Batch((torch.randn(4, 7, 6),), {}, None))[-1]
    assert (choice.how, choice.pool, choice.width) == ("tokens", "last", 8)


@pytest.mark.parametrize("padded", [False, True])
def test_the_last_real_token_whatever_the_padding_of_the_first_batch(padded: bool) -> None:
    torch.manual_seed(0)

    def call(m: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        scores = m.score(m.body(m.words(input_ids)))
        return scores[torch.arange(len(scores)), (attention_mask * torch.arange(7)).argmax(1)]

    model = Made(call, words=nn.Embedding(9, 8), body=nn.Linear(8, 8), score=nn.Linear(8, 3))
    sizes = torch.tensor([[7], [3], [5], [7]]) if padded else torch.full((4, 1), 7)
    mask = (torch.arange(7) < sizes).long()
    choices = choose_layers(model, Batch((), {"input_ids": torch.randint(9, (4, 7)), "attention_mask": mask}, None))
    assert choices[-1][:4] == ("score", "input", "tokens", "last")
    assert str(Choices(choices)).splitlines()[-1].split()[:3] == ["score", "input", "last"]


@pytest.mark.parametrize(
    ("mask", "size", "offered"), [("attention_mask", 7, True), ("attention_mask", 6, False), ("mask", 7, False)]
)
def test_tokens_are_averaged_where_the_mask_of_their_padding_is_found(mask: str, size: int, offered: bool) -> None:
    model = Made(
        lambda m, input_ids, **_: m.fc(m.body(m.words(input_ids))[:, 0]),
        words=nn.Embedding(9, 8),
        body=encoder(),
        fc=nn.Linear(8, 3),
    )
    words = torch.randint(0, 9, (4, 7))
    choices = choose_layers(model.eval(), Batch((), {"input_ids": words, mask: torch.ones(4, size)}, None))
    assert choices[-1][:3] == ("fc", "input", "flatten")
    assert [choice.how for choice in choices[:-1]] == ["tokens"] * (2 * offered)


def test_a_head_that_is_called_twice_is_not_read() -> None:
    torch.manual_seed(0)
    model = Made(lambda m, x: m.fc(m.body(x)) + m.fc(-m.body(x)), body=nn.Linear(6, 5), fc=nn.Linear(5, 3))
    with pytest.raises(ValueError, match=r"no layer with weights was called once.*layers="):
        choose_layers(model, Batch((torch.randn(4, 6),), {}, None))


def test_maps_and_tokens_before_the_head_are_read_by_their_moments() -> None:
    torch.manual_seed(0)
    maps = nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Conv2d(5, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3))
    choices = choose_layers(maps, Batch((torch.randn(4, 1, 8, 8),), {}, None))
    assert [(choice.how, choice.pool, choice.width) for choice in choices] == [
        ("channels", "moments", 10),
        ("flatten", "mean", 96),
    ]
    assert str(Choices(choices)).splitlines()[1].split()[:4] == ["0", "output", "moments", "10"]


def test_the_table() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    lines = str(suggest(model, [torch.randn(9, 4)])).splitlines()
    assert [line.split()[:2] for line in lines] == [["layer", "read"], ["0", "output"], ["4", "input"]]
