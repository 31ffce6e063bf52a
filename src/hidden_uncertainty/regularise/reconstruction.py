"""The reconstruction penalty: how far the input is from what a decoder makes of one layer's activation."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..model import capture
from ..model.batches import dtype_of, unpack
from ..model.outputs import Key
from ..model.outputs import select as select_tensor
from .decoders import DenseDecoder, ResidualDecoder


class Reconstruction(nn.Module):
    r"""Mean squared error of reconstructing the input from a layer, to be added to a training loss.

    .. math:: \tilde L = L + \lambda \, \mathrm{MSE}(x, D(z))

    with the activation :math:`z` of the layer and the decoder :math:`D` (the equation in the paper's section 3.2). The
    decoder learns with the model and is dropped afterwards. A hook keeps the latest activation until the penalty is
    computed from it; the model is otherwise untouched, and wholly so after `remove()` or the end of a `with` block.

    Parameters, `state_dict()` and `to()` are those of the decoder: the model is not part of it.

    Args:
        model: the network that is trained. A compiled model must not have run yet; a data parallel one needs one GPU
            per process.
        layer: its dotted name.
        decoder: from activations to inputs: `DenseDecoder`, `ResidualDecoder` or a module of your own; None builds one
            that is symmetrical to the model up to the layer.
        example: a batch as a loader gives it; only to build a decoder.
        select: which tensor, where the layer returns several: a position or a key.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        >>> x, y = torch.rand(32, 1, 8, 8), torch.arange(32) % 10
        >>> penalty = Reconstruction(model, "1", example=x)
        >>> optimiser = torch.optim.Adam([*model.parameters(), *penalty.parameters()])
        >>> loss = F.cross_entropy(model(x), y) + 0.1 * penalty(x)
        >>> loss.backward()
        >>> optimiser.step()
        >>> penalty.remove()
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        decoder: nn.Module | None = None,
        *,
        example: Any = None,
        select: Key | None = None,
    ) -> None:
        super().__init__()
        target = capture.find(model, [layer])[layer]
        if isinstance(target, torch.jit.ScriptModule):
            raise RuntimeError(
                f"{layer!r} belongs to a TorchScript module, whose layers cannot be read. Use the original nn.Module "
                "that it was scripted or traced from."
            )
        if decoder is None:
            if example is None:
                raise ValueError(f"give a decoder from layer {layer!r} to the input, or example=batch to build one.")
            decoder = mirror(model, layer, example, select)
        self.layer, self.decoder = layer, decoder
        self._seen = seen = _Seen()
        root = capture.find(model, [""])[""]

        # Hooks are functions, which a copied model shares with the original: they must not listen to the copy.
        def start(module: nn.Module, args: Any) -> None:
            if module is root:
                seen.ran, seen.latent, seen.again = True, None, False

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if module is target:
                seen.again = seen.latent is not None
                # A copy: the next layer may write into the same memory.
                seen.latent = select_tensor(output, select, f"layer {layer!r}").clone()

        self._handles = [root.register_forward_pre_hook(start), target.register_forward_hook(keep)]
        for handle in self._handles:
            weakref.finalize(self, handle.remove)

    def forward(self, x: Tensor) -> Tensor:
        """Mean squared error, a scalar of at least float32, for the inputs x (n, ...) that the model last ran on."""
        if not x.is_floating_point():
            raise TypeError(f"expected x in floating point, as the model takes it, got {x.dtype}.")
        latent = self._take()
        if torch.is_grad_enabled() and not latent.requires_grad:
            raise RuntimeError(
                f"the activation of layer {self.layer!r} has no gradient, so the penalty could not train the "
                "model: it ran under no_grad, or the layer and all before it are frozen. Run the model with gradients; "
                "to measure only, call the penalty under torch.no_grad() too."
            )
        if len(latent) != len(x):
            raise ValueError(
                f"layer {self.layer!r} was last called on {len(latent)} inputs, x has {len(x)}: call the penalty after "
                "the model, with the batch that the model was given."
            )
        found = self._decode(latent)
        if found.shape != x.shape:
            shapes = f"{tuple(found.shape)} for x {tuple(x.shape)}"
            raise ValueError(f"the decoder returned {shapes}: build it for inputs of this shape.")
        dtype = torch.promote_types(torch.promote_types(found.dtype, x.dtype), torch.float32)
        return F.mse_loss(found.to(dtype), x.to(dtype))

    def reconstruct(self) -> Tensor:
        """What the decoder makes of the model's latest run, (n, ...): to look at, or for `metrics.psnr`."""
        return self._decode(self._take())

    def remove(self) -> None:
        """Take the hooks off the model; the penalty cannot be used after that, its decoder can."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.latent = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _decode(self, latent: Tensor) -> Tensor:
        own = next((p.dtype for p in self.decoder.parameters() if p.is_floating_point()), latent.dtype)
        return self.decoder(latent.to(own))

    def _take(self) -> Tensor:
        """The latest activation, once."""
        if not self._handles:
            raise RuntimeError("the penalty was removed from the model: build another one to go on.")
        seen, latent = self._seen, self._seen.latent
        if latent is None:
            if seen.ran:
                raise RuntimeError(never(self.layer))
            raise RuntimeError(
                f"the model did not run since the penalty was last computed, so there is no activation of layer "
                f"{self.layer!r}: call the model first, then the penalty, once each per batch. (Copies of a model, as "
                "nn.DataParallel makes on several GPUs, and graphs compiled before the penalty do not count.)"
            )
        seen.ran, seen.latent = False, None
        if seen.again:
            raise RuntimeError(
                f"layer {self.layer!r} is called more than once in a run of the model, so there is no single "
                "activation to reconstruct from: choose a module that is called once."
            )
        return latent


def mirror(model: nn.Module, layer: str, example: Any, select: Key | None = None) -> nn.Module:
    """The decoder that is symmetrical to the model up to a layer, on the device of the layer.

    For vectors, it has the widths of the linear layers that were called up to the layer, in reverse order. For
    (C, h, w), it is made of residual stacks. The model is run once on the example.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> [(linear.in_features, linear.out_features) for linear in mirror(model, "2", torch.zeros(3, 8)).linear]
        [(4, 6), (6, 8)]
    """
    batch = unpack(example, dtype=dtype_of(model))
    device = capture.device_of(model)
    batch = batch if device is None else batch.to(device)
    x = next((value for value in (*batch.args, *batch.kwargs.values()) if isinstance(value, Tensor)), None)
    if x is None:
        raise ValueError("the inputs of the example hold no tensor to reconstruct: pass a decoder.")
    widths: list[int] = []
    found: list[Tensor] = []

    def full(width: int) -> capture.Callback:
        return lambda *_: None if found else widths.append(width)

    def chosen(output: Any, *_: Any) -> None:
        found.append(select_tensor(output, select, f"layer {layer!r}")[:0].clone())  # its shape and device are needed

    target = capture.find(model, [layer])[layer]
    callbacks = {
        name: full(module.out_features)
        for name, module in capture.named(model)
        if isinstance(module, nn.Linear) and module is not target
    }
    capture.lend(model, callbacks | {layer: chosen}, lambda inner: inner(*batch.args, **batch.kwargs))
    if not found:
        raise RuntimeError(never(layer))
    shape, output = tuple(found[0].shape[1:]), tuple(x.shape[1:])
    if len(shape) == 3:
        return ResidualDecoder(shape, output).to(found[0].device)
    if len(shape) != 1:
        raise ValueError(
            f"layer {layer!r} returns (n, {', '.join(map(str, shape))}): there are decoders for vectors (n, d) and "
            "pictures (n, C, h, w); pass your own decoder for other shapes."
        )
    if not isinstance(target, nn.Linear):
        widths = widths[:-1]  # the last one made the activation
    return DenseDecoder(shape[0], widths[::-1], output).to(found[0].device)


def never(layer: str) -> str:
    """The error for a layer that was not called."""
    return (
        f"layer {layer!r} was not called while the model ran, so there is nothing to reconstruct from. It may be "
        "called under a condition, have its forward used directly, run as a copy of itself (nn.DataParallel on several "
        "GPUs) or inside a compiled graph. layers(model, example) shows which are called."
    )


@dataclass(eq=False)
class _Seen:
    """What the hooks saw: whether the model ran, the layer's latest activation, and whether that was not the first."""

    ran: bool = False
    latent: Tensor | None = None
    again: bool = False
