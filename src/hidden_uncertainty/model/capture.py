"""Run the user's model and read named layers on the way, leaving no trace: the only code that touches hooks."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ..precision import put_back_after
from ._evaluation import evaluated

Tap = Callable[[Any], Any]
"""Receives exactly what a layer returned, inside the hook; what it returns is kept. It must reduce or copy, never keep
a view: the next layer may write into the same memory."""

Callback = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Receives what a layer returned and its inputs; what it returns, unless None, goes on to the next layer instead."""

T = TypeVar("T")
_PARALLEL = (DataParallel, DistributedDataParallel)
_WRAPPED = ("module", "_orig_mod")  # where wrappers hold their module

_running = threading.local()  # its `call` is the one that this thread is in
_process = object()  # another one after a fork


def run(
    model: nn.Module,
    taps: Mapping[str, Tap],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    before: Mapping[str, Tap] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Run the model once in evaluation mode without gradients, and give each named layer's output to its tap.

    Whatever happens, the model is afterwards what it was: hooks, modes, gradient flags, gradients, weights and buffers.
    An interrupt leaves at most a hook that does nothing, until the next call removes it. Threads run a model in
    evaluation mode side by side; other models take turns, as they have to be changed for the time of the call. Compiled
    models and (distributed) data parallel wrappers are seen through.

    Taps of `before` are given the tuple of a layer's inputs, just before it runs; what the others return comes back by
    name, beside the model's output. The name `""` is the model itself.
    """
    kept: dict[tuple[str, bool], list[Any]] = {}  # of each call of a layer, of which only the first is tapped

    def tapped(name: str, tap: Tap, *, early: bool = False) -> Callback:
        own = kept[name, early] = []

        def callback(output: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            own.append(None if own else tap((*inputs, *named.values()) if early else output))

        return callback

    after = {name: tapped(name, tap) for name, tap in taps.items()}
    first = {name: tapped(name, tap, early=True) for name, tap in (before or {}).items()}
    output = lend(model, after, lambda inner: inner(*args, **kwargs), before=first)
    if any(len(own) != 1 for own in kept.values()):
        raise RuntimeError(_not_once({name: len(own) for (name, _), own in kept.items()}))
    return output, {name: kept[name, False][0] for name in taps}


def lend(
    model: nn.Module,
    callbacks: Mapping[str, Callback],
    work: Callable[[nn.Module], T],
    *,
    before: Mapping[str, Callback] | None = None,
    exclusive: bool = False,
) -> T:
    """Lend the model, free of wrappers, to `work`; each named layer's outputs go to its callback, in this thread alone.

    Meanwhile it is in evaluation mode without gradients; afterwards it is what it was before. Callbacks of `before`
    come before a layer runs, with None as the output. `exclusive` lets no other thread change a model meanwhile,
    because `work` changes something that they share.
    """
    layers = find(model, [*callbacks, *(before or ())])
    scripted = [name for name, layer in layers.items() if isinstance(layer, torch.jit.ScriptModule)]
    if scripted:
        raise RuntimeError(
            f"{_quoted(scripted)} belongs to a TorchScript module, whose layers cannot be read. Use the original "
            "nn.Module that it was scripted or traced from."
        )
    root, call, around = _unwrap(model), _Call(), getattr(_running, "call", None)
    call.process = _process
    gradients, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()

    def hooked() -> T:
        for name, callback in callbacks.items():
            hook = _Hook(call, callback)  # put there by hand, as an interrupt could cut the method of torch in two
            layers[name]._forward_hooks_with_kwargs[hook] = True  # type: ignore[index]
            layers[name]._forward_hooks[hook] = hook  # type: ignore[index]
        for name, callback in (before or {}).items():
            hook = _Hook(call, callback)
            layers[name]._forward_pre_hooks_with_kwargs[hook] = True  # type: ignore[index]
            layers[name]._forward_pre_hooks[hook] = hook  # type: ignore[index]
        return work(root)

    def lent() -> T:
        torch._C._set_grad_enabled(False)
        if torch._C._is_any_autocast_enabled():
            # Older torch keeps a weight cast under no_grad in autocast's cache, without its gradient, and the
            # user's own forward pass later in the same autocast block would train nothing (pytorch issue 112583).
            torch.set_autocast_cache_enabled(False)
        _running.call = call
        return evaluated(root, hooked, exclusive=exclusive)

    def put_back() -> None:
        _running.call = around
        call.process = None
        torch._C._set_grad_enabled(gradients)
        torch.set_autocast_cache_enabled(cache)
        for layer in layers.values():
            _sweep(layer)

    return put_back_after(lent, put_back)


def find(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Module]:
    """Find layers by their dotted names.

    Wrappers are seen through: names are those of the wrapped model, with or without `module.` and `_orig_mod.`, also
    once the wrapper is gone. The name `""` is the model itself.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    found = {}
    for name in names:
        layer = _resolve(model, name)
        if layer is None:
            near = nearest(name, [known for known, _ in named(model)])
            raise ValueError(
                f"layer {name!r} is not in the model; nearest names: {_quoted(near)}. "
                "List them with layers(model, example)."
            )
        found[name] = layer
    return found


def named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each layer once with its dotted name, as `find` understands it: `named_modules()` without the wrappers."""
    seen: set[nn.Module] = set()
    stack: list[tuple[str, nn.Module]] = [("", model)]
    while stack:
        name, module = stack.pop()
        module = _unwrap(module)
        if module not in seen:
            seen.add(module)
            yield name, module
            children = [(key, child) for key, child in module._modules.items() if child is not None]
            stack.extend((f"{name}.{key}" if name else key, child) for key, child in reversed(children))


def nearest(name: str, known: Iterable[str], count: int = 4) -> list[str]:
    """The known names most likely meant, at most `count`: those with the same ending, then those spelled alike."""
    known = [other for other in known if other]
    ending = [other for other in known if other.endswith(f".{name}") or name.endswith(f".{other}")]
    alike = difflib.get_close_matches(name, known, n=count, cutoff=0.4)
    return list(dict.fromkeys([*ending, *(alike or known)]))[:count]


def device_of(model: nn.Module) -> torch.device | None:
    """Return the device of the model's first parameter or buffer, or `None` when it has neither."""
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), None)


class _Call:
    process: object = None  # also once it has ended


class _Hook:
    """Calls back before or after a layer runs in the thread of its call, while that lasts; it is its own key."""

    def __init__(self, call: _Call, callback: Callback) -> None:
        self.call, self.callback = call, callback

    def __call__(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
        if getattr(_running, "call", None) is not self.call:  # the user's own call in another thread, or a dead hook
            return None
        kwargs, output = rest if len(rest) == 2 else (rest[0], None)  # there is no output yet before a layer runs
        gradients = torch.is_grad_enabled()  # which the model may have switched on for itself, as autocast
        try:
            torch._C._set_grad_enabled(False)
            with torch._C._DisableAutocast():
                return self.callback(output, args, kwargs)
        finally:
            torch._C._set_grad_enabled(gradients)


def _sweep(layer: nn.Module) -> None:
    """Remove the hooks of calls that have ended, also of those that a fork or an interrupt left behind."""
    after = (layer._forward_hooks, layer._forward_hooks_with_kwargs)
    for hooks in (*after, layer._forward_pre_hooks, layer._forward_pre_hooks_with_kwargs):
        for key in list(hooks) if hooks else ():  # a copy in one step, as other threads add theirs
            if isinstance(key, _Hook) and key.call.process is not _process:
                hooks.pop(key, None)


def _after_fork() -> None:
    global _process
    _process = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _unwrap(module: nn.Module) -> nn.Module:
    """What compiled and data parallel wrappers hold; a module without a wrapper as it is."""
    while (compiled := "_orig_mod" in module._modules) or isinstance(module, _PARALLEL):
        module = getattr(module, "_orig_mod" if compiled else "module")
    return module


def _resolve(model: nn.Module, name: str) -> nn.Module | None:
    module = _unwrap(model)
    for part in name.split(".") if name else ():
        child = module._modules[part] if part in module._modules else None  # noqa: SIM401 - TorchScript's has no get
        if child is not None:
            module = _unwrap(child)
        elif part not in _WRAPPED:
            return None
    return module


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _not_once(calls: Mapping[str, int]) -> str:
    never = [name for name, count in calls.items() if count == 0]
    often = [name for name, count in calls.items() if count > 1]
    text = []
    if never:
        text.append(
            f"not called while the model ran: {_quoted(never)}. A layer may be called under a condition, have its "
            "forward or its weights used directly instead of being called, or run inside a TorchScript or compiled "
            "graph. Choose another; layers(model, example) shows which are called."
        )
    if often:
        counts = ", ".join(f"{name!r} ({calls[name]} times)" for name in often)
        holders = [name.rpartition(".")[0] for name in often if "." in name]
        hint = f", for instance the one that holds it: {_quoted(dict.fromkeys(holders))}" if holders else ""
        text.append(
            f"called more than once, so without one output: {counts}. Choose a module that is called once{hint}."
        )
    return "; ".join(text)
