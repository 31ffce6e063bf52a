"""Modules that files can hold: how they are described, and built again from what a file says and holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .io import expect

M = TypeVar("M", bound=nn.Module)


class Stored(nn.Module):
    """A module that is its arguments, which are attributes of the same names, and its buffers.

    A subclass may have a method `check`, which raises a ValueError where the buffers cannot be what was fitted, and a
    tuple `infinite` with the names of those that are not always finite. What `_prepare` makes of them is not saved.
    """

    def config(self) -> dict[str, Any]:
        """The arguments, and precision and shape of each buffer, ready for JSON."""
        names = signature(type(self)).parameters
        lost = [name for name in names if not hasattr(self, name)]
        if lost:
            raise NotImplementedError(f"{type(self).__name__} cannot be saved: it needs an attribute {lost[0]!r}.")
        return {**{name: getattr(self, name) for name in names}, "fitted": shapes_of(self.state_dict()) or None}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """What `config` describes; its buffers are zero until they are loaded."""
        made = cls(**{name: value for name, value in config.items() if name != "fitted"})
        shapes = config["fitted"] or {}
        made._build(shapes)
        known = dict(made.named_parameters())
        for name, (dtype, *shape) in shapes.items():
            if name not in known:
                place, _, own = name.rpartition(".")
                part, zeros = made.get_submodule(place), torch.zeros(shape, dtype=getattr(torch, dtype), device="cpu")
                expect(own in part._buffers, f"{cls.__name__} has no buffer {name!r}")
                setattr(part, own, zeros)
        return made

    def _build(self, shapes: Mapping[str, list[Any]]) -> None:
        """Make the parts that a fit makes, before their buffers are."""

    def _prepare(self) -> None:
        """Make what is read of the buffers; called whenever they were loaded, moved or cast."""

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._prepare()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)
        self._prepare()
        return self


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Precision and shape of each tensor, ready for JSON."""
    return {name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape] for name, tensor in state.items()}


class Unallocated(TorchFunctionMode):
    """Tensors that are made in this block have a shape and take no memory; a header may ask for them without end."""

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
    """The module that a header describes, with the tensors of its file, whose sizes are checked before any are made."""
    with Unallocated(len(tensors)):
        module = build()
    expected = module.state_dict()
    for name in {**expected, **tensors}:
        both = (state.get(name) for state in (expected, tensors))
        said, found = ("missing" if part is None else f"{tuple(part.shape)} of {part.dtype}" for part in both)
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
