"""A fitted reduction of a layer, and how it is fitted from batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..io import expect
from ..precision import gradients, precise
from .pca import StreamingPCA, check_finite
from .spec import Reduce, is_int

LARGEST = 1e15  # centred activations, in units, saturate here: the squares of 100 million still sum to a float32
FARTHEST = 120  # the exponent of a unit at most: its inverse is a float32, too


class Reduction(nn.Module):
    r"""A fitted reduction of one layer, made by `ReductionFit`.

    .. math:: z = B^\top (x - m), \qquad r = \lVert x - m \rVert^2 - \lVert z \rVert^2

    with x the flattened or pooled activation, and buffers `mean` m (D,) and `basis` B (D, k). r is the squared norm of
    what the projection drops. A layer that is narrow enough has neither buffer, z = x and no r.
    With `reduce.residual`, z has u log(r / v² + `floor`) as its last column, where `floor` is far below the r / v² seen
    in fitting, and u, `unit`, is the deviation of the other columns on average: all grow with the layer. v, `power`, is
    the power of two next to it.

    Args:
        shape: of its output, without the samples.
        kept: k, or `None` when nothing is dropped.
        unit: u; 1 where it is not known.
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

    @property
    def dim(self) -> int:
        """How many columns z has."""
        if self.kept is None:
            return self.reduce.width((0, *self.shape))
        return self.kept + self.reduce.residual

    @precise
    def forward(self, activation: Tensor) -> tuple[Tensor, Tensor | None]:
        """The reduced activation z (n, d), and the residual energy (n,) or `None` when nothing is dropped.

        Both are new tensors, where the buffers are. Infinities saturate; NaN stay.
        """
        self.reduce.check_shape(self.layer, self.shape, tuple(activation.shape[1:]))
        if self.kept is None:
            return self.reduce.flat(activation), None
        mean, basis = self.mean, self.basis
        x = self.reduce.flat(activation, copy=False).to(mean.device)
        power = self.power
        centred = (x - mean).div_(power).clamp_(-LARGEST, LARGEST).to(basis.dtype)  # (n, D)
        z = centred @ basis  # (n, k)
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
        mine, theirs = self.state_dict(), other.state_dict()
        return self.config() == other.config() and all(
            torch.equal(value.cpu(), theirs[name].cpu()) for name, value in mine.items()
        )

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
    dimensions need one, and of more two. `probe` finds out from one batch. Layers that are done ignore further batches,
    so that several layers share the passes of the one that needs most.

    Example:
        >>> fit = ReductionFit(Reduce(max_dim=4), "conv")
        >>> conv = torch.randn(8, 3, 5, 5, generator=torch.Generator().manual_seed(0))
        >>> fit.probe(conv)
        >>> while not fit.done:
        ...     fit.update(conv)
        ...     fit.end_pass()
        >>> z, residual = fit.result()(conv)
        >>> z.shape, residual.shape
        (torch.Size([8, 4]), torch.Size([8]))
    """

    def __init__(self, reduce: Reduce, layer: str, *, seed: int = 0) -> None:
        self.reduce, self.layer, self.seed = reduce, layer, seed
        self._shape: tuple[int, ...] | None = None
        self._pca: StreamingPCA | None = None
        self._reduction: Reduction | None = None
        self._energy: Tensor | None = None  # (3,): what a projection drops, all there is, and rows, summed up

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of the layer's output, without the samples; None before the first batch."""
        return self._shape

    @property
    def passes_left(self) -> int | None:
        """Passes that `update` must still see in full; `None` before the first batch."""
        if self._shape is None:
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
            width = self.reduce.width(tuple(activation.shape))
            x = self.reduce.flat(activation, copy=False)
        except (TypeError, ValueError) as error:
            raise type(error)(f"layer {self.layer!r}: {error}") from None
        shape = tuple(activation.shape[1:])
        max_dim = self.reduce.max_dim
        if max_dim is None or width <= max_dim:
            check_finite(x, f"layer {self.layer!r}")
            self._reduction = Reduction(self.reduce, self.layer, shape)
        elif self.reduce.how == "project":
            check_finite(x, f"layer {self.layer!r}")
            self._reduction = Reduction(self.reduce, self.layer, shape, max_dim).to(x.device)
            generator = torch.Generator().manual_seed(self.seed)
            drawn = torch.randn(width, max_dim, generator=generator, dtype=torch.float32, device="cpu")
            basis = torch.linalg.qr(drawn).Q
            self._reduction.basis = basis.contiguous().to(x.device)
            if self.reduce.residual:
                home = torch.device("cpu") if x.device.type == "mps" else x.device  # which has no float64
                self._energy = torch.zeros(3, dtype=torch.float64, device=home)
        else:
            self._pca = StreamingPCA(width, max_dim, seed=self.seed, name=f"layer {self.layer!r}")
        self._shape = shape

    @gradients(False, lasting=True)
    def update(self, activation: Tensor) -> None:
        """Add the layer's output on one batch (n, ...) to the current pass. It is not kept."""
        if self._shape is None:
            self.probe(activation)
        assert self._shape is not None
        self.reduce.check_shape(self.layer, self._shape, tuple(activation.shape[1:]))
        if self._pca is not None and not self._pca.done:
            self._pca.update(self.reduce.flat(activation, copy=False))
        elif self._energy is not None:
            assert self._reduction is not None
            x = self.reduce.flat(activation, copy=False).to(self._energy)
            whole, kept = (part.square().sum() for part in (x, x @ self._reduction.basis.to(x)))
            self._energy += torch.stack([whole - kept, whole, x.new_tensor(len(x))])

    def end_pass(self, all_sum: Callable[[Tensor], Tensor] | None = None) -> None:
        """End the current pass, as `StreamingPCA.end_pass`. Does nothing when `done`."""
        if self._shape is None:
            raise RuntimeError(
                f"layer {self.layer!r} never gave an output in this pass: is it used in the forward pass?"
            )
        if self._pca is not None and not self._pca.done:
            self._pca.end_pass(all_sum)
        elif self._energy is not None:
            assert self._reduction is not None
            dropped, total, rows = self._energy if all_sum is None else all_sum(self._energy)
            kept = (total - dropped) / rows.clamp(min=1) / self._reduction.basis.shape[1]
            self._set_scale(self._reduction, kept, dropped / rows.clamp(min=1), total / rows.clamp(min=1))
            self._energy = None

    def result(self) -> Reduction:
        """The fitted reduction, on the device of the activations."""
        if not self.done or self._shape is None:
            raise RuntimeError(f"the reduction of layer {self.layer!r} needs more passes: update, end_pass until done.")
        if self._reduction is None and self._pca is not None:
            found = self._pca.result()
            reduction = Reduction(self.reduce, self.layer, self._shape, found.basis.shape[1]).to(found.basis.device)
            reduction.mean, reduction.basis = found.mean, found.basis
            self._set_scale(reduction, found.variance.mean(), found.total - found.variance.sum(), found.total)
            self._reduction, self._pca = reduction, None
        assert self._reduction is not None
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
