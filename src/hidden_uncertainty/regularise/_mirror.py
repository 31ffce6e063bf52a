"""A decoder for a layer, built by looking at what comes before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .. import capture
from ..batches import unpack
from .dense import DenseDecoder
from .residual import ResidualDecoder


def mirror(model: nn.Module, layer: str, example: Any, select: int | str | None = None) -> nn.Module:
    """The decoder that is symmetrical to the model up to a layer, on the layer's device.

    For vectors the widths of the full layers that were called up to it, backwards; for (C, h, w) residual stacks.

    Args:
        model: run once on the example, and left as it was.
        layer: its name.
        example: a batch as a loader gives it.
        select: which part of the layer's output, where there are several.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> [(linear.in_features, linear.out_features) for linear in mirror(model, "2", torch.zeros(3, 8)).linear]
        [(4, 6), (6, 8)]
    """
    batch = unpack(example)
    device = capture.device_of(model)
    batch = batch if device is None else batch.to(device)
    x = next((value for value in (*batch.args, *batch.kwargs.values()) if isinstance(value, Tensor)), None)
    if x is None:
        raise ValueError("there is no tensor among the inputs of the example to be reconstructed: pass a decoder.")
    widths: list[int] = []
    found: list[Tensor] = []

    def full(width: int) -> Callable[[Any], None]:
        return lambda output: None if found else widths.append(width)

    def chosen(output: Any) -> None:
        tensor = capture.select(output, select, f"layer {layer!r}")
        found.append(tensor[:0].clone())  # only its shape, type and device are asked for

    target = capture.find(model, [layer])[layer]
    callbacks: dict[str, Callable[[Any], None]] = {
        name: full(module.out_features)
        for name, module in capture.named(model)
        if isinstance(module, nn.Linear) and module is not target
    }
    with capture.watch(model, callbacks | {layer: chosen}) as inner:
        inner(*batch.args, **batch.kwargs)
    if not found:
        raise RuntimeError(never(layer))
    shape, output = tuple(found[0].shape[1:]), tuple(x.shape[1:])
    if len(shape) == 3:
        return ResidualDecoder(shape, output).to(found[0].device)
    if len(shape) != 1:
        raise ValueError(
            f"layer {layer!r} returns (n, {', '.join(map(str, shape))}): there are decoders for vectors (n, d) and "
            "pictures (n, C, h, w); pass one of your own for other shapes."
        )
    if not isinstance(target, nn.Linear):
        widths = widths[:-1]  # the last one made the activation
    return DenseDecoder(shape[0], widths[::-1], output).to(found[0].device)


def never(layer: str) -> str:
    """What is wrong when a layer was not called, and what to do."""
    return (
        f"layer {layer!r} was not called while the model ran, so that there is nothing to reconstruct from. It may be "
        "called under a condition, have its forward used directly, run as a copy of itself (nn.DataParallel on several "
        "GPUs) or inside a compiled graph. layers(model, example) shows which are called."
    )
