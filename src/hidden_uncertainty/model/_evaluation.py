"""A model as in evaluation, whatever it was in before: modes, buffers, compiled code.

A model in evaluation mode is only read. What has to be changed is changed under one lock for the process, since any two
models may share modules.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from ..notes import note
from ..precision import Setting, put_back_after

T = TypeVar("T")

_lock = threading.RLock()  # held while a model is changed
_change: _Change | None = None  # the one being made, and those around it in the same thread
# The modules whose mode is switched now. A set is never changed, and a new one is put here, also an empty one, whenever
# a change begins or ends: who finds the same set before and after looking at modules saw them as the user left them.
_switched: set[nn.Module] = set()
_moving: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()  # names of buffers that a run changes
_told: WeakSet[nn.Module] = WeakSet()  # models whose training mode was noted


def evaluated(model: nn.Module, work: Callable[[], T], *, exclusive: bool = False) -> T:
    """Call `work` while no module is in training mode and compiled code runs as plain Python.

    Buffers that a run changes in evaluation mode too, such as moving averages, are put back. Which do is learnt from a
    module's first run in this process: one that begins to change its buffers later is not noticed. `exclusive` takes
    the lock even where nothing is to change here, because `work` changes something itself.
    """
    before = _switched
    found = _survey(model)
    # Another thread may have the model switched: it then looks like one in evaluation mode, until it is switched back.
    seen_as_left = before is _switched and (not before or before.isdisjoint(found.modules))
    if seen_as_left and not (exclusive or found.training or found.unsettled):
        return _eager.around(work) if found.compiled else work()
    with _lock:
        return _changed(model, work)


def _changed(model: nn.Module, work: Callable[[], T]) -> T:
    found = _survey(model)  # again, as nobody else changes modules now
    if found.training and model not in _told:
        _told.add(model)
        note(
            "the model is in training mode. Each call switches it to evaluation mode and back, also for other threads "
            "that use it meanwhile, and what they set with train() or eval() is undone. Call model.eval() first."
        )
    change = _Change(found, _change)

    def changed() -> T:
        global _change
        _change = change
        change.make()
        result = _eager.around(work) if found.compiled else work()
        change.learn()
        return result

    return put_back_after(changed, change.undo)


class _Survey(NamedTuple):
    modules: set[nn.Module]
    training: list[nn.Module]  # those in training mode
    unsettled: list[nn.Module]  # those whose buffers a run may change
    compiled: bool  # whether anything is


def _survey(model: nn.Module) -> _Survey:
    dynamo = "torch._dynamo" in sys.modules  # importing it takes a second, and without it nothing can be compiled
    training, unsettled, compiled = [], [], False
    modules = set(model.modules())
    for module in modules:
        if getattr(module, "training", False):  # frozen TorchScript has no such attribute
            training.append(module)
        if module._buffers and _moving.get(module) != frozenset():
            unsettled.append(module)
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
            raise RuntimeError(
                f"the model has a {type(module).__name__} that is not initialised, and running it here would change "
                "the model; run the model once on an example first."
            )
        if dynamo and not compiled:
            forward = getattr(module, "forward", None)
            compiled = module._compiled_call_impl is not None or hasattr(forward, "_torchdynamo_orig_callable")
    return _Survey(modules, training, unsettled, compiled)


class _Saved(NamedTuple):
    """A buffer before the run."""

    module: nn.Module
    name: str
    buffer: Tensor | None
    content: Tensor | None

    def moved(self) -> bool:
        """Whether the module has another buffer now, or the buffer another content."""
        return getattr(self.module, self.name, None) is not self.buffer or self._rewritten()

    def restore(self) -> None:
        """In place, as others may hold the tensor too."""
        if getattr(self.module, self.name, None) is not self.buffer:
            setattr(self.module, self.name, self.buffer)
        if self._rewritten():
            assert self.buffer is not None and self.content is not None
            if self.buffer.shape != self.content.shape:
                self.buffer.resize_(self.content.shape)
            self.buffer.copy_(self.content)

    def _rewritten(self) -> bool:
        if self.buffer is None or self.content is None:
            return False
        try:
            return not torch.equal(self.buffer, self.content)
        except RuntimeError:  # a kind of tensor that cannot be compared
            return False


class _Change:
    """What is different about a model while it runs; each step can be repeated where an interrupt cut it short."""

    def __init__(self, found: _Survey, around: _Change | None) -> None:
        self.found, self.around, self.thread, self.undone = found, around, threading.get_ident(), False
        self.saved = [
            _Saved(module, name, buffer, None if buffer is None else buffer.clone())
            for module in found.unsettled
            for name, buffer in module._buffers.items()
            if name in _moving.get(module, (name,))
        ]

    def make(self) -> None:
        global _switched
        _switched = _switched.union(self.found.training)
        # Not eval(): models override it and act on it, for instance by merging adapters into the weights.
        for module in self.found.training:
            module.training = False

    def learn(self) -> None:
        """Remember which buffers moved in a run that went through."""
        moved = {module: set[str]() for module in self.found.unsettled if module not in _moving}
        for saved in self.saved:
            if saved.module in moved and saved.moved():
                moved[saved.module].add(saved.name)
        for module, names in moved.items():
            _moving[module] = frozenset(names)

    def undo(self) -> None:
        global _change, _switched
        if self.undone:
            return
        for module in self.found.training:
            module.training = True
        for saved in self.saved:
            saved.restore()
        _switched = set() if self.around is None else _switched.difference(self.found.training)
        _change, self.undone = self.around, True


# Runs compiled code as plain Python, where hooks fire.
_eager = Setting(
    lambda: sys.modules["torch._dynamo.eval_frame"]._stance,
    lambda stance: sys.modules["torch._dynamo.eval_frame"]._set_stance(stance),
    lambda now: None if now.stance == "force_eager" else type(now)("force_eager"),
)


def _after_fork() -> None:
    """The child has only the thread that forked: what others were changing is put back, and their lock is gone."""
    global _lock
    _lock = threading.RLock()
    change = _change
    while change is not None and change.thread != threading.get_ident():
        change.undo()
        change = change.around


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
