"""Some inputs are read twice, among others and alone: their scores differ by rounding, and so would ties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..extract import Features, Reading, Unseen
from ..model.batches import Adapter, Batch, batches, leaves
from ..notes import note

INPUTS = 150  # read again, at most; of a long loader, at least 60
TOGETHER = 10  # of one batch at least, where it has them
BYTES = 1 << 28  # kept of them, at most

Rows = TypeVar("Rows", Batch, Features)


class Kept:
    """A loader some of whose inputs are kept, as copies, to be read again.

    They are spread over all batches, as those of one class may come together and differ from the others by more.

    Example:
        >>> kept = Kept([torch.zeros(80, 2), torch.zeros(80, 2)])
        >>> [len(batch) for batch in kept], [len(batch) for batch in kept.batches]
        ([80, 80], [40, 40])
    """

    def __init__(self, loader: Iterable[Any], unpack: Adapter | None = None, dtype: torch.dtype | None = None) -> None:
        self.loader, self.unpack, self.dtype = loader, unpack, dtype
        self.batches: list[Batch] = []

    def __iter__(self) -> Iterator[Batch]:
        self.batches, every = [], 1
        for place, batch in enumerate(batches(self.loader, self.unpack, dtype=self.dtype)):
            if place % every == 0 and len(batch):
                each = sum(tensor.nbytes for tensor in leaves((batch.args, batch.kwargs), Tensor)) // len(batch)
                room = max(1, min(INPUTS, BYTES // max(each, 1)))
                share = min(room, max(TOGETHER, room // (len(self.batches) + 1)))
                self.batches = [_some(part, share).clone() for part in (*self.batches, batch)]
                if sum(map(len, self.batches)) > room:
                    self.batches, every = self.batches[::2], 2 * every
            yield batch

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]


def read_again(
    kept: Kept | None, unseen: Unseen, read: Callable[[Batch], Reading]
) -> Iterator[tuple[Reading, list[Reading]]]:
    """Readings of some inputs together, and of each alone, as `read` runs the network on a batch.

    Without inputs, or where the network cannot be run on one, rows of the features are taken apart instead.
    """
    try:
        for batch in [] if kept is None else kept.batches:
            # A copy, as networks may write into their inputs.
            yield read(batch.clone()), [_single(read(batch[i : i + 1])) for i in range(len(batch))]
        if kept is not None:
            return
    except Exception as error:  # whatever a network makes of a single input
        note(
            f"the network does not take a single input ({type(error).__name__}: {error}), so that how far scores "
            "depend on the batch is measured without it."
        )
    if isinstance(unseen, Features) and len(unseen):
        some = _some(unseen, INPUTS)
        yield next(some.readings()), [next(some[i : i + 1].readings()) for i in range(len(some))]


def _some(inputs: Rows, count: int) -> Rows:
    """At most so many of them, evenly spread."""
    return inputs[:: -(-len(inputs) // count)]


def _single(reading: Reading) -> Reading:
    if len(reading.prediction.value) != 1:
        raise ValueError(f"predictions {tuple(reading.prediction.value.shape)} for one input")
    return reading
