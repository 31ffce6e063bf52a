"""What a loader gives, as inputs of the model and a label."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import Dataset, IterableDataset

from ..arrays import is_array, to_tensor
from ..progress import count as count
from ..team import team

Adapter = Callable[[Any], Any]
"""Turns what the user's loader gives into `(inputs, label)`; inputs are a tensor, a tuple (positional) or a dict
(keyword), the label a tensor or `None`."""

_HELP = (
    "Pass unpack=, a function that returns (inputs, label): inputs a tensor, a tuple (positional) or a dict (keyword), "
    "label a tensor or None."
)


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs for one call of the model, `model(*args, **kwargs)`, and their labels where there are any."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: Tensor | None  # one per sample
    names: tuple[str, ...] = ()  # what the model calls its inputs, in the order in which it takes them

    @property
    def given(self) -> dict[Any, Any]:
        """All inputs, each by its place and by its name, as far as these are known."""
        named = {**dict(zip(self.names, self.args, strict=False)), **self.kwargs}
        places = {place: named[name] for place, name in enumerate(self.names) if name in named}
        return {**dict(enumerate(self.args)), **places, **named}

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """How many samples there are: the leading size of the first tensor, a symbol in a graph that is traced."""
        first = next(leaves((self.args, self.kwargs), Tensor), None)
        if first is None:
            raise TypeError(
                "there is no tensor among the inputs; the first dimension of one must count the samples. Turn lists "
                "into tensors, for instance with torch.as_tensor."
            )
        return first.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        """Return some samples, by a slice or a mask: of every tensor with one row per sample, these rows."""
        n = len(self)
        return self.map(lambda tensor: tensor[rows] if tensor.ndim and len(tensor) == n else tensor)

    def to(self, device: torch.device | str | None) -> Batch:
        """Return the batch with all its tensors on a device, or where they are."""
        if device is None:
            return self
        device = torch.device(device)
        # Towards the host a copy that does not block may be read before it is complete.
        return self.map(lambda tensor: tensor.to(device, non_blocking=device.type != "cpu"))

    def clone(self) -> Batch:
        """Return the batch with copies of all its tensors, for networks that write into their inputs."""
        return self.map(torch.clone)

    def digests(self) -> np.ndarray:
        """Hash each sample's inputs to 64 bits, the same wherever in whatever batch on whatever device it comes.

        Zeros at the end of a sample do not count, so that sequences may be padded to the longest of their batch.
        """
        n = len(self)
        inputs = (*self.args, *(self.kwargs[key] for key in sorted(self.kwargs)))
        rows = [
            tensor.detach().cpu().reshape(n, math.prod(tensor.shape[1:])).contiguous().view(torch.uint8).numpy()
            for tensor in leaves(inputs, Tensor)
            if tensor.ndim > 0 and tensor.shape[0] == n and tensor.numel() > 0
        ]
        digests = np.empty(n, dtype=np.uint64)
        for i in range(n):
            digest = blake2b(digest_size=8)
            for row in rows:
                content = row[i].tobytes().rstrip(b"\0")
                digest.update(len(content).to_bytes(8, "little"))
                digest.update(content)
            digests[i] = int.from_bytes(digest.digest(), "little")
        return digests

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with all its tensors changed."""
        args, kwargs, label = (_changed(part, change) for part in (self.args, self.kwargs, self.label))
        return replace(self, args=args, kwargs=kwargs, label=label)


def dtype_of(model: nn.Module) -> torch.dtype | None:
    """The model's precision, which arrays are brought to: that of its first parameter in floating point, if any."""
    whole = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return next((parameter.dtype for parameter in model.parameters() if parameter.dtype in whole), None)


def names_of(model: nn.Module) -> tuple[str, ...]:
    """What a model calls the inputs that it takes by their place; none where it takes whatever comes."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # of TorchScript
        return ()
    return tuple(one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD))


def unpack(batch: Any, adapter: Adapter | None = None, dtype: torch.dtype | None = None) -> Batch:
    """Understand what a loader gave.

    A tensor `x` is `model(x)`; `(x, y)` is `model(x)` with label `y`; a dict is `model(**inputs)` with the label under
    `"labels"` or `"label"`; in `(inputs, y)` the inputs may be a tuple (positional) or a dict (keyword) too. Of all
    else, the adapter returns `(inputs, label)`. Arrays and frames become tensors, those in floating point of a `dtype`.
    """
    if isinstance(batch, Batch):
        return batch
    if adapter is not None:
        result = adapter(batch)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"unpack= returned {_kind(result)}; it must return (inputs, label), label None if there is none"
            )
        inputs, label = result
        return _built(inputs, label, dtype)
    single = isinstance(batch, PackedSequence) or not isinstance(batch, tuple | list)
    items = (batch,) if single else tuple(batch)
    if len(items) not in (1, 2):
        raise TypeError(f"a batch is x, (x, y) or a dict, but the loader gave {_kind(batch)}. {_HELP}")
    inputs, label = items if len(items) == 2 else (items[0], None)
    if isinstance(inputs, PackedSequence):
        raise TypeError(
            "a packed sequence does not count its samples along its first dimension: give the padded tensor and the "
            "lengths, as ((x, lengths), y), and pack them inside the model."
        )
    if isinstance(inputs, Mapping):
        keys = [key for key in ("labels", "label") if key in inputs]
        if len(keys) + (label is not None) > 1:
            raise ValueError(f"the batch has more than one label: {keys} among its inputs, or one beside them. {_HELP}")
        label = inputs[keys[0]] if keys else label
        inputs = {key: part for key, part in inputs.items() if key not in keys}
    return _built(inputs, label, dtype)


def called(
    args: tuple[Any, ...], kwargs: dict[str, Any], adapter: Adapter | None = None, dtype: torch.dtype | None = None
) -> Batch:
    """Understand what a detector was called with: one batch as a loader gives it, or inputs as the model takes them.

    A tensor or an array is an input, and so is what holds none, such as a list of texts, unless there is an adapter.
    `**batch` is the same as `batch`.
    """
    item = kwargs if not args else args[0] if len(args) == 1 and not kwargs else None
    if item is not None and not _is_data(item) and not (kwargs and adapter):
        holds = isinstance(item, Mapping | tuple | list) and any(map(_is_data, leaves(item)))
        if isinstance(item, Batch) or holds or adapter is not None:
            return unpack(item, adapter, dtype)
    return Batch(_converted(args, dtype), _converted(kwargs, dtype), None)


def batches(
    loader: Iterable[Any],
    adapter: Adapter | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[Batch]:
    """Yield what a loader gives, unpacked and on the device; batches without inputs only where there are no others."""
    if isinstance(loader, Tensor | Mapping | str) or is_array(loader):
        raise TypeError(f"a loader gives batches, but {_kind(loader)} came; wrap one batch as [batch]")
    if isinstance(loader, tuple | list) and len(loader) == 2 and _is_pair(*loader):
        raise TypeError("a loader gives batches, but a pair of inputs and labels came; wrap one batch as [(x, y)]")
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise TypeError(
            f"{type(loader).__name__} gives single samples, not batches; pass DataLoader(dataset, batch_size=...)"
        )
    last, some = None, False
    for item in loader:
        last = unpack(item, adapter, dtype).to(device)
        if len(last):
            some = True
            yield last
    if not some and team().size > 1:
        return  # a shard may be empty
    if last is None:
        raise ValueError(
            "the loader gave no batches; a generator that was used before is empty: pass a DataLoader or a list"
        )
    if not some:
        yield last


def require_repeatable(loader: Iterable[Any], passes: int) -> None:
    """Raise if a loader that can be read only once has to be read several times."""
    if passes > 1 and isinstance(loader, Iterator):
        raise TypeError(
            f"the loader is a {type(loader).__name__}, which can be read only once, but {passes} passes are needed: "
            "pass a DataLoader or a list"
        )


def _built(inputs: Any, label: Any, dtype: torch.dtype | None) -> Batch:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = _converted({str(key): value for key, value in inputs.items()}, dtype)
    else:
        args = _converted(tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), dtype)
    first = next(leaves((args, kwargs), Tensor), None)
    if first is None:
        raise TypeError(
            f"the loader gave {_kind(inputs)} without a tensor or an array as an input of the model. {_HELP}"
        )
    if first.ndim == 0:
        raise ValueError("the model's input is a tensor without dimensions; its first dimension must count the samples")
    if label is not None:
        label = _label(label, len(first))
    return Batch(args, kwargs, label)


def _is_data(value: Any) -> bool:
    return isinstance(value, Tensor) or is_array(value)


def _is_pair(x: Any, y: Any) -> bool:
    """Whether two items are inputs with their labels rather than two batches, which would have one number of axes."""
    if isinstance(x, Mapping):
        return _is_data(y)
    if not all(_is_data(item) and item.ndim for item in (x, y)) or len(x) != len(y):
        return False
    return x.ndim > y.ndim or (x.ndim == y.ndim == 2 and x.shape[1] > 1 == y.shape[1])


def _label(label: Any, n: int) -> Tensor:
    try:
        label = to_tensor(label)
        tensor = label if isinstance(label, Tensor) else torch.as_tensor(label, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"the label is {_kind(label)}, which cannot be a tensor. If labels are not needed, leave them out: "
            "unpack=lambda batch: (batch[0], None)."
        ) from error
    if tensor.ndim == 0 or len(tensor) != n:
        raise ValueError(
            f"the batch has {n} samples, but its label is of shape {tuple(tensor.shape)}; the first dimension of both "
            f"must count the samples. {_HELP}"
        )
    return tensor


def leaves(value: Any, kind: type = object) -> Iterator[Any]:
    """All of one kind that is in tuples, lists and mappings, however nested."""
    if isinstance(value, Mapping | tuple | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(part, kind)
    elif isinstance(value, kind):
        yield value


def _converted(value: Any, dtype: torch.dtype | None) -> Any:
    return _changed(value, lambda array: to_tensor(array, dtype), is_array)


def _changed(value: Any, change: Callable[[Any], Tensor], which: Callable[[Any], bool] = torch.is_tensor) -> Any:
    """The same with every tensor in it changed, or all that `which` says."""
    if which(value):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _changed(part, change, which) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_changed(part, change, which) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(_changed(part, change, which) for part in value)
    return value


def _kind(value: Any) -> str:
    if is_array(value):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        inside = ", ".join(type(part).__name__ for part in value[:5])
        return f"a {type(value).__name__} of {len(value)} ({inside}{', …' if len(value) > 5 else ''})"
    if not isinstance(value, str | int | float):
        return f"an object of type {type(value).__name__}"
    return f"{value!r:.60} ({type(value).__name__})"
