"""Reconstruction as a penalty: how far the input is from what a decoder makes of one layer's activation."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty.model import capture
from hidden_uncertainty.model.batches import dtype_of, unpack
from hidden_uncertainty.model.outputs import Key
from hidden_uncertainty.model.outputs import select as select_tensor
from hidden_uncertainty.precision import gradients

_empty = nn.utils.skip_init  # torch would draw the weights from the global generator
_norm = partial(nn.BatchNorm2d, device="cpu")


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
            decoder = _mirror(model, layer, example, select)
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
                raise RuntimeError(_never(self.layer))
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


@dataclass(eq=False)
class _Seen:
    """What the hooks saw: whether the model ran, the layer's latest activation, and whether that was not the first."""

    ran: bool = False
    latent: Tensor | None = None
    again: bool = False


def _mirror(model: nn.Module, layer: str, example: Any, select: Key | None = None) -> nn.Module:
    """The decoder that is symmetrical to the model up to a layer, on the layer's device: it has the widths of the
    linear layers that are called on the way, in reverse order, or is made of residual stacks for (C, h, w).
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
        raise RuntimeError(_never(layer))
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


def _never(layer: str) -> str:
    """The error for a layer that was not called."""
    return (
        f"layer {layer!r} was not called while the model ran, so there is nothing to reconstruct from. It may be "
        "called under a condition, have its forward used directly, run as a copy of itself (nn.DataParallel on several "
        "GPUs) or inside a compiled graph. layers(model, example) shows which are called."
    )


class DenseDecoder(nn.Sequential):
    """Linear layers with ReLUs between them; the output has the shape of the input.

    For the k-th linear layer of a perceptron, k layers make a symmetrical autoencoder.

    Args:
        latent: how many numbers an activation has; activations of more dimensions are flattened.
        hidden: units of every layer but the last: one number for all, or one per layer.
        output_shape: shape of one input.
        layers: how many; not needed when `hidden` lists them.
        seed: of the initial weights, which are those of Glorot and Bengio; biases are zero.

    Example:
        >>> decoder = DenseDecoder(100, 100, (1, 28, 28), layers=4)
        >>> decoder(torch.zeros(3, 100)).shape, len(decoder.linear)
        (torch.Size([3, 1, 28, 28]), 4)
    """

    def __init__(
        self,
        latent: int,
        hidden: int | Sequence[int],
        output_shape: Sequence[int],
        *,
        layers: int | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(hidden, int):
            if layers is None or layers < 1:
                raise ValueError(f"with hidden={hidden} for all layers, layers must be at least 1, got {layers}.")
            hidden = [hidden] * (layers - 1)
        elif layers not in (None, len(hidden) + 1):
            made = f"hidden={list(hidden)} makes {len(hidden) + 1} layers"
            raise ValueError(f"{made}, got layers={layers}: leave layers out.")
        widths, shape = [latent, *hidden], tuple(output_shape)
        if not shape or min(*widths, *shape) < 1:
            given = f"{latent}, {list(hidden)} and {shape}"
            raise ValueError(f"latent, hidden and output_shape must be at least 1, got {given}.")
        modules: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            modules += [_empty(nn.Linear, before, after), nn.ReLU()]
        super().__init__(*modules, _empty(nn.Linear, widths[-1], math.prod(shape)), nn.Unflatten(1, shape))
        self.latent, self.output_shape = latent, shape
        begin(self, seed)

    @property
    def linear(self) -> list[nn.Linear]:
        """The linear layers."""
        return [module for module in self if isinstance(module, nn.Linear)]

    def forward(self, latent: Tensor) -> Tensor:
        """Inputs (n, *output_shape), for activations (n, latent)."""
        if latent.dim() < 2 or math.prod(latent.shape[1:]) != self.latent:
            raise ValueError(
                f"this decoder was built for activations of {self.latent} numbers, got {tuple(latent.shape)}: build it "
                "for the layer that it reads."
            )
        return super().forward(latent)


class ResidualDecoder(nn.Module):
    """Stacks of residual units, each stack of twice the size and half the channels, and a convolution to the image.

    The first unit of a stack has transposed convolutions where a residual network has strided ones. There are as many
    stacks as it takes from the size of the activation to that of the image; with the same size, one that keeps it.

    Args:
        latent_shape: of one activation, (C, h, w).
        output_shape: of one image, (C, H, W); H / h and W / w must be the same power of two.
        units: residual units per stack, two as in ResNet18.
        seed: of the initial weights, which are those of Glorot and Bengio; biases are zero.

    Example:
        >>> decoder = ResidualDecoder((16, 8, 8), (3, 32, 32))
        >>> decoder(torch.zeros(2, 16, 8, 8)).shape, decoder.stacks
        (torch.Size([2, 3, 32, 32]), 2)
    """

    def __init__(
        self, latent_shape: Sequence[int], output_shape: Sequence[int], *, units: int = 2, seed: int = 0
    ) -> None:
        super().__init__()
        self.latent_shape, self.output_shape = tuple(latent_shape), tuple(output_shape)
        self.stacks = _stacks(self.latent_shape, self.output_shape)
        if units < 1:
            raise ValueError(f"units must be at least 1, got {units}.")
        width, channels = self.latent_shape[0], self.output_shape[0]
        body: list[nn.Module] = []
        for _ in range(max(1, self.stacks)):
            after = max(width // 2, channels) if self.stacks else width
            body.append(_Unit(width, after, upsample=self.stacks > 0))
            body += [_Unit(after, after) for _ in range(units - 1)]
            width = after
        self.body = nn.Sequential(*body)
        self.image = _empty(nn.Conv2d, width, channels, 3, padding=1)
        begin(self, seed)

    def forward(self, latent: Tensor) -> Tensor:
        """Images (n, *output_shape), for activations (n, *latent_shape)."""
        if latent.shape[1:] != self.latent_shape:
            raise ValueError(
                f"this decoder was built for activations (n, {', '.join(map(str, self.latent_shape))}), got "
                f"{tuple(latent.shape)}: build it for this layer and this size of images."
            )
        return self.image(self.body(latent))


class _Unit(nn.Module):
    """Two convolutions with norms beside a shortcut; one that upsamples begins with a transposed one on both sides."""

    def __init__(self, before: int, after: int, *, upsample: bool = False) -> None:
        super().__init__()
        self.shortcut: nn.Module = nn.Identity()
        if upsample:
            first = _empty(nn.ConvTranspose2d, before, after, 3, stride=2, padding=1, output_padding=1, bias=False)
            # 2 × 2, where the strided shortcut of an encoder is 1 × 1: that would leave three of four pixels empty.
            wider = _empty(nn.ConvTranspose2d, before, after, 2, stride=2, bias=False)
            self.shortcut = nn.Sequential(wider, _norm(after))
        else:
            first = _empty(nn.Conv2d, before, after, 3, padding=1, bias=False)
        second = _empty(nn.Conv2d, after, after, 3, padding=1, bias=False)
        self.main = nn.Sequential(first, _norm(after), nn.ReLU(), second, _norm(after))

    def forward(self, x: Tensor) -> Tensor:
        return (self.main(x) + self.shortcut(x)).relu()


def _stacks(latent: tuple[int, ...], output: tuple[int, ...]) -> int:
    """How often the size doubles from one shape to the other."""
    if len(latent) != 3 or len(output) != 3 or min(latent + output) < 1:
        raise ValueError(
            f"expected the shapes of one activation (C, h, w) and of one image (C, H, W), got {latent} and {output}; "
            "use DenseDecoder for vectors."
        )
    factor = output[1] // latent[1]
    if factor < 1 or factor & (factor - 1) or (latent[1] * factor, latent[2] * factor) != output[1:]:
        raise ValueError(
            f"from {latent[1]} × {latent[2]} to {output[1]} × {output[2]} is not a number of doublings: choose a "
            "layer whose height and width are those of the image divided by one power of two, or pass your own decoder."
        )
    return factor.bit_length() - 1


@gradients(False)
def begin(network: nn.Module, seed: int) -> None:
    """Initialise as Keras does: weights uniform within ±√(6 / (inputs + outputs)) (Glorot and Bengio), biases zero."""
    generator = torch.Generator().manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            inputs, outputs = nn.init._calculate_fan_in_and_fan_out(layer.weight)
            drawn = torch.rand(layer.weight.shape, generator=generator, device="cpu")
            layer.weight.copy_((2 * drawn - 1) * math.sqrt(6 / (inputs + outputs)))
            if layer.bias is not None:
                layer.bias.zero_()
