"""Monte-Carlo dropout: one network, sampled by leaving its dropout on; and dropout for networks built without it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..extract import Pixels
from ..io import plain
from ..model.batches import Adapter, Batch
from ..model.capture import device_of, find, run
from ..model.tasks import Prediction, Task, TaskName
from ..uncertainty import LayerScores
from ._masks import Masks, dropout_layers
from .voting import VotingDetector, VotingReader


class MCDropout(VotingDetector):
    r"""Several passes with dropout left on, taken as samples of the weights (Gal and Ghahramani, 2016).

    Uncertainties are those of `DeepEnsemble`, with samples for members. The model stays in evaluation mode; what a
    dropout layer returns is masked on its way to the next. What counts as dropout are `nn.Dropout` and its kin, and
    the `dropout=` of `nn.MultiheadAttention` and of recurrent layers; calls of `torch.nn.functional.dropout` inside a
    model's own code cannot be seen and stay off.

    Masks come from a generator of each call's own. Only attention, recurrent layers, `nn.TransformerEncoder` and
    dropout layers with a `forward` of your own draw inside torch, from the generator of the process. It is seeded for
    the time of the call and then set back, so that other threads that draw from it meanwhile see numbers again.

    The inputs are repeated along the batch, so that one pass draws several samples: every row has its own mask. Where
    that cannot be (an input without the batch in front, a mask that the rows share), samples are drawn pass by pass.

    Args:
        model: any network that was trained with dropout; see `insert_dropout` for those that have none.
        samples: how many.
        seed: of the masks; each call starts from it.
        max_rows: at most so many rows per pass, as far as whole batches allow; 1 draws one sample per pass. None takes
            128 on a CPU and 512 elsewhere.
        logits: False when a classifier returns probabilities.
        task: what the network predicts; None infers it where the outputs leave no doubt, and logs it.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        pixels: for networks that predict for every pixel, as for `LatentDensity`.
        unpack: see `Detector`.
        progress: see `Detector`.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        >>> u = MCDropout(model, samples=20)(torch.randn(8, 4))
        >>> u.epistemic.shape, bool((u.epistemic > 0).all())
        (torch.Size([8]), True)
    """

    def __init__(
        self,
        model: nn.Module,
        samples: int = 10,
        *,
        seed: int = 0,
        max_rows: int | None = None,
        logits: bool = True,
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        pixels: Pixels | None = None,
        unpack: Adapter | None = None,
        progress: bool | None = None,
    ) -> None:
        if samples < 2:
            raise ValueError(f"samples must be at least 2, to differ from one another, not {samples}.")
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, not {max_rows}.")
        dropout_layers(model)
        options: dict[str, Any] = {"task": task, "output": output, "logits": logits, "pixels": pixels, "unpack": unpack}
        reader = DropoutReader(model, samples, seed=seed, max_rows=max_rows, **options)
        super().__init__(reader, seed=seed, progress=progress)


class DropoutReader(VotingReader):
    """Runs the network several times on each batch, with dropout left on.

    Args:
        model: has dropout.
        samples: how many.
        seed: of the masks.
        max_rows: at most so many rows per pass.
        options: those of `VotingReader`.
    """

    repeats = False  # masks differ with an input's place in its batch

    def __init__(self, model: nn.Module, samples: int, *, seed: int, max_rows: int | None, **options: Any) -> None:
        super().__init__(model, **options)
        self.samples, self.seed, self.max_rows = plain(samples), plain(seed), plain(max_rows)
        self._apart: bool | None = None  # whether rows have masks of their own; None until a batch was repeated

    def parts(self, batch: Batch) -> tuple[Prediction, LayerScores]:
        """What the samples say together."""
        task = self.task
        if task is None:
            output, _ = run(self.model, {}, batch.args, batch.kwargs)
            task = self.known_task(output, batch)
        # Ten samples of a small convolutional network: on a CPU core, passes of 512 rows took twice as long as those of
        # 128 or fewer, which fit its caches; on an H200, passes of 512 took a third to a half of sample by sample.
        on_cpu = (device_of(self.model) or torch.device("cpu")).type == "cpu"
        rows = self.max_rows or (128 if on_cpu else 512)
        repeat = self._apart is not False and _repeatable((batch.args, batch.kwargs), len(batch))
        most = rows // max(len(batch), 1) if repeat else 1
        samples, output = self._sample(batch, task, max(most, 1))
        if not samples:
            samples, output = self._sample(batch, task, 1)
        return self.vote(task, samples, output)

    def _sample(self, batch: Batch, task: Task, most: int) -> tuple[list[Prediction], Any]:
        """Draw the samples, at most so many per pass; none where the rows of a repeated batch share a mask."""
        masks, check = Masks(self.model, self.seed), Masks(self.model, self.seed)
        samples: list[Prediction] = []

        def work(inner: nn.Module) -> Any:
            for start in range(0, self.samples, most):
                times = min(most, self.samples - start)
                masks.sizes.clear()
                output = _call(inner, batch, times)
                if not masks.sizes:
                    names = ", ".join(map(repr, dropout_layers(self.model)))
                    raise RuntimeError(
                        f"none of the model's dropout layers ({names}) was called, so that all samples would be the "
                        "same. Choose a model whose forward calls them."
                    )
                value, classes, variance = self.sample(output, task)
                if times > 1 and self._apart is None:
                    single = check.around(lambda inner: self.sample(_call(inner, batch, 1), task).value)
                    repeated = [times * size for size in check.sizes]
                    self._apart = len(value) == times * len(single) and masks.sizes == repeated
                if times > 1 and not self._apart:
                    samples.clear()
                    return output
                rows = (times, len(value) // times)
                variance = None if variance is None else variance.reshape(*rows, *variance.shape[1:])
                samples.append(Prediction(value.reshape(*rows, *value.shape[1:]), classes, variance))
            return output

        return samples, masks.around(work)


def insert_dropout(
    model: nn.Module, p: float, *, after: Literal["linear"] | type | Sequence[str] = "linear"
) -> nn.Module:
    """A copy of the model with dropout after chosen modules, to be trained (or trained on) and given to `MCDropout`.

    The model itself is unchanged. In the copy each chosen module is inside a `WithDropout`, under its own name; the
    names in the `state_dict` stay as they were.

    Args:
        model: any `nn.Module`.
        p: the share of activations to drop.
        after: `"linear"`: all `nn.Linear` but the last, which gives the output; a type: all modules of it, such as the
            blocks of a residual network; or names of modules.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> insert_dropout(model, 0.1)[0].dropout
        Dropout(p=0.1, inplace=False)
        >>> insert_dropout(model, 0.1).load_state_dict(model.state_dict())
        <All keys matched successfully>
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is the share of activations to drop, at least 0 and less than 1, not {p}.")
    twin = copy.deepcopy(find(model, [""])[""])
    wrapped = {module: WithDropout(module, p) for module in _chosen(twin, after)}
    for parent in list(twin.modules()):
        for key, child in parent._modules.items():
            if child in wrapped:
                parent._modules[key] = wrapped[child]
    return wrapped.get(twin, twin)


class WithDropout(nn.Module):
    """A module followed by dropout, made by `insert_dropout`; its other attributes are the module's.

    In a `state_dict` it has the names of the module alone, so that weights go to and fro between a model with dropout
    and the one without.
    """

    def __init__(self, module: nn.Module, p: float) -> None:
        super().__init__()
        self.module, self.dropout = module, nn.Dropout(p)
        self.training = self.dropout.training = module.training
        self.register_state_dict_post_hook(_shorten)
        self.register_load_state_dict_pre_hook(_lengthen)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The module's output, with dropout."""
        output = self.module(*args, **kwargs)
        if not isinstance(output, Tensor):
            raise TypeError(
                f"dropout was inserted after a {type(self.module).__name__}, which returns a {type(output).__name__}, "
                "not a tensor: choose another module."
            )
        return self.dropout(output)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def _call(model: nn.Module, batch: Batch, times: int) -> Any:
    try:
        return model(*_repeated(batch.args, times), **_repeated(batch.kwargs, times))
    except Exception as error:
        if times > 1:
            error.add_note(
                f"The inputs were repeated {times} times along the batch, to draw as many samples in one pass; "
                "MCDropout(..., max_rows=1) draws one per pass."
            )
        raise


def _repeatable(inputs: Any, n: int) -> bool:
    """Whether all that may depend on the batch are plain tensors with the batch in front."""
    if isinstance(inputs, Tensor):
        return inputs.dim() == 0 or (inputs.layout == torch.strided and not inputs.is_nested and len(inputs) == n)
    if isinstance(inputs, Mapping):
        return all(_repeatable(part, n) for part in inputs.values())
    if isinstance(inputs, tuple | list):
        return all(_repeatable(part, n) for part in inputs)
    return inputs is None or isinstance(inputs, bool | int | float | torch.dtype | torch.device)


def _repeated(inputs: Any, times: int) -> Any:
    """Copies: a model that starts with dropout in place must not change the user's inputs."""
    if isinstance(inputs, Tensor):
        return inputs.clone() if times == 1 or inputs.dim() == 0 else torch.cat([inputs] * times)
    if isinstance(inputs, Mapping):
        return {key: _repeated(part, times) for key, part in inputs.items()}
    if isinstance(inputs, tuple) and hasattr(inputs, "_fields"):
        return type(inputs)(*(_repeated(part, times) for part in inputs))
    if isinstance(inputs, tuple | list):
        return type(inputs)(_repeated(part, times) for part in inputs)
    return inputs


def _chosen(model: nn.Module, after: Any) -> list[nn.Module]:
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
        # Attention uses the weights of its own linear layers without calling them.
        inside = {
            part for module in model.modules() if isinstance(module, nn.MultiheadAttention) for part in module.modules()
        }
        linear: list[nn.Module] = [
            module for module in model.modules() if isinstance(module, nn.Linear) and module not in inside
        ]
        if len(linear) < 2:
            raise ValueError(
                f"the model has {len(linear)} nn.Linear, and after the last there is no dropout: say where with "
                "after=, a type or a list of names."
            )
        return linear[:-1]
    if not after:
        raise ValueError("after names no module to insert dropout after.")
    return list(find(model, after).values())


def _shorten(layer: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}module.")]:
        state[prefix + key.removeprefix(f"{prefix}module.")] = state.pop(key)


def _lengthen(layer: nn.Module, state: dict[str, Any], prefix: str, *details: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}module.{key.removeprefix(prefix)}"] = state.pop(key)
