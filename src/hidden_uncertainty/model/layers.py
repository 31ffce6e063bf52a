"""Which layers a model has, what they are called, and what comes out of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import capture
from .batches import dtype_of, unpack
from .outputs import parts_of, select


@dataclass(frozen=True)
class LayerInfo:
    """One layer of a model."""

    name: str  # dotted, as `LatentDensity(model, layers=name)` takes it; `""` is the model itself
    kind: str  # its class
    shape: str  # what it returned, `n` for the batch: `"n×64×8×8"`, `"tuple(n×12×64, …)"`; empty if it was not called
    width: int | None  # per sample when flattened, or None when there is no tensor with one row per sample
    calls: int  # only a layer called once can be chosen
    depth: int  # 0 for the model itself


class LayerTree:
    """The layers of a model in the order they are registered: printable, iterable, and indexable by name."""

    def __init__(self, entries: list[LayerInfo]) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[LayerInfo]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, name: str) -> LayerInfo:
        for entry in self.entries:
            if entry.name == name:
                return entry
        near = capture.nearest(name, [entry.name for entry in self.entries])
        raise KeyError(f"layer {name!r} is not listed; nearest names: {', '.join(map(repr, near))}")

    def __repr__(self) -> str:
        return f"LayerTree({len(self)} layers)"

    def __str__(self) -> str:
        rows = [("layer", "type", "output", "width", "")]
        for entry in self.entries:
            name = "  " * entry.depth + (entry.name or '""')
            width = "" if entry.width is None else f"{entry.width:,}"
            rows.append((name, entry.kind, entry.shape, width, _remark(entry)))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{name:{wide[0]}}  {kind:{wide[1]}}  {shape:{wide[2]}}  {width:>{wide[3]}}  {remark}"
            for name, kind, shape, width, remark in rows
        ]
        return "\n".join(line.rstrip() for line in lines)


def layers(model: nn.Module, example: Any, *, depth: int | None = None, show: bool = True) -> LayerTree:
    """List the layers of a model by running it once on an example, which leaves the model as it is.

    Args:
        model: any `nn.Module`.
        example: a batch as the loader gives it: a tensor, `(x, y)` or a dict; several inputs as `((a, b), None)`.
        depth: leave out layers that lie deeper; 1 lists the model and its direct children.
        show: print the list.

    Example:
        >>> tree = layers(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.randn(3, 4))
        layer  type        output  width
        ""     Sequential  n×8         8
          0    Linear      n×8         8
          1    ReLU        n×8         8
    """
    batch = unpack(example, dtype=dtype_of(model)).to(capture.device_of(model))
    modules = {name: module for name, module in capture.named(model) if depth is None or _depth(name) <= depth}
    outputs: dict[str, list[tuple[str, int | None]]] = {name: [] for name in modules}

    def noting(name: str) -> capture.Callback:
        return lambda output, *_: outputs[name].append((_shape(output, len(batch)), _width(output, len(batch))))

    readable = [name for name, module in modules.items() if not isinstance(module, torch.jit.ScriptModule)]
    callbacks = {name: noting(name) for name in readable}
    capture.lend(model, callbacks, lambda inner: inner(*batch.args, **batch.kwargs))

    entries = []
    for name, module in modules.items():
        shape, width = outputs[name][0] if outputs[name] else ("", None)
        entries.append(LayerInfo(name, _kind(module), shape, width, len(outputs[name]), _depth(name)))
    tree = LayerTree(entries)
    if show:
        print(tree)
    return tree


def with_names(model: nn.Module | None, given: Any) -> Any:
    """The same with dotted names in place of the model's own modules: of one, in a list, or as keys of a mapping."""
    if isinstance(given, Mapping):
        return {with_names(model, key): value for key, value in given.items()}
    if isinstance(given, tuple | list):
        return [with_names(model, one) for one in given]
    if not isinstance(given, nn.Module):
        return given
    inner = next(capture.named(given))[1]  # without wrappers
    for name, module in () if model is None else capture.named(model):
        if module is inner:
            return name
    raise ValueError(
        f"the layer {type(given).__name__} is not in the model: expected a module of this very {type(model).__name__}, "
        "not of a copy, or a name. List them with layers(model, example)."
    )


def _depth(name: str) -> int:
    return name.count(".") + 1 if name else 0


def _kind(module: nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return f"TorchScript {module.original_name}"
    return type(module).__name__


def _remark(entry: LayerInfo) -> str:
    if entry.kind.startswith("TorchScript"):
        return "cannot be read"
    if entry.calls == 0:
        return "not called"
    return "" if entry.calls == 1 else f"called {entry.calls} times"


def _shape(output: Any, n: int) -> str:
    if isinstance(output, Tensor):
        if output.is_nested:
            return "nested tensor"
        sizes = ["n" if i == 0 and size == n else str(size) for i, size in enumerate(output.shape)]
        return "×".join(sizes) or "scalar"
    if isinstance(output, tuple | list):
        first = [_shape(output[0], n)] if output else []
        return f"{type(output).__name__}({', '.join(first + ['…'] * (len(output) > 1))})"
    parts = ", ".join(f"{key}: {_shape(part, n)}" for key, part in parts_of(output).items())
    return f"{{{parts}}}" if parts else type(output).__name__


def _width(output: Any, n: int) -> int | None:
    try:
        tensor = select(output, None, "the layer")
    except ValueError:
        return None
    return math.prod(tensor.shape[1:]) if tensor.ndim and tensor.shape[0] == n else None
