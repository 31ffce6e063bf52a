"""Dropout for networks that were built without it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from ..capture import find


class WithDropout(nn.Module):
    """A module followed by dropout, made by `insert_dropout`; its other attributes are the module's.

    In a `state_dict` it has the names of the module alone, so that weights go to and fro between a model with dropout
    and the one without.
    """

    def __init__(self, module: nn.Module, p: float) -> None:
        super().__init__()
        self.module, self.dropout = module, nn.Dropout(p)
        self.training = self.dropout.training = module.training
        self.register_state_dict_post_hook(_shorten)
        self.register_load_state_dict_pre_hook(_lengthen)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The module's output, with dropout."""
        output = self.module(*args, **kwargs)
        if not isinstance(output, Tensor):
            raise TypeError(
                f"dropout was inserted after a {type(self.module).__name__}, which returns a {type(output).__name__}, "
                "not a tensor: choose another module."
            )
        return self.dropout(output)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def insert_dropout(
    model: nn.Module, p: float, *, after: Literal["linear"] | type | Sequence[str] = "linear"
) -> nn.Module:
    """A copy of the model with dropout after chosen modules, to be trained (or trained on) and given to `MCDropout`.

    The model itself is unchanged. In the copy each chosen module is inside a `WithDropout`, under its own name; the
    names in the `state_dict` stay as they were.

    Args:
        model: any `nn.Module`.
        p: the share of activations to drop.
        after: `"linear"`: all `nn.Linear` but the last, which gives the output; a type: all modules of it, such as the
            blocks of a residual network; or names of modules.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> insert_dropout(model, 0.1)[0].dropout
        Dropout(p=0.1, inplace=False)
        >>> insert_dropout(model, 0.1).load_state_dict(model.state_dict())
        <All keys matched successfully>
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is the share of activations to drop, at least 0 and less than 1, not {p}.")
    twin = copy.deepcopy(find(model, [""])[""])
    wrapped = {module: WithDropout(module, p) for module in _chosen(twin, after)}
    for parent in list(twin.modules()):
        for key, child in parent._modules.items():
            if child in wrapped:
                parent._modules[key] = wrapped[child]
    return wrapped.get(twin, twin)


def _chosen(model: nn.Module, after: Any) -> list[nn.Module]:
    if isinstance(after, type):
        modules = [module for module in model.modules() if isinstance(module, after)]
        if not modules:
            raise ValueError(f"the model has no {after.__name__} to insert dropout after.")
        return modules
    if isinstance(after, str):
        if after != "linear":
            raise ValueError(
                f"after must be 'linear', a type or a list of names, not {after!r}; for one name: [{after!r}]."
            )
        # Attention uses the weights of its own linear layers without calling them.
        inside = {
            part for module in model.modules() if isinstance(module, nn.MultiheadAttention) for part in module.modules()
        }
        linear: list[nn.Module] = [
            module for module in model.modules() if isinstance(module, nn.Linear) and module not in inside
        ]
        if len(linear) < 2:
            raise ValueError(
                f"the model has {len(linear)} nn.Linear, and after the last there is no dropout: say where with "
                "after=, a type or a list of names."
            )
        return linear[:-1]
    if not after:
        raise ValueError("after names no module to insert dropout after.")
    return list(find(model, after).values())


def _shorten(layer: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}module.")]:
        state[prefix + key.removeprefix(f"{prefix}module.")] = state.pop(key)


def _lengthen(layer: nn.Module, state: dict[str, Any], prefix: str, *details: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}module.{key.removeprefix(prefix)}"] = state.pop(key)
