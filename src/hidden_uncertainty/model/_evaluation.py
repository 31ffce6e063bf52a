"""A model as in evaluation, whatever it was in before: modes, compiled code, autocast, gradients.

Context managers cost a single input more than its arithmetic does: they are entered only where something is to change.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

AUTOCAST = ("cpu", "cuda", "mps", "xpu")  # devices that may have it


def plainly() -> AbstractContextManager[object]:
    """No gradients and no autocast, which the model may have switched on for itself: densities want neither.

    Example:
        >>> with torch.enable_grad(), plainly():
        ...     torch.is_grad_enabled()
        False
    """
    devices = [device for device in AUTOCAST if torch.is_autocast_enabled(device)]
    return _without(devices) if devices or torch.is_grad_enabled() else nullcontext()


@contextmanager
def _without(devices: list[str]) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def evaluating(model: nn.Module) -> AbstractContextManager[object]:
    """Modules out of training mode, compiled code as plain Python; nothing, at no cost, where nothing is to change.

    Example:
        >>> model = nn.Dropout()
        >>> with evaluating(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    training, compiled = _survey(model)
    autocast = any(map(torch.is_autocast_enabled, AUTOCAST))
    return _changed(training, compiled, autocast) if training or compiled or autocast else nullcontext()


@contextmanager
def _changed(training: list[nn.Module], compiled: bool, autocast: bool) -> Iterator[None]:
    with ExitStack() as stack:
        if compiled:
            stack.enter_context(_eagerly)
        if autocast:
            # Older torch keeps a weight cast under no_grad in autocast's cache, without its gradient, and the
            # user's own forward pass later in the same autocast block would train nothing (pytorch issue 112583).
            stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
            torch.set_autocast_cache_enabled(False)
        # Not eval(): models override it and act on it, for instance by merging adapters into the weights.
        for module in training:
            stack.callback(setattr, module, "training", True)
            module.training = False
        yield


def _survey(model: nn.Module) -> tuple[list[nn.Module], bool]:
    """Return the modules in training mode, and whether anything is compiled."""
    dynamo = "torch._dynamo" in sys.modules  # importing it takes a second, and without it nothing can be compiled
    training, compiled = [], False
    seen = {model}
    modules = [model]
    for module in modules:  # which grows on the way
        if getattr(module, "training", False):  # frozen TorchScript has no such attribute
            training.append(module)
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
            raise RuntimeError(
                f"the model has a {type(module).__name__} that is not initialised, and running it here would change "
                "the model; run the model once on an example first."
            )
        if dynamo and not compiled:
            forward = getattr(module, "forward", None)
            compiled = module._compiled_call_impl is not None or hasattr(forward, "_torchdynamo_orig_callable")
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                modules.append(child)
    return training, compiled


class _Eagerly:
    """Runs compiled code as plain Python, where hooks fire.

    The switch is the whole process's: the first thread that needs it sets it and the last puts it back.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._users = 0
        self._stance: Any = None

    def __enter__(self) -> None:
        with self._guard:
            if self._users == 0:
                self._stance = torch.compiler.set_stance("force_eager")
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._guard:
            self._users -= 1
            if self._users == 0:
                self._stance.__exit__(None, None, None)


_eagerly = _Eagerly()
