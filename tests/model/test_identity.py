"""A file is for one model: another structure is refused, other weights are warned of."""

import copy
import re
import warnings

import pytest
import torch
from torch import nn

from capture_nets import data_parallel
from hidden_uncertainty import LatentDensity
from hidden_uncertainty.baselines import Energy
from hidden_uncertainty.io import Unusable
from hidden_uncertainty.model import identity
from hidden_uncertainty.model.identity import check_same, describe, weights

SIGNS = identity._signs("numbers", identity.BLOCK).numpy()


class Net(nn.Module):
    def __init__(self, activation: nn.Module, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8, momentum=dropout)
        self.act, self.drop = activation, nn.Dropout(dropout)
        self.rnn = nn.LSTM(8, 4, 2, dropout=dropout)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("places", torch.arange(5))
        self.list = nn.ParameterList([torch.ones(3)])


class Swish(nn.Module):
    """An activation of one's own."""


class Blend(Swish):
    """Another."""


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net(nn.ReLU())


def outcome(model: nn.Module, other: nn.Module) -> str:
    """What comes of a file for one model when it is loaded for another."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_same(other, describe(model), weights(model), "file")
        except Unusable as error:
            return f"refused: {error}"
    return " ".join(str(warning.message) for warning in caught)


def test_a_file_is_for_one_model(trained, data, tmp_path):
    path = tmp_path / "detector.safetensors"
    LatentDensity(trained, "hidden").fit(data["train"]).save(path)
    other = copy.deepcopy(trained)
    other.hidden = nn.Linear(12, 7)
    with pytest.raises(ValueError, match=r"another model \(Net\): there, parameter 'hidden.weight' is \(6, 12\), here"):
        LatentDensity.load(path, other)
    for change in (lambda body: body[0].weight.data.mul_(1.5), lambda body: body[1].running_mean.add_(1)):
        other = copy.deepcopy(trained)
        change(other.body)
        with pytest.warns(UserWarning, match="weights are not those"):
            LatentDensity.load(path, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LatentDensity.load(path, torch.compile(copy.deepcopy(trained), backend="eager"))
        LatentDensity.load(path, data_parallel(copy.deepcopy(trained)))
    with pytest.raises(TypeError, match="Module, not dict"):
        LatentDensity.load(path, {})


@pytest.mark.parametrize("numbers", [0, 1, 5, 16381, 16382, 200_000, 64 * 16381 + 3])
def test_sums_are_those_of_signed_numbers(numbers):
    x = torch.randn(numbers, generator=torch.Generator().manual_seed(0))
    found = weights(nn.ParameterList([x]))[0].numpy()
    blocks = identity._signs("blocks", -(-numbers // identity.BLOCK)).numpy()
    place = torch.arange(numbers).numpy()
    signs = SIGNS[place % identity.BLOCK] * blocks[place // identity.BLOCK]
    assert abs(found[:8] - x.double().numpy() @ signs).max() <= 1e-9
    assert abs(found[8] - float(x.double().norm())) <= 1e-9


def test_signs_are_fixed_and_fair():
    assert [int(sign) for sign in SIGNS[:2].flatten()] == [-1, 1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, -1, 1, 1]
    assert abs(SIGNS.mean(0)).max() < 0.03
    assert abs(SIGNS.T @ SIGNS / len(SIGNS) - torch.eye(8).numpy()).max() < 0.03


@pytest.mark.parametrize("shape", [(7,), (40, 30), (16381 * 4, 2), (300, 300)])
def test_every_permutation_and_every_small_change_is_seen(shape):
    generator = torch.Generator().manual_seed(0)
    one = nn.ParameterList([torch.randn(shape, generator=generator)])
    for change in (
        lambda w: w.roll(1, 0),
        lambda w: w.flip(0),
        lambda w: w[torch.randperm(len(w), generator=generator)],
        lambda w: w * (1 + 1e-4),
        lambda w: w + 1e-4 * torch.randn(w.shape, generator=generator),
        lambda w: torch.cat([w[len(w) // 2 :], w[: len(w) // 2]]),
    ):
        assert "weights are not those" in outcome(one, nn.ParameterList([change(one[0].detach())]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_cast_is_the_same_model(net, dtype):
    assert outcome(net, copy.deepcopy(net).to(dtype)) == ""
    assert outcome(copy.deepcopy(net).to(dtype), net) == ""
    other = copy.deepcopy(net).to(dtype)
    other.conv.weight.data *= 1.1
    assert "'conv.weight' is the first" in outcome(net, other)


def test_what_may_differ(net):
    for change in (
        lambda model: model.norm.num_batches_tracked.add_(3),
        lambda model: setattr(model, "drop", nn.Identity()),
        lambda model: setattr(model, "act", nn.ReLU(inplace=True)),
        lambda model: setattr(model, "loss", nn.CrossEntropyLoss()),
        lambda model: setattr(model, "metric", Swish()),
        lambda model: delattr(model, "places"),
        lambda model: model.to(memory_format=torch.channels_last),
        lambda model: model.train(),
    ):
        other = copy.deepcopy(net)
        change(other)
        assert outcome(net, other) == ""
        assert outcome(other, net) == ""
    other = Net(nn.ReLU(), dropout=0.5)
    other.load_state_dict(net.state_dict())
    assert outcome(net, other) == ""


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda: Net(nn.Tanh()), "layer 'act' is torch.ReLU, here torch.Tanh"),
        (lambda: Net(Swish()), "layer 'act' is torch.ReLU, here Swish"),
        (lambda: nn.Sequential(nn.Linear(2, 2)), "the model is Net, here torch.Sequential"),
    ],
)
def test_another_structure_is_refused(net, other, text):
    model = other()
    model.load_state_dict(net.state_dict(), strict=False)
    assert re.search(f"^refused: .*{text}", outcome(net, model))


def test_another_mask_and_another_class_are_warned_of(net):
    other = copy.deepcopy(net)
    other.mask[0, 1] = 0
    assert "'mask' is the first" in outcome(net, other)
    assert outcome(Net(Swish()), Net(Swish()))  # not the same weights
    one, other = copy.deepcopy(net), copy.deepcopy(net)
    one.act, other.act = Swish(), Blend()
    assert "module 'act' is Swish, here Blend" in outcome(one, other)


@pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")
def test_quantised_and_scripted_networks():
    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()

    def quantised(seed: int) -> nn.Module:
        return torch.ao.quantization.quantize_dynamic(network(seed), {nn.Linear})

    assert outcome(quantised(0), quantised(0)) == ""
    assert "weights are not those" in outcome(quantised(0), quantised(1))
    text = "layer '0' is torch.Linear, here torch.DynamicQuantizedLinear. Quantise before the fit"
    assert text in outcome(network(0), quantised(0))
    traced = torch.jit.trace(network(0), torch.zeros(1, 4))
    assert outcome(network(0), traced) == ""
    assert "weights are not those" in outcome(traced, torch.jit.trace(network(1), torch.zeros(1, 4)))


def test_models_without_tensors_or_data(tmp_path):
    path = tmp_path / "energy.safetensors"
    Energy(nn.Identity()).save(path)
    logits = 4 * torch.eye(3)
    assert torch.equal(Energy.load(path, nn.Identity())(logits).epistemic, Energy(nn.Identity())(logits).epistemic)
    assert outcome(nn.Linear(3, 2, device="meta"), nn.Linear(3, 2)) == ""  # nothing is known of its weights
