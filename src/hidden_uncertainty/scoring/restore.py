"""What was fitted, from a file: sizes are checked before anything is allocated, and content before it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..io import expect

M = TypeVar("M", bound=nn.Module)


class Unallocated(TorchFunctionMode):
    """Tensors that are made in this block have a shape and take no memory.

    Args:
        limit: how many, roughly: a header may ask for modules without end.

    Example:
        >>> import torch
        >>> with Unallocated(limit=1):
        ...     torch.zeros(10**12, device="cpu").device
        device(type='meta')
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = 4 * limit + 1000

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, with another device where it is given one."""
        if not kwargs or "device" not in kwargs:
            return function(*args, **(kwargs or {}))
        self._left -= 1
        expect(self._left > 0, "its header asks for more tensors than it holds")
        return function(*args, **{**kwargs, "device": "meta"})


def restore(build: Callable[[], M], tensors: Mapping[str, Tensor]) -> M:
    """The module that a header describes, with the tensors of its file.

    A module may have a method `check`, which raises a ValueError where its tensors cannot be what was fitted, and a
    tuple `infinite` with the names of tensors that are not always finite.

    Args:
        build: makes the module.
        tensors: its state.
    """
    with Unallocated(len(tensors)):
        module = build()
    expected = module.state_dict()
    for name in {**expected, **tensors}:
        said, found = (_describe(state.get(name)) for state in (expected, tensors))
        expect(said == found, f"by its header, {name!r} is {said}, and it holds {found}")
    module.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
    for place, part in module.named_modules():
        for name, tensor in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            assert not tensor.is_meta, f"{place}.{name} is not in the state, and not made when it is loaded"
            free = name in getattr(part, "infinite", ()) or name in part._non_persistent_buffers_set
            expect(free or tensor.isfinite(), f"{place}.{name} has numbers that are not finite")
        if callable(check := getattr(part, "check", None)):
            check()
    return module


def _describe(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
