"""Which model a detector was fitted for: enough to notice another architecture, or other weights, before scoring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..notes import warn
from .capture import named

VALUES = 4  # of each parameter or buffer


def describe(model: nn.Module) -> dict[str, Any]:
    """The model's class and the shapes of its parameters and buffers, as JSON."""
    return {"class": type(model).__name__, "parameters": {name: list(p.shape) for name, p in _state(model)}}


def weights(model: nn.Module) -> Tensor:
    """A few values of every parameter and buffer, evenly spaced, in one vector."""
    parts = [torch.zeros(0, dtype=torch.float32, device="cpu")]
    for _, values in _state(model):
        flat = values.detach().reshape(-1)
        if flat.numel() and flat.is_floating_point():
            index = torch.linspace(0, flat.numel() - 1, VALUES, dtype=torch.float64, device="cpu").long()
            parts.append(flat[index.to(flat.device)].float().cpu())
    return torch.cat(parts)


def check_same(model: nn.Module, described: Mapping[str, Any], values: Tensor, path: Any) -> None:
    """Refuse a model of another architecture; warn about other weights."""
    here, there = describe(model)["parameters"], described["parameters"]
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"'{path}' was fitted for another model ({described['class']}): there, parameter {name!r} is "
                f"{_shape(there.get(name))}, here {_shape(here.get(name))}. Load it with the model it was fitted for."
            )
    found = weights(model)
    # One percent: a model cast to bfloat16 since then is still the same model.
    if found.shape != values.shape or not torch.allclose(found, values.float(), rtol=1e-2, atol=1e-6):
        warn(
            f"the model's weights are not those that '{path}' was fitted for, and scores mean nothing for other ones. "
            "Load the weights it was fitted for, or fit again."
        )


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, and buffers such as a norm's statistics, by their names in the model without wrappers.

    What counts batches is left out, and what is not part of a saved state.
    """
    for prefix, module in named(model):
        yield from module.named_parameters(prefix, recurse=False)
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if buffer.is_floating_point() and name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                yield name, buffer


def _shape(shape: list[int] | None) -> str:
    return "missing" if shape is None else str(tuple(shape))
