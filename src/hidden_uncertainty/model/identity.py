"""Which model a detector was fitted for: enough to notice another structure, or other weights, before scoring."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
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
SAME = {"inplace", "momentum", "dropout", "dtype", "device"}  # options that change nothing in evaluation mode


def describe(model: nn.Module) -> dict[str, Any]:
    """The model's structure, as JSON: the tensors in its state, and its modules with their options."""
    return {
        "class": type(model).__name__,
        "torch": _torch_version(),
        "tensors": {name: [_name(tensor.dtype), *tensor.shape] for name, tensor in _state(model)},
        "modules": _modules(model),
    }


def weights(model: nn.Module) -> Tensor:
    """Eight random-signed sums of every tensor in the model's state, and its norm, in float64: (tensors, 9).

    Tensors that differ by more than a tiny part of their norm have different sums, in whichever numbers they differ.
    """
    rows = [_sums(tensor) for _, tensor in _state(model)]
    return torch.stack(rows) if rows else torch.zeros(0, SUMS + 1, dtype=torch.float64, device="cpu")


def check_same(model: nn.Module, described: Mapping[str, Any], values: Tensor, path: Any) -> None:
    """Refuse a model of another structure than was `described`; warn where its weights are not those of `values`.

    The tensors in its state must have the same names and shapes, and torch's own layers the same options. What changes
    nothing in evaluation mode, such as dropout, may differ. Classes of other libraries, and of one's own, may have been
    renamed: that is a warning.
    """
    if "tensors" not in described:
        _check_as_before(model, described, values, path)
        return
    here = {name: [_name(tensor.dtype), *tensor.shape] for name, tensor in _state(model)}
    there: dict[str, list[Any]] = dict(described["tensors"])
    both = [name for name in there if name in here]
    for name in both:
        if here[name][1:] != there[name][1:]:
            _refuse(path, described, f"parameter {name!r} is {tuple(there[name][1:])}", tuple(here[name][1:]))
    renamed = _other_module(_modules(model), described, path)
    for name in [name for name in {**there, **here} if name not in both]:
        dtype, *shape = there.get(name) or here[name]
        if "float" in dtype:  # buffers of whole numbers, such as positions, come and go between versions of libraries
            known, found = ("missing", tuple(shape)) if name in here else (tuple(shape), "missing")
            _refuse(path, described, f"parameter {name!r} is {known}", found)
    known_values = dict(zip(there, values, strict=True))
    for name, tensor in _state(model):
        if name in known_values and _differ(_sums(tensor), known_values[name], here[name], there[name]):
            _warn_of_weights(path, f" ({name!r} is the first that differs)")
            return
    if renamed is not None:
        warn(f"'{path}' may have been fitted for another model: {renamed}. If it computes something else, fit again.")


def _walk(model: nn.Module) -> Iterator[tuple[str, nn.Module, dict[str, Any]]]:
    """Each module with its name, without wrappers, and what it would write into a saved state, by full names."""
    for name, module in named(model):
        own: dict[str, Any] = {}
        # As state_dict does; quantised layers have no parameters, but write what they have packed.
        module._save_to_state_dict(own, f"{name}." if name else "", keep_vars=True)
        yield name, module, own


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the state, but for what counts batches."""
    for _, _, own in _walk(model):
        for name, value in own.items():
            if name.rpartition(".")[2] in ("num_batches_tracked", "_extra_state"):
                continue
            parts = {f"{name}.{i}": part for i, part in enumerate(value)} if isinstance(value, tuple) else {name: value}
            yield from ((key, part) for key, part in parts.items() if isinstance(part, Tensor))


def _modules(model: nn.Module) -> dict[str, list[Any]]:
    """Each module's class and, for torch's own, its options; what does nothing in evaluation mode is left out."""
    found = {}
    for name, module, own in _walk(model):
        kind = getattr(module, "original_name", module._get_name())  # of a TorchScript module
        if isinstance(module, IDLE) or "drop" in kind.lower():
            continue
        ours = type(module).__module__.startswith(LAYERS)
        found[name] = [f"torch.{kind}", _options(module, own)] if ours else [kind, {}]
    return found


def _options(module: nn.Module, own: Mapping[str, Any]) -> dict[str, str]:
    """What a layer says of itself, but for what its tensors say already."""
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        return {}
    parts = re.split(r",\s*(?![^()\[\]]*[)\]])", module.extra_repr())  # at commas outside brackets
    options = {}
    for place, part in enumerate(filter(None, parts)):
        key, equals, value = part.rpartition("=")
        options[key.strip() if equals else str(place)] = value.strip(" '\"")
    tensors = {name.rpartition(".")[2] for name in own}
    return {key: value for key, value in options.items() if key not in SAME | tensors}


def _other_module(here: Mapping[str, list[Any]], described: Mapping[str, Any], path: Any) -> str | None:
    """Refuse another layer of torch, or one with other options; the first other class of a different kind, in words."""
    there: Mapping[str, list[Any]] = described["modules"]
    renamed = None
    for name in {**there, **here}:
        (kind, options), (found, now) = there.get(name, ["missing", {}]), here.get(name, ["missing", {}])
        if kind.removeprefix("torch.") != found.removeprefix("torch."):
            if kind.startswith("torch.") or found.startswith("torch."):
                hint = ". Quantise before the fit, or fit again" if "Quantized" in found else ""
                what = f"layer {name!r}" if name else "the model"
                _refuse(path, described, f"{what} is {kind}", found + hint)
            if "missing" not in (kind, found):
                renamed = renamed or f"there, module {name!r} is {kind}, here {found}"
            continue
        # Another version of torch may say more, or less, of the same layer.
        keys = {**options, **now} if described["torch"] == _torch_version() else [key for key in options if key in now]
        for key in keys if kind.startswith("torch.") and found.startswith("torch.") else ():
            if options.get(key) != now.get(key):
                what = f"layer {name!r} ({kind}) has {key}={options.get(key, 'default')}"
                _refuse(path, described, what, f"{key}={now.get(key, 'default')}")
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
    for start in range(0, flat.numel(), BLOCKS * BLOCK):
        part = flat[start : start + BLOCKS * BLOCK].double()
        whole, first = len(part) // BLOCK, start // BLOCK
        blocks, rest = part[: whole * BLOCK].view(whole, BLOCK), part[whole * BLOCK :]
        total[:SUMS] += (blocks @ pattern * signs[first : first + whole]).sum(0)
        if len(rest):
            total[:SUMS] += rest @ pattern[: len(rest)] * signs[first + whole]
        total[SUMS] += torch.linalg.vector_norm(part).square()
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


def _check_as_before(model: nn.Module, described: Mapping[str, Any], values: Tensor, path: Any) -> None:
    """What version 0.1.0 wrote of a model: shapes, and four evenly spaced values of every tensor."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in named(model):
        tensors |= dict(module.named_parameters(prefix, recurse=False))
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if buffer.is_floating_point() and name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                tensors[name] = buffer
    there: Mapping[str, list[int]] = described["parameters"]
    here = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for name in {**there, **here}:
        known, found = (tuple(shapes[name]) if name in shapes else "missing" for shapes in (there, here))
        if known != found:
            _refuse(path, described, f"parameter {name!r} is {known}", found)
    parts = [torch.zeros(0, dtype=torch.float32, device="cpu")]
    for tensor in tensors.values():
        flat = tensor.detach().reshape(-1)
        if flat.numel() and flat.is_floating_point():
            index = torch.linspace(0, flat.numel() - 1, 4, dtype=torch.float64, device="cpu").long()
            parts.append(flat[index.to(flat.device)].float().cpu())
    some = torch.cat(parts)
    if some.shape != values.shape or not torch.allclose(some, values.float(), rtol=CAST, atol=1e-6):
        _warn_of_weights(path)


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


def _torch_version() -> str:
    return ".".join(torch.__version__.split(".")[:2])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
