"""Monte-Carlo dropout: one network, sampled by leaving its dropout on; and dropout for networks built without it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from ..io import plain
from ..model.batches import Batch
from ..model.capture import Callback, find, lend, named
from ..precision import put_back_after
from .ensemble import VotingDetector
from .outputs import OutputOptions

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # drop whole channels
_OWN = (nn.Dropout, *_CHANNELS)  # whose masks are drawn here
_UNBATCHED = {nn.Dropout1d: 2, nn.Dropout3d: 4}  # the dimensions of one input


class MCDropout(VotingDetector):
    r"""Several passes with dropout left on, taken as samples of the weights (Gal and Ghahramani, 2016).

    Uncertainties are those of `DeepEnsemble`, with samples for members. The model stays in evaluation mode; what a
    dropout layer returns is masked on its way to the next. What counts as dropout are `nn.Dropout` and its kin, and
    the `dropout=` of `nn.MultiheadAttention` and of recurrent layers; calls of `torch.nn.functional.dropout` inside a
    model's own code cannot be seen and stay off.

    Masks come from a generator of each call's own; only where torch draws them itself, as in attention, recurrent and
    alpha dropout layers, is that of the process seeded for the time of the call.

    Args:
        model: any network that was trained with dropout; see `insert_dropout` for those that have none.
        samples: how many.
        seed: of the masks; each call starts from it.
        options: `logits`, `task`, `output`, `pixels`, `unpack` and `progress`: see `OutputOptions`.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        >>> u = MCDropout(model, samples=20)(torch.randn(8, 4))
        >>> u.epistemic.shape, bool((u.epistemic > 0).all())
        (torch.Size([8]), True)
    """

    repeats = False  # masks differ with an input's place in its batch

    def __init__(self, model: nn.Module, samples: int = 10, *, seed: int = 0, **options: Unpack[OutputOptions]) -> None:
        if samples < 2:
            raise ValueError(f"samples must be at least 2, to differ from one another, not {samples}.")
        dropout_layers(model)
        self.samples = plain(samples)
        super().__init__(model, options, seed=seed)

    def passes(self, batch: Batch, take: Callable[[Any], None]) -> None:
        """Run the network several times, each time with other masks."""
        used: list[bool] = []  # one for each call of a dropout layer
        callbacks, inside = _masks(self.model, self.seed, used)

        def work(inner: nn.Module) -> None:
            for _ in range(self.samples):
                inputs = batch.clone()  # a model that starts with dropout in place must not change the user's
                output = inner(*inputs.args, **inputs.kwargs)
                if not used:
                    names = ", ".join(map(repr, dropout_layers(self.model)))
                    raise RuntimeError(
                        f"none of the model's dropout layers ({names}) was called, so that all samples would be the "
                        "same. Choose a model whose forward calls them."
                    )
                take(output)

        seeded = partial(_seeded, self.seed, work) if inside else work
        lend(self.model, callbacks, seeded, exclusive=inside)


def _masks(model: nn.Module, seed: int, used: list[bool]) -> tuple[dict[str, Callback], bool]:
    """What leaves dropout on in a model in evaluation mode, by layer; and whether torch itself draws some masks."""
    generator = cache(lambda device: torch.Generator(device).manual_seed(seed))

    def masked(layer: Any, output: Tensor, *_: Any) -> Tensor:
        used.append(True)
        dropped = _drop(layer, output, generator(output.device))
        return output.copy_(dropped) if layer.inplace else dropped

    def again(twin: nn.Module, output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        used.append(True)
        return twin.forward(*args, **kwargs)

    callbacks: dict[str, Callback] = {}
    dropout, whole = dropout_layers(model), ""  # the latest module that is run again, with all that it holds
    for name, layer in named(model):
        if whole and name.startswith(whole):
            continue
        # In evaluation mode it packs padded batches for a fused path that knows no dropout.
        packs = isinstance(layer, nn.TransformerEncoder) and getattr(layer, "use_nested_tensor", False)
        if name in dropout and any(type(layer).forward is kind.forward for kind in _OWN):
            callbacks[name] = partial(masked, layer)
        elif name in dropout or (packs and any(inner.startswith(f"{name}.") for inner in dropout)):
            callbacks[name], whole = partial(again, _twin(layer)), f"{name}."
    return callbacks, bool(whole)


def dropout_layers(model: nn.Module) -> list[str]:
    """The names of the modules that drop activations in training mode."""
    shares = {name: _share(module) for name, module in named(model)}
    layers = [name for name, share in shares.items() if share]
    if not layers:
        idle = [name for name, share in shares.items() if share == 0]
        what = f"dropout layers with p=0 only ({', '.join(map(repr, idle))})" if idle else "no dropout layer"
        raise ValueError(
            f"the model has {what}, so that all samples would be the same; calls of torch.nn.functional.dropout cannot "
            "be seen. insert_dropout(model, 0.1) gives a copy with dropout layers, to be trained."
        )
    return layers


def _share(module: nn.Module) -> float | None:
    """What share of activations a module drops; None if it is no dropout."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
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
    noise.bernoulli_(1 - layer.p, generator=generator)
    return x * (noise if layer.p == 1 else noise.div_(1 - layer.p))


def _twin(module: nn.Module) -> nn.Module:
    """A module with dropout on beside the user's own: its structure is copied, its tensors are shared."""
    twin = object.__new__(type(module))
    children = {name: None if child is None else _twin(child) for name, child in module._modules.items()}
    # The mode of nn.TransformerEncoderLayer itself keeps it off its fused path, which knows no dropout.
    training = _share(module) is not None or isinstance(module, nn.TransformerEncoderLayer)
    twin.__dict__.update(module.__dict__, _modules=children, training=training)
    return twin


def _seeded(seed: int, work: Callable[[nn.Module], None], model: nn.Module) -> None:
    """Seed the process's generators, on the CPU and where the model is; afterwards they go on where they were."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.device.type != "cpu"}
    states = {device: torch.get_device_module(device).get_rng_state(device) for device in devices}
    state = torch.default_generator.get_state()

    def seeded() -> None:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach for every GPU too
        for device in devices:
            ours = torch.Generator(device).manual_seed(seed).get_state()
            torch.get_device_module(device).set_rng_state(ours, device)
        work(model)

    def put_back() -> None:
        torch.default_generator.set_state(state)
        for device in devices:
            torch.get_device_module(device).set_rng_state(states[device], device)

    put_back_after(seeded, put_back)


def insert_dropout(
    model: nn.Module, p: float, *, after: Literal["linear"] | type | Sequence[str] = "linear"
) -> nn.Module:
    """A copy of the model with dropout after chosen modules, to be trained (or trained on) and given to `MCDropout`.

    The model itself is unchanged. In the copy each chosen module has a dropout layer for its output, `inserted_dropout`
    (in an `nn.Sequential` the last layer); the names in the `state_dict` stay as they were.

    Args:
        model: any `nn.Module`.
        p: the share of activations to drop.
        after: `"linear"`: all `nn.Linear` but the last, which gives the output; a type: all modules of it, such as the
            blocks of a residual network; or names of modules.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> insert_dropout(model, 0.1)[0].inserted_dropout
        Dropout(p=0.1, inplace=False)
        >>> insert_dropout(model, 0.1).load_state_dict(model.state_dict())
        <All keys matched successfully>
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is the share of activations to drop, at least 0 and less than 1, not {p}.")
    twin = copy.deepcopy(find(model, [""])[""])
    for module in dict.fromkeys(_chosen(twin, after)):
        dropout = nn.Dropout(p).train(module.training)
        if type(module).forward is nn.Sequential.forward:
            module.append(dropout)  # type: ignore[operator]
        else:
            module.inserted_dropout = dropout
            module.register_forward_hook(_dropped)
    return twin


def _dropped(module: Any, args: Any, output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise TypeError(
            f"dropout was inserted after a {type(module).__name__}, which returns a {type(output).__name__}, not a "
            "tensor: choose another module."
        )
    return module.inserted_dropout(output)


def _chosen(model: nn.Module, after: Any) -> Sequence[nn.Module]:
    if isinstance(after, type):
        modules = [module for module in model.modules() if isinstance(module, after)]
        if not modules:
            raise ValueError(f"the model has no {after.__name__} to insert dropout after.")
        return modules
    if isinstance(after, str):
        if after != "linear":
            raise ValueError(
                f"after must be 'linear', a type or a list of names, not {after!r}; for one name: [{after!r}]."
            )
        # Attention uses the weights of its own linear layer without calling it.
        inside = {module.out_proj for module in model.modules() if isinstance(module, nn.MultiheadAttention)}
        linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module not in inside]
        if len(linear) < 2:
            raise ValueError(
                f"the model has {len(linear)} nn.Linear, and after the last there is no dropout: say where with "
                "after=, a type or a list of names."
            )
        return linear[:-1]
    if not after:
        raise ValueError("after names no module to insert dropout after.")
    return list(find(model, after).values())
