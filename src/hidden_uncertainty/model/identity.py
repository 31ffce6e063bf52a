"""Which model a detector was fitted for: enough to notice another structure, or other weights, before scoring."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.loss import _Loss

from ..io import Unusable
from ..notes import warn
from .capture import named

SUMS = 8  # of each tensor
BLOCK = 16381  # numbers that share a pattern of signs; a prime, so that rows of a matrix do not fall on the same signs
BLOCKS = 64  # at a time, in float64: 8 MB
EXACT, CAST = 1e-5, 1e-2  # of a tensor's norm, that its sums may differ by; bfloat16 rounds by up to 2⁻⁹
SMALLEST = 1e-7  # that float16 still tells from zero
LAYERS = ("torch.nn.", "torch.ao.nn.")  # where torch's own modules are
IDLE = (_DropoutNd, _Loss, nn.Identity)  # modules that do nothing in evaluation mode


def describe(model: nn.Module) -> dict[str, Any]:
    """The model's structure, as JSON: the tensors in its state, and the classes of its modules."""
    return {"class": type(model).__name__, "tensors": _tensors(model), "modules": _kinds(model)}


def weights(model: nn.Module) -> Tensor:
    """Eight random-signed sums of every tensor in the model's state, and its norm, in float64: (tensors, 9).

    Tensors that differ by more than a tiny part of their norm have different sums, in whichever numbers they differ.
    """
    rows = [_sums(tensor) for _, tensor in _state(model)]
    return torch.stack(rows) if rows else torch.zeros(0, SUMS + 1, dtype=torch.float64, device="cpu")


def check_same(model: nn.Module, described: Mapping[str, Any], values: Tensor, path: Any) -> None:
    """Refuse a model of another structure than was `described`; warn where its weights are not those of `values`.

    The tensors in its state must have the same names and shapes, and layers the same class of torch's. What does
    nothing in evaluation mode, such as dropout, may differ. Classes of other libraries, and of one's own, may have been
    renamed: that is a warning.
    """
    here, older = _tensors(model), "tensors" not in described  # version 0.1.0 described shapes alone
    if older:
        renamed, there = None, {name: ["float32", *shape] for name, shape in described["parameters"].items()}
    else:
        renamed, there = _other_module(_kinds(model), described, path), described["tensors"]
    for name in {**there, **here}:
        known, found = (tuple(tensors[name][1:]) if name in tensors else "missing" for tensors in (there, here))
        # Buffers of whole numbers, such as positions, come and go between versions of libraries.
        optional = "missing" in (known, found) and "float" not in (there.get(name) or here[name])[0]
        if known != found and not optional:
            _refuse(path, described, f"parameter {name!r} is {known}", found)
    if older:
        if not _same_values(model, values):
            _warn_of_weights(path)
        return
    known_values = dict(zip(there, values, strict=True))
    for name, tensor in _state(model):
        if name in known_values and _differ(_sums(tensor), known_values[name], here[name], there[name]):
            _warn_of_weights(path, f" ({name!r} is the first that differs)")
            return
    if renamed is not None:
        warn(f"'{path}' may have been fitted for another model: {renamed}. If it computes something else, fit again.")


def _tensors(model: nn.Module) -> dict[str, list[Any]]:
    """Precision and shape of each tensor of the state."""
    return {name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape] for name, tensor in _state(model)}


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the state, but for what counts batches; names are those without wrappers."""
    for prefix, module in named(model):
        own: dict[str, Any] = {}
        # As state_dict does; quantised layers have no parameters, but write what they have packed.
        module._save_to_state_dict(own, f"{prefix}." if prefix else "", keep_vars=True)
        for name, value in own.items():
            if name.rpartition(".")[2] in ("num_batches_tracked", "_extra_state"):
                continue
            parts = {f"{name}.{i}": part for i, part in enumerate(value)} if isinstance(value, tuple) else {name: value}
            yield from ((key, part) for key, part in parts.items() if isinstance(part, Tensor))


def _kinds(model: nn.Module) -> dict[str, str]:
    """Each module's class, torch's own marked; what does nothing in evaluation mode is left out."""
    found = {}
    for name, module in named(model):
        kind = getattr(module, "original_name", module._get_name())  # of a TorchScript module
        if not isinstance(module, IDLE) and "drop" not in kind.lower():
            found[name] = f"torch.{kind}" if type(module).__module__.startswith(LAYERS) else kind
    return found


def _other_module(here: Mapping[str, str], described: Mapping[str, Any], path: Any) -> str | None:
    """Refuse another layer of torch; the first other class of a different kind, in words."""
    there: Mapping[str, str] = described["modules"]
    renamed = None
    for name in {**there, **here}:
        kind, found = there.get(name, "missing"), here.get(name, "missing")
        if kind.removeprefix("torch.") == found.removeprefix("torch."):
            continue
        if kind.startswith("torch.") or found.startswith("torch."):
            hint = ". Quantise before the fit, or fit again" if "Quantized" in found else ""
            what = f"layer {name!r}" if name else "the model"
            _refuse(path, described, f"{what} is {kind}", found + hint)
        if "missing" not in (kind, found):
            renamed = renamed or f"there, module {name!r} is {kind}, here {found}"
    return renamed


def _sums(tensor: Tensor) -> Tensor:
    """Random-signed sums of all numbers of a tensor, and their norm, in float64: (9,); NaN where it has no data."""
    if tensor.is_meta:
        return torch.full((SUMS + 1,), math.nan, dtype=torch.float64, device="cpu")
    tensor = tensor.detach()
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = tensor.reshape(-1)
    flat = flat if flat.device.type in ("cpu", "cuda") else flat.cpu()  # others may have no float64
    found = _signed(flat)
    if not bool(found.isfinite().all()):  # a mask of -inf, for instance
        found = _signed(flat.nan_to_num(nan=1.0, posinf=2.0, neginf=-2.0))
    return found.cpu()


def _signed(flat: Tensor) -> Tensor:
    pattern = _signs("numbers", BLOCK).to(flat.device)
    signs = _signs("blocks", -(-flat.numel() // BLOCK)).to(flat.device)
    total = torch.zeros(SUMS + 1, dtype=torch.float64, device=flat.device)
    for some, own in zip(flat.split(BLOCKS * BLOCK), signs.split(BLOCKS), strict=True):
        blocks = pad(some.double(), (0, -len(some) % BLOCK)).view(-1, BLOCK)
        total[:SUMS] += (blocks @ pattern * own).sum(0)
        total[SUMS] += torch.linalg.vector_norm(blocks).square()
    total[SUMS].sqrt_()
    return total


@cache
def _signs(of: str, count: int) -> Tensor:
    """Rows of eight signs, the same for ever: torch does not promise that of its generators. (count, 8)."""
    bits = np.unpackbits(np.frombuffer(hashlib.shake_256(of.encode()).digest(count), np.uint8))
    return torch.from_numpy(1.0 - 2.0 * bits.reshape(count, SUMS))


def _differ(found: Tensor, known: Tensor, here: list[Any], there: list[Any]) -> bool:
    """Whether sums are those of other numbers; of the same in another precision they are not."""
    norm = float(known[SUMS])
    rounded = CAST * norm + SMALLEST * math.sqrt(math.prod(here[1:]))
    return bool(((found - known).abs() > (EXACT * norm if here[0] == there[0] else rounded)).any())


def _same_values(model: nn.Module, values: Tensor) -> bool:
    """Whether four evenly spaced numbers of every tensor are those that version 0.1.0 wrote."""
    parts = [torch.zeros(0, dtype=torch.float32, device="cpu")]
    for _, tensor in _state(model):
        flat = tensor.detach().reshape(-1)
        if flat.numel() and flat.is_floating_point():
            index = torch.linspace(0, flat.numel() - 1, 4, dtype=torch.float64, device="cpu").long()
            parts.append(flat[index.to(flat.device)].float().cpu())
    some = torch.cat(parts)
    return some.shape == values.shape and torch.allclose(some, values.float(), rtol=CAST, atol=1e-6)


def _warn_of_weights(path: Any, first: str = "") -> None:
    warn(
        f"the model's weights are not those that '{path}' was fitted for{first}. With other weights, scores mean "
        "nothing: load the weights it was fitted for, or fit again."
    )


def _refuse(path: Any, described: Mapping[str, Any], there: str, here: Any) -> None:
    raise Unusable(
        f"'{path}' was fitted for another model ({described['class']}): there, {there}, here {here}. Load it with the "
        "model it was fitted for."
    )
