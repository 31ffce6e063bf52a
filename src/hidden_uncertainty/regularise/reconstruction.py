"""The reconstruction penalty: how far a decoder's image is from the input, from one layer's activation."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import capture
from ._mirror import mirror, never


@dataclass(eq=False)
class _Seen:
    """What the hooks saw: whether the model ran, the layer's latest activation, and whether that was not the first."""

    ran: bool = False
    latent: Tensor | None = None
    again: bool = False


class Reconstruction(nn.Module):
    r"""Mean squared error of reconstructing the input from a layer, to be added to a training loss.

    .. math:: \tilde L = L + \lambda \, \mathrm{MSE}(x, D(z))

    with the activation :math:`z` of the layer and the decoder :math:`D` (the equation in the paper's section 3.2). The
    decoder learns with the model and is dropped afterwards. A hook keeps the latest activation until the penalty is
    computed from it; the model is otherwise untouched, and wholly so after `remove()` or the end of a `with` block.

    Parameters, `state_dict()` and `to()` are those of the decoder: the model is not part of it.

    Args:
        model: that is trained; compiled models must not have run yet, and data parallel ones need a GPU a process.
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
        select: int | str | None = None,
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
                raise ValueError(
                    f"give a decoder from layer {layer!r} to the input, or example=, a batch to build one from."
                )
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
                seen.latent = capture.select(output, select, f"layer {layer!r}").clone()

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
                f"the activation of layer {self.layer!r} has no gradient, so that the penalty could not train the "
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
            raise ValueError(
                f"the decoder returned {tuple(found.shape)} for x {tuple(x.shape)}: build it for inputs of this shape."
            )
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
            raise RuntimeError("the penalty was removed from the model: build another to go on.")
        seen, latent = self._seen, self._seen.latent
        if latent is None:
            if seen.ran:
                raise RuntimeError(never(self.layer))
            raise RuntimeError(
                f"the model did not run since the penalty was last asked, so that there is no activation of layer "
                f"{self.layer!r}: call the model first, then the penalty, once each a batch. (Copies of a model, as "
                "nn.DataParallel makes on several GPUs, and graphs that were compiled before do not count.)"
            )
        seen.ran, seen.latent = False, None
        if seen.again:
            raise RuntimeError(
                f"layer {self.layer!r} is called more than once in a run of the model, so there is no one activation "
                "to reconstruct from: choose a module that is called once."
            )
        return latent
