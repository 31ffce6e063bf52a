"""Fused norms against torch's own: as Python where there is no GPU, which is exact and slow."""

import copy
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reproduction.nets import ResNet
from reproduction.training import fused_resnet
from reproduction.training.fused_resnet import fuse

# As Python, older ones run loops with an older numpy only.
pytest.importorskip("triton", minversion=None if torch.cuda.is_available() else "3.7")

from reproduction.training import fused_norm
from reproduction.training.fused_norm import _grid, normalised

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(*shape: int, seed: int) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.contiguous(memory_format=torch.channels_last).to(DEVICE) if len(shape) == 4 else values.to(DEVICE)


def a_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, momentum=0.3).to(DEVICE)
    norm.weight.data, norm.bias.data = draw(channels, seed=1), draw(channels, seed=2)
    return norm


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(((one.double() - other).abs().max() / other.abs().max()).detach())


# With four programs, those of the last shape read two blocks of rows each, and the last of them one that is half full.
# As Python, images for all the programs there are take a second: they are tried once, with everything.
SIZES = [((3, 32, 6, 10), 64), ((5, 96, 4, 4), 64), ((9, 32, 8, 8), 4)]
WAYS = [(*size, *way) for size in SIZES for way in product([False, True], repeat=3)]


@pytest.mark.parametrize(
    ("shape", "programs", "relu", "half", "added"), [*WAYS, ((9, 32, 32, 32), 64, True, True, True)], ids=str
)
def test_it_equals_a_norm_an_addition_and_a_rectifier(shape, programs, relu, half, added, monkeypatch):
    monkeypatch.setattr(fused_norm, "_PROGRAMS", programs)
    norm = a_norm(shape[1])
    true = copy.deepcopy(norm).double()
    inputs = [30 + 2 * draw(*shape, seed=3)] + [draw(*shape, seed=4)] * added  # a mean far from zero cancels nothing
    exact = [value.double().requires_grad_() for value in inputs]
    inputs = [value.requires_grad_() for value in inputs]

    out = normalised(norm, inputs[0], add=inputs[1] if added else None, relu=relu, half=half)
    want = true(exact[0]) + (exact[1] if added else 0)
    want = F.relu(want) if relu else want
    outs, wants = (out, (want, want[:, :, ::2, ::2])) if half else ((out,), (want,))
    slopes = [draw(*value.shape, seed=5) for value in wants]
    found = torch.autograd.grad(outs, [*inputs, norm.weight, norm.bias], slopes)
    expected = torch.autograd.grad(wants, [*exact, true.weight, true.bias], [slope.double() for slope in slopes])

    pairs = [*zip(outs, wants, strict=True), *zip(found, expected, strict=True)]
    pairs += [(norm.running_mean, true.running_mean), (norm.running_var, true.running_var)]
    assert max(far(one, other) for one, other in pairs) < 5e-6


def test_a_program_reads_several_blocks_of_many_rows(monkeypatch):
    size, tiles, programs = _grid(torch.empty(9, 32, 32, 32))
    assert size == (9216, 32) and tiles == 2 and programs == (36, 1)
    assert _grid(torch.empty(32, 64, 32, 32, device="meta"))[2] == (32, 2)
    monkeypatch.setattr(fused_norm, "_PROGRAMS", 4)
    assert _grid(torch.empty(9, 32, 8, 8)) == ((576, 32), 2, (3, 1))


def test_what_is_not_a_number_stays():
    x = draw(2, 32, 4, 4, seed=0)
    x[0, 3, 0, 0] = torch.nan
    bad = normalised(a_norm(32), x).isnan().flatten(2).any(2).any(0)
    assert bad[3] and int(bad.sum()) == 1


def both(*, seed: int = 0, **options) -> tuple[ResNet, ResNet]:
    plain = ResNet((32, 64, 32), seed=seed, **options).to(DEVICE).train()
    fused = copy.deepcopy(plain)
    fuse(fused)
    return plain, fused


def test_a_network_learns_the_same_by_fused_norms():
    plain, fused = both()
    x, labels = draw(4, 3, 8, 8, seed=0), torch.tensor([0, 3, 3, 9], device=DEVICE)
    gradients = []
    with torch.backends.cudnn.flags(allow_tf32=False):
        for network in (plain, fused):
            loss = F.cross_entropy(network(x), labels)
            gradients.append(torch.autograd.grad(loss, list(network.parameters())))
    assert all(float((a - b).norm() / b.norm()) < 1e-4 for a, b in zip(*gradients, strict=True))
    assert list(fused.state_dict()) == list(plain.state_dict())
    for name, value in plain.named_buffers():
        if not name.endswith("num_batches_tracked"):  # which lanes count themselves
            torch.testing.assert_close(fused.get_buffer(name), value)


def test_evaluation_is_not_touched():
    plain, fused = both()
    x = draw(4, 3, 8, 8, seed=0)
    assert "forward" in vars(fused) and torch.equal(fused.eval()(x), plain.eval()(x))


@pytest.mark.parametrize(
    "network",
    [ResNet((32, 64, 48)), ResNet((32, 64, 32), dropout=0.1), nn.Linear(2, 2)],
    ids=["width", "dropout", "other"],
)
def test_networks_that_it_does_not_know_stay_plain(network):
    fuse(network)
    assert "forward" not in vars(network)


def test_a_network_whose_layers_are_watched_stays_plain():
    network = ResNet((32, 64, 32))
    network.get_submodule("9").register_forward_hook(lambda *_: None)
    fuse(network)
    assert "forward" not in vars(network)


def test_where_nothing_compiles_it_stays_plain_and_says_so(monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(fused_norm, "normalised", fail)
    fused_resnet._compiles.cache_clear()
    network = ResNet((32, 64, 32)).to(DEVICE)
    with pytest.warns(UserWarning, match="not fused.*no compiler"):
        fuse(network)
    assert "forward" not in vars(network)
    fused_resnet._compiles.cache_clear()


def test_odd_images_go_through_the_layers_themselves():
    plain, fused = both()
    x = draw(2, 3, 9, 8, seed=0)
    assert torch.equal(fused(x), plain(x))
