"""Dropout left on in a model that stays in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..model.capture import Callback, lend, named

T = TypeVar("T")
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)  # drop whole channels
_UNBATCHED = {nn.Dropout1d: 2, nn.Dropout3d: 4}  # the dimensions of one input
_ALPHA = 1.7580993408473766  # minus the value that SELU tends to


class Masks:
    """Dropout left on in a model in evaluation mode, from one seed.

    Args:
        model: has dropout.
        seed: of the masks.
    """

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.model, self.seed = model, seed
        self.sizes: list[int] = []  # of what dropout gave; 0 where that is no tensor
        self._generators: dict[torch.device, torch.Generator] = {}
        self._callbacks: dict[str, Callback] = {}
        self._inside = False  # whether torch draws masks itself
        dropout, whole = dropout_layers(model), ""
        for name, layer in named(model):
            if whole and name.startswith(whole):
                continue
            # In evaluation mode it packs padded batches for a fused path that knows no dropout.
            packs = isinstance(layer, nn.TransformerEncoder) and getattr(layer, "use_nested_tensor", False)
            own = isinstance(layer, _DROPOUT) and any(type(layer).forward is kind.forward for kind in _DROPOUT)
            if name in dropout and own:
                self._callbacks[name] = self._masked(layer)
            elif name in dropout or (packs and any(inner.startswith(f"{name}.") for inner in dropout)):
                self._callbacks[name], self._inside, whole = self._again(_twin(layer)), True, f"{name}."

    def around(self, work: Callable[[nn.Module], T]) -> T:
        """Call `work` with a model whose dropout is on, in this thread alone."""
        seeded = (lambda inner: _seeded(self.seed, inner, lambda: work(inner))) if self._inside else work
        return lend(self.model, self._callbacks, seeded, exclusive=self._inside)

    def _masked(self, layer: Any) -> Callback:
        def callback(output: Tensor, *_: Any) -> Tensor:
            self.sizes.append(output.numel())
            device = output.device
            if device not in self._generators:
                self._generators[device] = torch.Generator(device).manual_seed(self.seed)
            dropped = _drop(layer, output, self._generators[device])
            return output.copy_(dropped) if layer.inplace else dropped

        return callback

    def _again(self, twin: nn.Module) -> Callback:
        def callback(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            output = twin.forward(*args, **kwargs)
            self.sizes.append(output.numel() if isinstance(output, Tensor) else 0)
            return output

        return callback


def dropout_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that drop activations in training mode, by name."""
    shares = {name: (module, _share(module)) for name, module in named(model)}
    layers = {name: module for name, (module, share) in shares.items() if share}
    if not layers:
        idle = [name for name, (_, share) in shares.items() if share == 0]
        what = f"dropout layers with p=0 only ({', '.join(map(repr, idle))})" if idle else "no dropout layer"
        raise ValueError(
            f"the model has {what}, so that all samples would be the same; calls of torch.nn.functional.dropout cannot "
            "be seen. insert_dropout(model, 0.1) gives a copy with dropout layers, to be trained."
        )
    return layers


def _share(module: nn.Module) -> float | None:
    """What share of activations a module drops; None if it is no dropout."""
    if isinstance(module, _DROPOUT):
        return module.p
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout
    if isinstance(module, nn.RNNBase):
        return module.dropout if module.num_layers > 1 else None  # it is between its layers
    return None


def _drop(layer: Any, x: Tensor, generator: torch.Generator) -> Tensor:
    """What torch's dropout layers return in training mode, number for number on a CPU."""
    if x.numel() == 0:
        return x
    noise = torch.empty_like(x)
    if isinstance(layer, _CHANNELS):
        kept = 1 if x.dim() == _UNBATCHED.get(type(layer)) else 2
        noise = x.new_empty(x.shape[:kept] + (1,) * (x.dim() - kept))
    p = layer.p
    noise.bernoulli_(1 - p, generator=generator)
    if p == 1:
        return x * noise
    if not isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout):
        return x * noise.div_(1 - p)
    scale = 1 / ((_ALPHA**2 * p + 1) * (1 - p)) ** 0.5
    shift = (noise - 1).mul_(_ALPHA * scale).add_(_ALPHA * scale * p)
    return (x * noise.mul_(scale)).add_(shift)


def _twin(module: nn.Module) -> nn.Module:
    """A module with dropout on beside the user's own: its structure is copied, its tensors are shared."""
    twin = object.__new__(type(module))
    children = {name: None if child is None else _twin(child) for name, child in module._modules.items()}
    # The mode of nn.TransformerEncoderLayer itself keeps it off its fused path, which knows no dropout.
    training = _share(module) is not None or isinstance(module, nn.TransformerEncoderLayer)
    twin.__dict__.update(module.__dict__, _modules=children, training=training)
    return twin


def _seeded(seed: int, model: nn.Module, work: Callable[[], T]) -> T:
    """Seed the process's generators, on the CPU and where the model is; afterwards they go on where they were."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.device.type != "cpu"}
    states = [(device, torch.get_device_module(device).get_rng_state(device)) for device in devices]
    state = torch.default_generator.get_state()

    def put_back() -> None:
        torch.default_generator.set_state(state)
        for device, other in states:
            torch.get_device_module(device).set_rng_state(other, device)

    try:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach for every GPU too
        for device in devices:
            ours = torch.Generator(device).manual_seed(seed).get_state()
            torch.get_device_module(device).set_rng_state(ours, device)
        return work()
    finally:
        try:
            put_back()
        finally:
            put_back()  # an interrupt may have cut it short
