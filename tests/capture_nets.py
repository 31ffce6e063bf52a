"""Small networks whose layers are read, and whether a network is as it was."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

HOOKS = [key for key in vars(nn.Module()) if key.endswith(("_hooks", "_with_kwargs", "_always_called"))]


def snapshot(model: nn.Module) -> list[Any]:
    state: list[Any] = []
    for name, module in model.named_modules():
        state.append((name, module.training, [list(getattr(module, key).items()) for key in HOOKS]))
        state.append((sorted(vars(module)), id(vars(module).get("_compiled_call_impl"))))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        grad = None if tensor.grad is None else tensor.grad.numpy(force=True).tobytes()
        content = tensor.detach().clone().view(torch.uint8) if tensor.ndim else tensor.item()
        content = content.numpy(force=True).tobytes() if isinstance(content, Tensor) else content
        state.append((name, id(tensor), tensor.data_ptr(), tensor._version, tensor.requires_grad, grad, content))
    return state


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    before, modes = snapshot(model), (torch.is_grad_enabled(), torch.is_autocast_cache_enabled())
    yield
    assert snapshot(model) == before
    assert (torch.is_grad_enabled(), torch.is_autocast_cache_enabled()) == modes


class Net(nn.Module):
    """Batch norm, dropout and an in-place activation, all in training mode; a frozen weight, one with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4 * 36, 3)
        self.stem[0].weight.requires_grad_(False)
        self.head.weight.grad = torch.ones_like(self.head.weight)
        self.before: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        self.before()
        return self.head(self.drop(h).flatten(1))


def data_parallel(model: nn.Module) -> nn.DataParallel[nn.Module]:
    """The wrapper as on a machine without a GPU: on one with a GPU it would move the model there."""
    module = sys.modules[nn.DataParallel.__module__]
    with patch.object(module, "_get_available_device_type", return_value=None):
        return nn.DataParallel(model)


class Average(nn.Module):
    """Adds a moving average of what it sees, which it updates in evaluation mode too."""

    def __init__(self, how: str = "in place") -> None:
        super().__init__()
        self.how = how
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("still", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        new = 0.9 * self.mean + x.detach().mean()
        if self.how == "in place":
            self.mean.copy_(new)
        elif self.how == "data":
            self.mean.data.copy_(new)
        else:
            self.mean = new
        return x + self.mean


def images(n: int = 2) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(n))


class Chain(nn.Sequential):
    """With a forward of its own: the compiler leaves torch's own containers alone when they are compiled in place."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


def mlp() -> Chain:
    torch.manual_seed(0)
    return Chain(nn.Linear(4, 8), nn.ReLU(inplace=True), Chain(nn.Linear(8, 6), nn.ReLU()), nn.Linear(6, 2))


def vectors(n: int = 3) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(n))


@dataclass
class Output:
    logits: Tensor
    loss: None = None


class Odd(nn.Module):
    """Layers that return tuples, dictionaries and data classes, one called twice, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.shared = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.dictionary = Returning(lambda x: {"hidden": x * 2, "mask": None})
        self.record = Returning(lambda x: Output(x * 3))

    def forward(self, x: Tensor, skip: bool = True) -> Output:
        x = self.shared(self.shared(x))
        x = self.attention(x, x, x)[0]
        x = self.dictionary(x)["hidden"]
        if not skip:
            x = self.unused(x)
        self.lstm(x)
        return self.record(x)


class Returning(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run so many at once; TimeoutError where they wait for each other for ever."""
    list(ThreadPoolExecutor(count).map(work, range(count), timeout=30))


def activations(model: nn.Module, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """A layer's output and the predicted classes, read by hand from a copy in evaluation mode."""
    twin, kept = copy.deepcopy(model).eval(), []
    twin.get_submodule(layer).register_forward_hook(lambda module, args, output: kept.append(output.clone()))
    with torch.no_grad():
        prediction = twin(x).argmax(1)
    return kept[0], prediction
