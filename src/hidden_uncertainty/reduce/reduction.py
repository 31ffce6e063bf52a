"""How a layer's output becomes a vector: what is asked, what was fitted, and how it is fitted from batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..io import expect, is_int, plain
from ..model.outputs import Key
from ..precision import gradients, precise
from .pca import StreamingPCA
from .pooling import Pool, moments, pool_tokens

How = Literal["flatten", "channels", "tokens", "token", "project"]
Read = Literal["output", "input"]
LARGEST = 1e15  # centred activations, in units, saturate here: the squares of 100 million still sum to a float32
FARTHEST = 120  # the exponent of a unit at most: its inverse is a float32, too


@dataclass(frozen=True)
class Reduce:
    """How a layer's output becomes a vector of at most `max_dim` numbers.

    First the shape, then, when more than `max_dim` numbers remain, their principal components:

    ============  ==============================  ===========================================================
    `how`         takes                           gives
    ============  ==============================  ===========================================================
    `"flatten"`   (n, ...)                        all numbers of the output, as in the paper
    `"channels"`  (n, C, ...), channels first     (n, C), the mean over positions: Conv1d, Conv2d, Conv3d; or see `pool`
    `"tokens"`    (n, ..., W), channels last      (n, W), the mean over positions: transformers, Swin; or see `pool`
    `"token"`     (n, T, W)                       (n, W), the one token of index `token`, such as the class token
    `"project"`   (n, ...)                        flattened, then a random orthonormal projection instead of PCA
    ============  ==============================  ===========================================================

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
        pool: what `how="channels"` and `"tokens"` take of each number: its `"mean"` over positions, or the `"moments"`,
            which are the mean and the standard deviation, so that there are twice as many; of tokens also the maximum,
            or the last one.
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
        pools = {"tokens": get_args(Pool), "channels": ("mean", "moments")}.get(self.how, ("mean",))
        if self.pool not in pools:
            raise ValueError(f"pool must be one of {pools} with how={self.how!r}, got {self.pool!r}.")
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
        """How many numbers `flat` gives per input of an activation of this shape; an error when `how` does not fit."""
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
        each = 2 if self.pool == "moments" and len(shape) > 2 else 1
        return each * (shape[1] if self.how == "channels" else shape[-1])

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
            x = activation.flatten(2)  # (n, C, P)
            activation = moments(x, 2) if self.pool == "moments" else x.mean(2, dtype=dtype)
        elif self.how == "tokens" and activation.ndim > 2:
            activation = pool_tokens(activation, self.pool)
        activation = activation.unsqueeze(1) if activation.ndim == 1 else activation.flatten(1)
        if self.normalise:
            return _unit(activation.to(dtype))
        return activation.to(dtype, copy=copy)

    def check_shape(self, layer: str, fitted: tuple[int, ...], now: tuple[int, ...]) -> None:
        """Raise unless the output of a layer has the shape that was fitted, as far as `how` needs it."""
        if self.how in ("flatten", "project"):
            fits = fitted == now
            advice = ", or pool with reduce='channels' or 'tokens', which take any size"
            if len(now) == 2:
                advice = (
                    ", or take one token with reduce='token', or the mean over all with reduce='tokens', which leaves "
                    "out padding where a mask says so (Reduce(mask=))"
                )
        else:
            axis = slice(0, 1) if self.how == "channels" else slice(-1, None)
            reachable = self.how != "token" or len(now) != 2 or -now[0] <= self.token < now[0]
            fits = len(fitted) == len(now) and fitted[axis] == now[axis] and reachable
            advice = ""
        if not fits:
            raise ValueError(
                f"layer {layer!r} gave {_show(fitted)} when fitted and {_show(now)} now: "
                f"give inputs of the size used in fitting{advice}."
            )


class Reduction(nn.Module):
    r"""A fitted reduction of one layer, made by `ReductionFit`.

    .. math:: z = B^\top (x - m), \qquad r = \lVert x - m \rVert^2 - \lVert z \rVert^2

    with x the flattened or pooled activation, and buffers `mean` m (D,) and `basis` B (D, k). r is the squared norm of
    what the projection drops. A layer that is narrow enough has neither buffer, z = x and no r.
    With `reduce.residual`, z has u log(r / v² + `floor`) as its last column, where `floor` is far below the r / v² seen
    in fitting, and u, `unit`, is the deviation of the other columns on average: all grow with the layer. v, `power`, is
    the power of two next to it. `shape` is that of the layer's output without the samples, `kept` is k, or None when
    nothing is dropped.
    """

    mean: Tensor
    basis: Tensor
    floor: Tensor

    def __init__(
        self, reduce: Reduce, layer: str, shape: tuple[int, ...], kept: int | None = None, unit: float = 1.0
    ) -> None:
        super().__init__()
        self.reduce, self.layer, self.shape, self.kept, self.unit = reduce, layer, tuple(shape), kept, unit
        if kept is not None:
            width = reduce.width((0, *shape))
            self.register_buffer("mean", torch.zeros(width, dtype=torch.float32, device="cpu"))
            self.register_buffer("basis", torch.zeros(width, kept, dtype=torch.float32, device="cpu"))
            if reduce.residual:
                self.register_buffer("floor", torch.zeros((), dtype=torch.float32, device="cpu"))

    @property
    def power(self) -> float:
        """What activations are measured in, so that no square over- or underflows: no digit changes."""
        return 2.0 ** round(math.log2(self.unit))

    @precise
    def forward(self, activation: Tensor) -> tuple[Tensor, Tensor | None]:
        """The reduced activation z (n, d), and the residual energy (n,) or `None` when nothing is dropped.

        Both are new tensors, where the buffers are. Infinities saturate, but for deviations, which are NaN; NaN stay.
        """
        self.reduce.check_shape(self.layer, self.shape, tuple(activation.shape[1:]))
        if self.kept is None:
            return self.reduce.flat(activation), None
        x = self.reduce.flat(activation, copy=False).to(self.mean.device)
        power = self.power
        centred = (x - self.mean).div_(power).clamp_(-LARGEST, LARGEST).to(self.basis.dtype)  # (n, D)
        z = centred @ self.basis  # (n, k)
        energy, kept = (torch.linalg.vector_norm(part, dim=1).square() for part in (centred, z))
        residual = (energy - kept).clamp(min=0)  # (n,)
        if self.reduce.residual:
            z = torch.cat([z, (residual + self.floor).log().unsqueeze(1) * (self.unit / power)], dim=1)
        limit = torch.finfo(z.dtype).max
        return (z * power).clamp(-limit, limit), (residual * power * power).clamp(max=limit)

    def check(self) -> None:
        """Raise a ValueError where the shape or the buffers cannot be those of a fit."""
        expect(all(is_int(size) and size >= 0 for size in self.shape), f"{self.shape} is not the shape of a layer")
        expect(type(self.unit) is float and 2.0**-FARTHEST <= self.unit <= 2.0**FARTHEST, "its unit is out of range")
        if self.kept is not None:
            expect((self.basis.norm(dim=0) - 1).abs() < 1e-3, "a direction has not the length one")
            expect(not self.reduce.residual or self.floor >= 0, "floor is negative")

    def same_as(self, other: Reduction) -> bool:
        """Whether both give the same z for the same activation."""
        if self is other:
            return True
        pairs = zip(self.state_dict().values(), other.state_dict().values(), strict=False)
        return self.config() == other.config() and all(torch.equal(mine.cpu(), theirs.cpu()) for mine, theirs in pairs)

    def config(self) -> dict[str, Any]:
        """What rebuilds this module without its tensors, ready for JSON."""
        known = {"reduce": self.reduce.to_dict(), "layer": self.layer, "shape": list(self.shape), "kept": self.kept}
        return {**known, "unit": self.unit}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> Reduction:
        """A module with empty buffers of the right shapes, for `load_state_dict`, or with its tensors."""
        reduce, unit = Reduce.from_dict(config["reduce"]), config.get("unit", 1.0)  # files of version 0.1.0 have none
        made = cls(reduce, config["layer"], tuple(config["shape"]), config["kept"], unit)
        if tensors is not None:
            made.load_state_dict(tensors)
        return made


class ReductionFit:
    """Fits the reduction of one layer from batches, in as many passes over the data as that layer needs.

    A narrow layer or a random projection needs none (one for its residual), principal components of up to 2,048
    dimensions need one, and of more two. `probe` finds out from one batch. Layers that are done ignore further batches.
    """

    def __init__(self, reduce: Reduce, layer: str, *, seed: int = 0) -> None:
        self.reduce, self.layer, self.seed = reduce, layer, seed
        self.shape: tuple[int, ...] | None = None  # of the layer's output, without the samples
        self._pca: StreamingPCA | None = None
        self._reduction: Reduction | None = None
        self._energy: Tensor | None = None  # (3,): what a projection drops, all there is, and rows, summed up

    @property
    def passes_left(self) -> int | None:
        """Passes that `update` must still see in full; `None` before the first batch."""
        if self.shape is None:
            return None
        return self._pca.passes_left if self._pca is not None else int(self._energy is not None)

    @property
    def done(self) -> bool:
        """Whether `result` is ready. Not before the first batch."""
        return self.passes_left == 0

    @gradients(False, lasting=True)
    def probe(self, activation: Tensor) -> None:
        """Learn the layer's shape from its output on one batch (n, ...), which counts towards no pass."""
        try:
            x = self.reduce.flat(activation, copy=False)  # (n, D)
        except (TypeError, ValueError) as error:
            raise type(error)(f"layer {self.layer!r}: {error}") from None
        shape, width, max_dim = tuple(activation.shape[1:]), x.shape[1], self.reduce.max_dim
        if max_dim is None or width <= max_dim:
            self._reduction = Reduction(self.reduce, self.layer, shape)
        elif self.reduce.how == "project":
            self._reduction = Reduction(self.reduce, self.layer, shape, max_dim).to(x.device)
            generator = torch.Generator().manual_seed(self.seed)
            drawn = torch.randn(width, max_dim, generator=generator, dtype=torch.float32, device="cpu")
            self._reduction.basis = torch.linalg.qr(drawn).Q.contiguous().to(x.device)
            if self.reduce.residual:
                home = torch.device("cpu") if x.device.type == "mps" else x.device  # which has no float64
                self._energy = torch.zeros(3, dtype=torch.float64, device=home)
        else:
            self._pca = StreamingPCA(width, max_dim, seed=self.seed, name=f"layer {self.layer!r}")
        self.shape = shape

    @gradients(False, lasting=True)
    def update(self, activation: Tensor, keep: Tensor | None = None) -> None:
        """Add the layer's output on one batch (n, ...) to the current pass, or some by a mask. It is not kept."""
        if self.shape is None:
            self.probe(activation)
        activation = activation if keep is None else activation[keep.to(activation.device)]
        assert self.shape is not None
        self.reduce.check_shape(self.layer, self.shape, tuple(activation.shape[1:]))
        if self._pca is not None:
            self._pca.update(self.reduce.flat(activation, copy=False))
        elif self._energy is not None:
            assert self._reduction is not None
            x = self.reduce.flat(activation, copy=False).to(self._energy)
            whole, kept = (part.square().sum() for part in (x, x @ self._reduction.basis.to(x)))
            self._energy += torch.stack([whole - kept, whole, x.new_tensor(len(x))])

    def end_pass(self, all_sum: Callable[[Tensor], Tensor] | None = None) -> None:
        """End the current pass, as `StreamingPCA.end_pass`. Does nothing when `done`."""
        if self._pca is not None:
            self._pca.end_pass(all_sum)
            if (found := self._pca.components) is not None:
                assert self.shape is not None
                self._pca = None
                reduction = Reduction(self.reduce, self.layer, self.shape, found.basis.shape[1]).to(found.basis.device)
                reduction.mean, reduction.basis = found.mean, found.basis
                self._set_scale(reduction, found.variance.mean(), found.total - found.variance.sum(), found.total)
                self._reduction = reduction
        elif self._energy is not None:
            assert self._reduction is not None
            dropped, total, rows = self._energy if all_sum is None else all_sum(self._energy)
            kept = (total - dropped) / rows.clamp(min=1) / self._reduction.basis.shape[1]
            self._set_scale(self._reduction, kept, dropped / rows.clamp(min=1), total / rows.clamp(min=1))
            self._energy = None

    def result(self) -> Reduction:
        """The fitted reduction, on the device of the activations."""
        if self._reduction is None or not self.done:
            raise RuntimeError(f"the reduction of layer {self.layer!r} needs more passes: update, end_pass until done.")
        return self._reduction

    @staticmethod
    def _set_scale(reduction: Reduction, variance: Tensor, residual: Tensor, total: Tensor) -> None:
        """Set the unit and the floor by means over the data: the variance of a column, what is dropped, all."""
        deviation = math.sqrt(max(float(variance), 0.0)) or 1.0
        reduction.unit = min(max(deviation, 2.0**-FARTHEST), 2.0**FARTHEST)
        if reduction.reduce.residual:
            # float32 rounds the difference of two energies at 1e-7 of them: nothing below 1e-6 of the total is real.
            floor = (1e-3 * residual.clamp(min=0) + 1e-6 * total) / reduction.power**2
            reduction.floor = floor.clamp(min=torch.finfo(torch.float32).tiny).float().to(reduction.basis.device)


def _unit(x: Tensor) -> Tensor:
    """Rows (n, D) divided by their lengths; zeros stay. By the largest number first, so that no square underflows."""
    tiny = torch.finfo(x.dtype).tiny
    x = x / x.abs().amax(1, keepdim=True).clamp(min=tiny)
    return x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=tiny)


def _show(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['n', *map(str, shape)])}{'' if shape else ','})"
