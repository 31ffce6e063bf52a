"""What is asked of a reduction: how a layer's output becomes a vector, without anything fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..io import plain
from ..model.outputs import Key

How = Literal["flatten", "channels", "tokens", "token", "project"]
Pool = Literal["mean", "max", "last"]
Read = Literal["output", "input"]


@dataclass(frozen=True)
class Reduce:
    """How a layer's output becomes a vector of at most `max_dim` numbers.

    First the shape, then, when more than `max_dim` numbers remain, their principal components:

    ============  ==============================  ===========================================================
    `how`         takes                           gives
    ============  ==============================  ===========================================================
    `"flatten"`   (n, ...)                        all numbers of the output, as in the paper
    `"channels"`  (n, C, ...), channels first     (n, C), the mean over positions: Conv1d, Conv2d, Conv3d
    `"tokens"`    (n, ..., W), channels last      (n, W), the mean over positions: transformers, Swin; or see `pool`
    `"token"`     (n, T, W)                       (n, W), the one token of index `token`, such as the class token
    `"project"`   (n, ...)                        flattened, then a random orthonormal projection instead of PCA
    ============  ==============================  ===========================================================

    There is no `"mean"`: (n, a, b) may be channels x length or tokens x width, so the name says which axis stays.
    For a two-dimensional output (n, D), `"channels"` and `"tokens"` keep all D numbers.

    Args:
        how: see the table.
        max_dim: how many numbers are kept per input at most; `None` keeps all.
        token: which token, for `how="token"`; negative counts from the end.
        select: which tensor, when the layer gives a tuple (its index) or a dict (its key); a tuple leads further in:
            `(1, 0)` is the last state of an LSTM, which gives (states, (last state, last cell)).
        residual: append the logarithm of the energy that the projection drops as one more number, so that it is part of
            the density. No effect where nothing is dropped.
        normalise: bring each vector to length one, before principal components are taken.
        read: the layer's `"output"`, or its `"input"`: what a network's last layer reads is often given by none.
        pool: what `how="tokens"` takes of each number: the `"mean"` over tokens, the maximum, or the last token.
        mask: which input of the network says what tokens are real, by its name or position: (n, tokens), zero for
            padding, or how many there are, (n,). A `"~"` before the name is for masks that are zero for real tokens.
            `"attention_mask"` may be missing; None counts padding. Packed sequences have their own.
        batch_axis: which axis counts the inputs, such as 1 for recurrent layers with the time first; packed sequences
            know their own.

    Example:
        >>> Reduce("channels").flat(torch.ones(8, 64, 7, 7)).shape
        torch.Size([8, 64])
    """

    how: How = "flatten"
    max_dim: int | None = 512
    token: int = 0
    select: Key | None = None
    residual: bool = False
    normalise: bool = False
    read: Read = "output"
    pool: Pool = "mean"
    mask: str | int | None = "attention_mask"
    batch_axis: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        if self.how not in get_args(How):
            known, hint = ", ".join(map(repr, get_args(How))), ""
            if self.how == "mean":
                hint = " For a mean, say which axis stays: 'channels' of (n, C, ...), 'tokens' of (n, ..., W)."
            raise ValueError(f"reduce (or Reduce(how=)) must be one of {known}, got {self.how!r}.{hint}")
        if self.max_dim is not None and (not is_int(self.max_dim) or self.max_dim < 1):
            raise ValueError(
                f"max_dim must be a whole number of at least 1, or None to keep all, got {self.max_dim!r}."
            )
        if self.max_dim is None and self.how == "project":
            raise ValueError("reduce='project' needs max_dim, the dimension to project to; use 'flatten' to keep all.")
        for name in ("token", "batch_axis"):
            if not is_int(getattr(self, name)):
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}.")
        if isinstance(self.select, list):  # as JSON has it
            object.__setattr__(self, "select", tuple(self.select))
        steps = self.select if isinstance(self.select, tuple) else (self.select,)
        if self.select is not None and not (steps and all(is_int(step) or isinstance(step, str) for step in steps)):
            raise ValueError(f"select must be an index, a key, a tuple of these or None, got {self.select!r}.")
        if self.mask is not None and not is_int(self.mask) and not isinstance(self.mask, str):
            raise ValueError(f"mask must name an input of the network, or be its position or None, got {self.mask!r}.")
        if self.pool not in get_args(Pool) or (self.pool != "mean" and self.how != "tokens"):
            raise ValueError(f"pool must be 'mean', or with how='tokens' 'max' or 'last', got {self.pool!r}.")
        for name in ("residual", "normalise"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.read not in get_args(Read):
            raise ValueError(f"read must be 'output' or 'input', got {self.read!r}.")

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        select = list(self.select) if isinstance(self.select, tuple) else self.select
        return {**asdict(self), "select": select}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reduce:
        """The inverse of `to_dict`."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"Reduce has no {', '.join(map(repr, unknown))}: it was written by another version.")
        return cls(**values)

    def width(self, shape: tuple[int, ...]) -> int:
        """How many numbers `flat` gives per input of an activation of this shape; an error when it does not fit `how`.

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

        `copy=False` may give a view, for immediate use: an in-place ReLU that follows would change it.
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
            activation = self.pooled(activation)
        activation = activation.unsqueeze(1) if activation.ndim == 1 else activation.flatten(1)
        if self.normalise:
            return _unit(activation.to(dtype))
        return activation.to(dtype, copy=copy)

    def pooled(self, activation: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens (n, ..., W) as one of each input, (n, W): of those that a mask (n, ...) calls real; NaN without any.

        Example:
            >>> Reduce("tokens").pooled(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]]))
            tensor([[2.]])
        """
        x = activation.flatten(1, -2)  # (n, T, W)
        dtype = torch.promote_types(x.dtype, torch.float32)
        if mask is None:
            return x.mean(1, dtype=dtype) if self.pool == "mean" else x.amax(1) if self.pool == "max" else x[:, -1]
        real = mask.flatten(1).to(x.device)[:, :, None] != 0  # (n, T, 1)
        if self.pool == "mean":
            found = x.masked_fill(~real, 0).sum(1, dtype=dtype) / real.sum(1)
        elif self.pool == "max":
            found = x.masked_fill(~real, -math.inf).amax(1)
        else:
            last = (real * torch.arange(x.shape[1], device=x.device)[:, None]).amax(1)  # (n, 1)
            found = x.take_along_dim(last[:, None], 1)[:, 0]
        return found.masked_fill(~real.any(1), math.nan)

    def check_shape(self, layer: str, fitted: tuple[int, ...], now: tuple[int, ...]) -> None:
        """Raise unless the output of a layer has the shape that was fitted, as far as `how` needs it."""
        if self.how in ("flatten", "project"):
            if fitted == now:
                return
            advice = ", or pool with reduce='channels' or 'tokens', which take any size"
            if len(now) == 2:
                advice = (
                    ", or take one token with reduce='token', or the mean over all with reduce='tokens', which leaves "
                    "out padding where a mask says so (Reduce(mask=))"
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


def _unit(x: Tensor) -> Tensor:
    """Rows (n, D) divided by their lengths; zeros stay. By the largest number first, so that no square underflows."""
    tiny = torch.finfo(x.dtype).tiny
    x = x / x.abs().amax(1, keepdim=True).clamp(min=tiny)
    return x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=tiny)


def is_int(value: object) -> bool:
    """Whether it is a whole number, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _show(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['n', *map(str, shape)])}{'' if shape else ','})"
