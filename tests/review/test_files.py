"""Files that do not belong to the model, or that ask for what they must not get."""

import os
import stat
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from found import found
from hidden_uncertainty import GaussianMixture, LatentDensity, io


def _network(seed: int = 0, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(2, 16), activation(), nn.Linear(16, 8), activation(), nn.Linear(8, 2)).eval()
    for layer in (network[0], network[2], network[4]):
        layer.bias.data.zero_()  # so that both classes are common
    return network


def _quantised(network: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is moving these functions elsewhere
        return torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8)


def _save(network: nn.Module, path: Path, *, calibrate: bool = False) -> Path:
    x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    detector = LatentDensity(network, "2", GaussianMixture(1), task="classification")
    detector.fit([x], calibration=[x[:50]] if calibrate else None).save(path)
    return path


def _warned(path: Path, network: nn.Module) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LatentDensity.load(path, network)
    return [str(warning.message) for warning in caught]


def _error(path: Path, network: nn.Module) -> BaseException | None:
    try:
        LatentDensity.load(path, network)
    except Exception as error:
        return error
    return None


@found(
    "A9",
    "a detector loaded for a network with other weights but for four of each tensor",
    "loads without a warning",
    "warns, and names the first tensor that differs",
)
def test_other_weights_but_four(tmp_path):
    network, other = _network(), _network(1)
    path = _save(network, tmp_path / "detector.safetensors")
    for mine, theirs in zip(network.parameters(), other.parameters(), strict=True):
        index = torch.linspace(0, mine.numel() - 1, 4, dtype=torch.float64).long()
        theirs.data.view(-1)[index] = mine.data.view(-1)[index]
    assert any("weights" in text for text in _warned(path, other))


@found(
    "A9",
    "a detector loaded for a quantised network of another training run",
    "loads without a warning",
    "warns: packed weights are compared too",
)
def test_another_quantised_network(tmp_path):
    path = _save(_quantised(_network()), tmp_path / "detector.safetensors")
    assert not _warned(path, _quantised(_network()))
    assert any("weights" in text for text in _warned(path, _quantised(_network(1))))


@found(
    "A9",
    "a detector loaded for a network with ReLU instead of Tanh",
    "loads without a warning",
    "an error that names the layer",
)
def test_another_activation(tmp_path):
    path = _save(_network(), tmp_path / "detector.safetensors")
    with pytest.raises(ValueError, match=r"'1' is torch\.Tanh, here torch\.ReLU"):
        LatentDensity.load(path, _network(activation=nn.ReLU))


@found(
    "B25",
    "a file of a few kB whose header asks for thousands of terabytes",
    "allocates what the header says",
    "an error; sizes are compared with the file before anything is allocated",
)
def test_sizes_in_a_header(tmp_path):
    network = _network()
    path = _save(network, tmp_path / "detector.safetensors")
    header, tensors = io.read(path)

    def enlarge(part: object) -> None:
        if isinstance(part, dict):
            if "dim" in part:
                part["dim"] = 1 << 24
            for value in part.values():
                enlarge(value)
        elif isinstance(part, list):
            if "float32" in part:
                part[1:] = [1 << 24] * len(part[1:])
            for value in part:
                enlarge(value)

    enlarge(header["head"])
    io.write(path, header, tensors)
    error = _error(path, network)
    assert isinstance(error, ValueError) and "is damaged" in str(error), error


@found("B26", "saving to a pipe", "the pipe is replaced by a file", "an error; the pipe stays")
def test_saving_to_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ValueError, match="pipe"):
        _save(_network(), path)
    assert stat.S_ISFIFO(path.stat().st_mode)


@found(
    "B26",
    "saving over a file that only its owner may read",
    "everyone may read the new one",
    "the file keeps its permissions",
)
def test_permissions_stay(tmp_path):
    path = tmp_path / "detector.safetensors"
    path.touch()
    path.chmod(0o600)
    _save(_network(), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _reverse(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name in tensors if name.endswith("calibration.scores"))
    tensors[name] = tensors[name].flip(0)


def _raise_prior(tensors: dict[str, torch.Tensor]) -> None:
    for name in tensors:
        if name.endswith(("marginal.log_prob", "marginal.log_weight")):
            tensors[name] += 1


def _swap(tensors: dict[str, torch.Tensor]) -> None:
    mean, bias = (next(name for name in tensors if name.endswith(f"density.{end}")) for end in ("mean", "bias"))
    tensors[mean], tensors[bias] = tensors[bias], tensors[mean]


@found(
    "B28",
    "a file with a right digest and wrong content: calibration scores not sorted, probabilities that do not sum to "
    "one, two tensors swapped",
    "is accepted",
    "an error that says what is wrong with it",
)
@pytest.mark.parametrize("change", [_reverse, _raise_prior, _swap])
def test_wrong_content(tmp_path, change):
    network = _network()
    path = _save(network, tmp_path / "detector.safetensors", calibrate=True)
    header, tensors = io.read(path)
    change(tensors)
    io.write(path, header, tensors)
    error = _error(path, network)
    assert isinstance(error, ValueError) and "is damaged" in str(error), error
