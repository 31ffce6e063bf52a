"""Processes that work together: what each knows of its shard is summed or gathered, and an error of one ends all."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.nn.functional import pad

T = TypeVar("T")
MEET = timedelta(minutes=5)  # that processes wait for each other to call
WORK = timedelta(hours=12)  # that they wait for the slowest shard; a process that ends is noticed at once


class Team:
    """Processes with a connection of their own over main memory, whatever backend their group has; or one alone."""

    rank, size = 0, 1
    _group: Any = None

    def connect(self, group: Any) -> None:
        """Wait until all processes of a group of `torch.distributed`, None for all there are, have called this."""
        ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
        self.rank, self.size = distributed.get_rank(group), len(ranks)
        store = distributed.distributed_c10d._get_default_store()
        calls = distributed.PrefixStore(f"hidden_uncertainty/{ranks}", store)
        here = distributed.PrefixStore(str(calls.add(str(self.rank), 1)), calls)
        keys = [f"here {rank}" for rank in range(self.size)]
        here.set(keys[self.rank], "")
        try:
            here.wait(keys, MEET)
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not here.check([key])]
            raise RuntimeError(
                f"process {missing} of {self.size} did not call the same method within {MEET.seconds} s. All processes "
                "of a group must call it, each with its own shard; for a fit in this process alone, pass "
                "process_group=False."
            ) from error
        self._group = distributed.ProcessGroupGloo(here, self.rank, self.size, WORK)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, the same bits in each."""
        if self.size == 1:
            return tensor
        total = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        self._wait(self._group.allreduce([total]))
        return total.to(tensor.device)

    def all(self, thing: T) -> list[T]:
        """What each process has, in the order of ranks: text, numbers, tensors, or tuples, lists and dicts of these."""
        if self.size == 1:
            return [thing]
        mine, sizes = self._packed(thing)
        found = self._gathered(pad(mine, (0, max(sizes) - len(mine))))
        return [_unpacked(part[:size]) for part, size in zip(found, sizes, strict=True)]

    def first(self, thing: T) -> T:
        """What the first process has."""
        if self.size == 1:
            return thing
        mine, sizes = self._packed(thing if self.rank == 0 else None)
        room = mine if self.rank == 0 else _room(sizes[0])
        options = distributed.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self._wait(self._group.broadcast([room], options))
        return thing if self.rank == 0 else _unpacked(room)

    def to_first(self, thing: T) -> list[T]:
        """What each process has, as `all`, for the first one; others get an empty list."""
        if self.size == 1:
            return [thing]
        mine, sizes = self._packed(thing if self.rank else None)
        if self.rank:
            self._wait(self._group.send([mine], 0, self.rank))
            return []
        found = [thing]
        for rank in range(1, self.size):
            room = _room(sizes[rank])
            self._wait(self._group.recv([room], rank, rank))
            found.append(_unpacked(room))
        return found

    def same(self, what: str, value: Any) -> None:
        """Raise unless all processes have the same."""
        others = self.all(value)
        wrong = [rank for rank, other in enumerate(others) if other != others[0]]
        if wrong:
            raise ValueError(f"{what} of process {wrong[0]} is {others[wrong[0]]}, that of process 0 {others[0]}.")

    @contextmanager
    def step(self) -> Iterator[None]:
        """Work that each process does by itself, without the others: an error in one is an error in all."""
        if self.size == 1:
            yield
            return
        error: BaseException | None = None
        try:
            yield
        except BaseException as found:
            error = found
        said = self.all(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        failed = [f"process {rank} of {self.size} failed: {text}" for rank, text in enumerate(said) if text is not None]
        if failed:
            raise RuntimeError("; ".join(failed))

    def _packed(self, thing: Any) -> tuple[Tensor, list[int]]:
        """A thing as bytes, and how many those of each process are."""
        buffer = io.BytesIO()
        torch.save(thing, buffer)
        mine = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        return mine, [int(size) for size in self._gathered(torch.tensor([len(mine)], device="cpu"))]

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        self._wait(self._group.allgather([found], [tensor]))
        return found

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise RuntimeError(f"another process of the group has ended, or cannot be reached: {error}") from error


_current: ContextVar[Team | None] = ContextVar("team", default=None)


def team() -> Team:
    """Who works together in the block that this is called in."""
    return _current.get() or Team()


@contextmanager
def together(process_group: Any = None) -> Iterator[Team]:
    """Have all processes of a group work together for a block, which each of them must enter.

    None is all processes of `torch.distributed`, where it is in use; False is this process alone.
    """
    if (around := _current.get()) is not None:
        yield around
        return
    crew, alone = Team(), not distributed.is_available() or not distributed.is_initialized()
    if alone and process_group not in (None, False):
        raise RuntimeError("process_group= was given, but torch.distributed is not in use: leave it out.")
    size = 1 if alone or process_group is False else distributed.get_world_size(process_group)
    if size < 1:
        raise ValueError("this process is not in the process_group that was given: only its members may call.")
    if size > 1:
        crew.connect(process_group)
    token = _current.set(crew)
    try:
        yield crew
    finally:
        _current.reset(token)
        crew._group = None  # whatever still refers to the team: others that wait for this process then stop


def _room(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8, device="cpu")


def _unpacked(content: Tensor) -> Any:
    """What another process of the same group packed."""
    return torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True, map_location="cpu")
