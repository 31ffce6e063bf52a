"""What a loader gives, as inputs of the model and a label."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ..progress import count as count

Adapter = Callable[[Any], Any]
"""Turns what the user's loader gives into `(inputs, label)`; inputs are a tensor, a tuple (positional) or a dict
(keyword), the label a tensor or `None`."""

_HELP = (
    "Pass unpack=, a function that returns (inputs, label): inputs a tensor, a tuple (positional) or a dict (keyword), "
    "label a tensor or None."
)


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs for one call of the model, `model(*args, **kwargs)`, and their labels where there are any.

    Args:
        args: positional inputs.
        kwargs: keyword inputs.
        label: one per sample, or `None`.

    Example:
        >>> batch = Batch((torch.zeros(3, 4),), {}, torch.tensor([0, 1, 1]))
        >>> len(batch), len(set(batch.digests()))
        (3, 1)
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: Tensor | None

    def __len__(self) -> int:
        """Count the samples: the leading size of the first tensor."""
        first = next(leaves((self.args, self.kwargs), Tensor), None)
        if first is None:
            raise TypeError(
                "there is no tensor among the inputs; the first dimension of one must count the samples. Turn arrays "
                "and lists into tensors, for instance with torch.as_tensor."
            )
        return first.shape[0]

    def __getitem__(self, rows: slice) -> Batch:
        """Return some samples: of every tensor with one row per sample, these rows."""
        n = len(self)
        return self.map(lambda tensor: tensor[rows] if tensor.ndim and len(tensor) == n else tensor)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with all its tensors on a device."""
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
        return Batch(_changed(self.args, change), _changed(self.kwargs, change), _changed(self.label, change))


def unpack(batch: Any, adapter: Adapter | None = None) -> Batch:
    """Understand what a loader gave.

    A tensor `x` is `model(x)`; `(x, y)` is `model(x)` with label `y`; a dict is `model(**inputs)` with the label under
    `"labels"` or `"label"`; in `(inputs, y)` the inputs may be a tuple (positional) or a dict (keyword) too.

    Args:
        batch: one item of the loader.
        adapter: for anything else, a function of the item that returns `(inputs, label)`.

    Example:
        >>> batch = unpack({"input_ids": torch.zeros(2, 5), "labels": torch.tensor([0, 1])})
        >>> list(batch.kwargs), batch.label
        (['input_ids'], tensor([0, 1]))
    """
    if isinstance(batch, Batch):
        return batch
    if adapter is not None:
        result = adapter(batch)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"unpack= returned {_kind(result)}; it must return (inputs, label), label None if there is none"
            )
        return _built(*result)
    items = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if len(items) not in (1, 2):
        raise TypeError(f"a batch is x, (x, y) or a dict, but the loader gave {_kind(batch)}. {_HELP}")
    inputs, label = items if len(items) == 2 else (items[0], None)
    if isinstance(inputs, Mapping):
        keys = [key for key in ("labels", "label") if key in inputs]
        if len(keys) > 1:
            raise ValueError(f"the batch has both 'labels' and 'label'. {_HELP}")
        inner = inputs[keys[0]] if keys else None
        if inner is not None and label is not None:
            raise ValueError(f"the batch has a label beside its inputs and another among them. {_HELP}")
        inputs = {key: part for key, part in inputs.items() if key not in keys}
        label = inner if label is None else label
    return _built(inputs, label)


def batches(
    loader: Iterable[Any], adapter: Adapter | None = None, device: torch.device | str | None = None
) -> Iterator[Batch]:
    """Yield what a loader gives, unpacked and on the device; batches without inputs only where there are no others.

    Example:
        >>> [len(batch) for batch in batches([torch.zeros(3, 4), torch.zeros(2, 4)])]
        [3, 2]
    """
    if isinstance(loader, Tensor | Mapping | str):
        raise TypeError(f"a loader gives batches, but {_kind(loader)} came; wrap one batch as [batch]")
    if isinstance(loader, tuple | list) and len(loader) == 2 and _is_pair(*loader):
        raise TypeError("a loader gives batches, but a pair of inputs and labels came; wrap one batch as [(x, y)]")
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise TypeError(
            f"{type(loader).__name__} gives single samples, not batches; pass DataLoader(dataset, batch_size=...)"
        )
    last, some = None, False
    for item in loader:
        last = unpack(item, adapter)
        if len(last):
            some = True
            yield last if device is None else last.to(device)
    if last is None:
        raise ValueError(
            "the loader gave no batches; a generator that was used before is empty: pass a DataLoader or a list"
        )
    if not some:
        yield last if device is None else last.to(device)


def require_repeatable(loader: Iterable[Any], passes: int) -> None:
    """Raise if a loader that can be read only once has to be read several times."""
    if passes > 1 and isinstance(loader, Iterator):
        raise TypeError(
            f"the loader is a {type(loader).__name__}, which can be read only once, but {passes} passes are needed: "
            "pass a DataLoader or a list"
        )


def _built(inputs: Any, label: Any) -> Batch:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = {str(key): value for key, value in inputs.items()}
    elif isinstance(inputs, Tensor | np.ndarray):
        args = (inputs,)
    elif isinstance(inputs, tuple | list):
        args = tuple(inputs)
    else:
        raise TypeError(f"the model's input must be a tensor, but the loader gave {_kind(inputs)}. {_HELP}")
    for key, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, np.ndarray):
            raise TypeError(f"input {key!r} is {_kind(value)}; give tensors, for instance with torch.from_numpy")
    first = next(leaves((args, kwargs), Tensor), None)
    if first is None:
        raise TypeError(f"the loader gave {_kind(inputs)} without a tensor among the inputs. {_HELP}")
    if first.ndim == 0:
        raise ValueError("the model's input is a tensor without dimensions; its first dimension must count the samples")
    if label is not None:
        label = _label(label, len(first))
    return Batch(args, kwargs, label)


def _is_pair(x: Any, y: Any) -> bool:
    """Whether two items are inputs with their labels rather than two batches, which would have one number of axes."""
    return isinstance(x, Tensor) and isinstance(y, Tensor) and x.ndim > y.ndim > 0 and len(x) == len(y)


def _label(label: Any, n: int) -> Tensor:
    try:
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


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _changed(part, change) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_changed(part, change) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(_changed(part, change) for part in value)
    return value


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a numpy array of shape {value.shape}"
    if isinstance(value, tuple | list):
        inside = ", ".join(type(part).__name__ for part in value[:5])
        return f"a {type(value).__name__} of {len(value)} ({inside}{', …' if len(value) > 5 else ''})"
    if dataclasses.is_dataclass(value) or not isinstance(value, str | int | float):
        return f"an object of type {type(value).__name__}"
    return f"{value!r:.60} ({type(value).__name__})"
