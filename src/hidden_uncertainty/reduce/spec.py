"""What is asked of a reduction, and its part that needs no fit: the shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..io import plain

How = Literal["flatten", "channels", "tokens", "token", "project"]


@dataclass(frozen=True)
class Reduce:
    """How a layer's output becomes a vector of at most `max_dim` numbers.

    First the shape, then, when more than `max_dim` numbers remain, their principal components:

    ============  ==============================  ===========================================================
    `how`         takes                           gives
    ============  ==============================  ===========================================================
    `"flatten"`   (n, ...)                        all numbers of the output, as in the paper
    `"channels"`  (n, C, ...), channels first     (n, C), the mean over positions: Conv1d, Conv2d, Conv3d
    `"tokens"`    (n, ..., W), channels last      (n, W), the mean over positions: transformers, Swin
    `"token"`     (n, T, W)                       (n, W), the one token of index `token`, such as the class token
    `"project"`   (n, ...)                        flattened, then a random orthonormal projection instead of PCA
    ============  ==============================  ===========================================================

    There is no `"mean"`: (n, a, b) may be channels x length or tokens x width, so the name says which axis stays.
    For a two-dimensional output (n, D), `"channels"` and `"tokens"` keep all D numbers.

    Args:
        how: see the table.
        max_dim: how many numbers are kept per input at most; `None` keeps all.
        token: which token, for `how="token"`; negative counts from the end.
        select: which tensor, when the layer gives a tuple (its index) or a dict (its key).
        residual: append the logarithm of the energy that the projection drops as one more number, so that it is part of
            the density. No effect where nothing is dropped.

    Example:
        >>> Reduce("channels").flat(torch.ones(8, 64, 7, 7)).shape
        torch.Size([8, 64])
        >>> Reduce.from_dict(Reduce("token", token=-1).to_dict()).token
        -1
    """

    how: How = "flatten"
    max_dim: int | None = 512
    token: int = 0
    select: int | str | None = None
    residual: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        if self.how not in get_args(How):
            hint = (
                " For a mean, say which axis stays: 'channels' of (n, C, ...), 'tokens' of (n, ..., W)."
                if self.how == "mean"
                else ""
            )
            known = ", ".join(map(repr, get_args(How)))
            raise ValueError(f"reduce (or Reduce(how=)) must be one of {known}, got {self.how!r}.{hint}")
        if self.max_dim is not None and (not _is_int(self.max_dim) or self.max_dim < 1):
            raise ValueError(
                f"max_dim must be a whole number of at least 1, or None to keep all, got {self.max_dim!r}."
            )
        if self.max_dim is None and self.how == "project":
            raise ValueError("reduce='project' needs max_dim, the dimension to project to; use 'flatten' to keep all.")
        if not _is_int(self.token):
            raise ValueError(f"token must be a whole number, got {self.token!r}.")
        if self.select is not None and not _is_int(self.select) and not isinstance(self.select, str):
            raise ValueError(f"select must be an index, a key or None, got {self.select!r}.")
        if not isinstance(self.residual, bool):
            raise ValueError(f"residual must be True or False, got {self.residual!r}.")

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reduce:
        """The inverse of `to_dict`."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"Reduce has no {', '.join(map(repr, unknown))}: it was written by another version.")
        return cls(**values)

    def width(self, shape: tuple[int, ...]) -> int:
        """How many numbers `flat` gives per input, before any reduction; an error when the shape does not fit `how`.

        Args:
            shape: of the activation, samples first.

        Example:
            >>> Reduce("tokens").width((32, 197, 768))
            768
        """
        if len(shape) == 0:
            raise ValueError("expected an activation (n, ...) with the samples first; got a single number.")
        if self.how == "token":
            if len(shape) != 3:
                raise ValueError(f"reduce='token' takes (n, tokens, width), got {_show(shape[1:])}.")
            if not -shape[1] <= self.token < shape[1]:
                raise ValueError(f"token {self.token} is not among the {shape[1]} tokens of {_show(shape[1:])}.")
            return shape[2]
        if self.how in ("flatten", "project") or len(shape) == 1:
            return math.prod(shape[1:])
        return shape[1] if self.how == "channels" else shape[-1]

    def flat(self, activation: Tensor, *, copy: bool = True) -> Tensor:
        """The shape part only: (n, ...) to (n, D), in at least float32.

        Args:
            activation: (n, ...), samples first, floating point.
            copy: `False` may give a view, for immediate use: an in-place ReLU that follows would change it.

        Example:
            >>> flat = Reduce("token", token=-1).flat(torch.ones(2, 3, 4, dtype=torch.bfloat16))
            >>> flat.shape, flat.dtype
            (torch.Size([2, 4]), torch.float32)
        """
        if not activation.is_floating_point():
            raise TypeError(f"expected floating-point activations, got {activation.dtype}.")
        self.width(tuple(activation.shape))
        dtype = activation.dtype if activation.dtype.itemsize >= 4 else torch.float32
        if self.how == "token":
            activation = activation[:, self.token]
        elif self.how == "channels" and activation.ndim > 2:
            activation = activation.flatten(2).mean(2, dtype=dtype)
        elif self.how == "tokens" and activation.ndim > 2:
            activation = activation.flatten(1, -2).mean(1, dtype=dtype)
        activation = activation.unsqueeze(1) if activation.ndim == 1 else activation.flatten(1)
        return activation.to(dtype, copy=copy)

    def check_shape(self, layer: str, fitted: tuple[int, ...], now: tuple[int, ...]) -> None:
        """Raise unless the output of a layer has the shape that was fitted, as far as `how` needs it."""
        if self.how in ("flatten", "project"):
            if fitted == now:
                return
            advice = ", or pool with reduce='channels' or 'tokens', which take any size"
            if len(now) == 2:
                advice = (
                    ", or take one token with reduce='token', or the mean over all with reduce='tokens', which is for "
                    "inputs without padding"
                )
        else:
            axis = slice(0, 1) if self.how == "channels" else slice(-1, None)
            reachable = self.how != "token" or len(now) != 2 or -now[0] <= self.token < now[0]
            if len(fitted) == len(now) and fitted[axis] == now[axis] and reachable:
                return
            advice = ""
        raise ValueError(
            f"layer {layer!r} gave {_show(fitted)} when fitted and {_show(now)} now: "
            f"give inputs of the size used in fitting{advice}."
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _show(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['n', *map(str, shape)])}{'' if shape else ','})"
