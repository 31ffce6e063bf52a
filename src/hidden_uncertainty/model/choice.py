"""Which layers to read when none is named: what the head reads, and two that come before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from . import capture
from .batches import Batch, leaves
from .outputs import select

SHARES = (1 / 3, 2 / 3)  # of the layers with weights before the head: about there the other two are taken
ORDERED = (nn.RNNBase, nn.MultiheadAttention)  # each token that they give depends on others that they read
MOST = 0.8  # a part of the network that has more than this share of them is looked into
How = Literal["flatten", "channels", "tokens", "token"]
Pool = Literal["mean", "moments", "last"]


class Choice(NamedTuple):
    """A layer to read, how its activations become a vector, and why it was chosen."""

    layer: str
    read: Literal["input", "output"]
    how: How
    pool: Pool
    width: int
    reason: str

    def __str__(self) -> str:
        return f"the {self.read} of {self.layer!r} ({self.reason})"


class Choices(list[Choice]):
    """Layers that were chosen, as a table when printed."""

    def __str__(self) -> str:
        width = max(5, *(len(choice.layer) + 2 * (not choice.layer) for choice in self))
        lines = [f"{'layer':<{width}}  read    as        width  why"]
        for layer, read, how, pool, size, reason in self:
            shown = how if pool == "mean" else pool
            lines.append(f"{layer or repr('')!s:<{width}}  {read:<6}  {shown:<8}  {size:>5}  {reason}")
        return "\n".join(lines)

    __repr__ = __str__


class View(NamedTuple):
    """A way from an activation to one vector per input."""

    how: How
    pool: Pool = "mean"


@dataclass(eq=False)
class _Call:
    """What a layer took and gave while the model ran."""

    name: str
    weighted: bool  # it has weights, and called no part of its own
    done: int  # calls of layers with weights that had ended with it
    before: type[nn.Module] | None  # the last of these layers
    source: int  # where in memory its input lies
    taken: torch.Size | None  # the shape of its input
    given: torch.Size | None  # the shape of its output
    views: dict[View, Tensor]  # its output as one vector per input, (n, k)


def choose_layers(model: nn.Module, batch: Batch, output: int | str | None = None) -> list[Choice]:
    """The features that the head reads, last, and up to two layers before it.

    The head is the layer with weights whose output is the network's own, as it is or up to a softmax, a sigmoid, a mean
    over places or tokens, or one token. It is found by running the model on a batch, not by its name.
    """
    few = _telling(batch).clone()
    try:
        calls, result = _watch(model, few)
    except Exception:  # as of an input that counts something else
        calls, result = _watch(model, few := batch)
    often = Counter(call.name for call in calls)
    once = [call for call in calls if often[call.name] == 1]
    scores = select(result, output, "the network", "output")
    if scores.ndim == 0 or scores.numel() == 0:
        raise ValueError(
            f"layers are chosen by the outputs of at least one input, (n, ...), but the network gave "
            f"{tuple(scores.shape)}: give a batch with inputs, or choose another output with output=."
        )
    head, choice = _head(once, scores, few)
    before = calls[: next(i for i, call in enumerate(calls) if call is head)]
    total = sum(call.weighted for call in before) + (choice.read == "output")
    names = _level(model, [call.name for call in before if call.weighted], set(often))
    others = [
        call
        for call in before
        if call.name in names and call in once and call.done > 0 and _readable(call.given, len(scores))
    ]
    others = [call for call in others if not _counts_padding(call, few)]
    # What comes right before the head is what it reads, and only wanted where there is nothing earlier.
    others = [call for call in others if call.done < total] or others
    found: list[_Call] = []
    for share in SHARES:
        left = [call for call in others if all(call.done != other.done for other in found)]
        if left:
            found.append(min(left, key=lambda call: abs(call.done / total - share)))
    found.sort(key=lambda call: call.done)
    told = "after {} of {} layers with weights before the head"
    return [*(_spread(_output_of(call, told.format(call.done, total))) for call in found), choice]


def _telling(batch: Batch) -> Batch:
    """As many inputs as no other axis of theirs counts, so that a layer with the time first is not taken for them."""
    n = len(batch)
    sizes = {size for tensor in leaves((batch.args, batch.kwargs), Tensor) for size in tensor.shape[1:]}
    return batch[: next((count for count in range(n, n // 2, -1) if count not in sizes), n)]


def _watch(model: nn.Module, batch: Batch) -> tuple[list[_Call], Any]:
    """All calls of layers, in the order in which they end, and what the model returns."""
    calls: list[_Call] = []
    running: list[int] = []  # how many calls had ended when each that still runs began
    modules = {  # that activations pass: neither scripted, nor a part of how a weight is computed
        name: module
        for name, module in capture.named(model)
        if not isinstance(module, torch.jit.ScriptModule) and "parametrizations" not in name.split(".")
    }
    last: type[nn.Module] | None = None
    done = 0

    def begin(*_: Any) -> None:
        running.append(len(calls))

    def noting(name: str, module: nn.Module) -> capture.Callback:
        weights = _has_weights(module)

        def note(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal last, done
            weighted = running.pop() == len(calls) and weights
            if weighted:
                last, done = type(module), done + 1
            taken, given = _tensor((*args, *kwargs.values())), _tensor(output)
            views = {} if given is None else _views(given, batch)
            source = 0 if taken is None else taken.data_ptr()
            shapes = [None if part is None else part.shape for part in (taken, given)]
            calls.append(_Call(name, weighted, done, last, source, shapes[0], shapes[1], views))

        return note

    callbacks = {name: noting(name, module) for name, module in modules.items()}
    before = dict.fromkeys(modules, begin)
    result = capture.lend(model, callbacks, lambda inner: inner(*batch.args, **batch.kwargs), before=before)
    return calls, result


def _has_weights(module: nn.Module) -> bool:
    """Whether it has a matrix; those of quantised layers are not parameters, but what a method returns."""
    return any(weight.ndim > 1 for weight in module.parameters()) or callable(getattr(module, "weight", None))


def _head(calls: Sequence[_Call], scores: Tensor, batch: Batch) -> tuple[_Call, Choice]:
    """The layer that gives the network's output, and what to read of it."""
    whole, pooled = scores.reshape(len(scores), -1), _views(scores, batch)  # where each pixel or token has its own

    def gives(call: _Call, alike: Callable[[Tensor, Tensor], bool]) -> list[View]:
        return [view for view, values in call.views.items() if alike(values, pooled.get(view, whole))]

    around = [call for call in calls if not call.weighted and gives(call, _same)]
    calls = [call for call in calls if call.weighted]
    if not calls:
        raise ValueError("no layer with weights was called once, so none can be chosen: name one with layers=.")
    known = [call for call in reversed(calls) if _readable(call.taken, len(scores))]
    # Parts that read what the whole is given, such as a layer with an adapter beside it, whose outputs are added up.
    parts = [
        call
        for call in known
        if any(call.name.startswith(f"{other.name}.") and call.source == other.source for other in around)
    ]
    for some, alike, reason in (
        (known, _same, "read by the layer that gives the network's output"),
        (parts, _as_wide, "read by the part that gives the network's output"),
        (known, _as_wide, "read by the last layer that is as wide as the network's output"),
    ):
        for call in some:
            for view in gives(call, alike):
                assert call.taken is not None and call.before is not None
                if issubclass(call.before, ORDERED):
                    given = "what the last layer gives, which is the network's output"
                    return call, Choice(call.name, "output", *view, call.views[view].shape[1], given)
                if (view.how == "flatten") == (len(call.taken) <= 2):
                    return call, Choice(call.name, "input", *view, _width(call.taken, view), reason)
    call = calls[-1]
    if not _readable(call.given, len(scores)):
        raise ValueError("what the head reads was not found: name a layer with layers=.")
    return call, _output_of(call, "the last layer with weights, as no layer gives the network's output")


def _output_of(call: _Call, reason: str) -> Choice:
    assert call.given is not None
    view = _view(call)
    return Choice(call.name, "output", *view, _width(call.given, view), reason)


def _spread(choice: Choice) -> Choice:
    """The moments of maps and tokens, and not their means alone: how they vary tells as much of unfamiliar inputs."""
    if choice.how not in ("channels", "tokens"):
        return choice
    return choice._replace(pool="moments", width=2 * choice.width)


def _level(model: nn.Module, weighted: Sequence[str], called: set[str]) -> set[str]:
    """Names of the parts that a network is made of: those of its largest part, where that is nearly all of it.

    Of a part that is never called itself, such as a list of blocks, its own parts.
    """
    within = ""
    while True:
        start = f"{within}." if within else ""
        parts = {name for name, _ in capture.named(model) if name.startswith(start) and name != within}
        parts = {name for name in parts if "." not in name.removeprefix(start)}
        sizes = {part: sum(name == part or name.startswith(f"{part}.") for name in weighted) for part in parts}
        largest = max(sizes, key=lambda part: sizes[part], default="")
        deeper = any(name.startswith(f"{largest}.") for name in weighted)
        if not largest or not deeper or sizes[largest] <= MOST * len(weighted):
            break
        within = largest
    while lists := parts - called:
        parts -= lists
        parts |= {name for name, _ in capture.named(model) if name.rpartition(".")[0] in lists}
    return parts


def _same(values: Tensor, scores: Tensor) -> bool:
    """Whether these are the network's outputs, as they are or before a softmax or a sigmoid."""
    if values.shape != scores.shape:
        return False
    coarse = max(torch.finfo(part.dtype).eps for part in (values, scores) if part.is_floating_point())
    values, scores = values.double(), scores.double()
    rtol, atol = max(1e-3, 4 * coarse), max(1e-5, coarse * float(scores.abs().max()))
    made = [(values, scores), (values.softmax(1), scores), (values.sigmoid(), scores)]
    if values.shape[1] > 1:
        made.append((values.log_softmax(1), scores.log_softmax(1)))
    return any(torch.allclose(one, other, rtol=rtol, atol=atol) for one, other in made if one.shape[1] > 0)


def _as_wide(values: Tensor, scores: Tensor) -> bool:
    return values.shape == scores.shape


def _tensor(value: Any) -> Tensor | None:
    """The first tensor of numbers in what a layer took or gave."""
    return next((part for part in leaves(value, Tensor) if part.is_floating_point() and not part.is_nested), None)


def _readable(shape: torch.Size | None, n: int) -> bool:
    return shape is not None and len(shape) > 1 and shape[0] == n and shape.numel() > 0


def _views(tensor: Tensor, batch: Batch) -> dict[View, Tensor]:
    """What an activation may be as one vector per input, copied."""
    if tensor.ndim <= 2:
        return {View("flatten"): (tensor if tensor.ndim == 2 else tensor[:, None]).clone()} if tensor.ndim else {}
    if tensor.ndim == 3:
        places = torch.arange(tensor.shape[1], device=tensor.device)
        if _mask_fits(tensor.shape, batch):
            places = places * (batch.given["attention_mask"].to(tensor.device) != 0)
        last = tensor.take_along_dim(places.expand(tensor.shape[:2]).amax(1)[:, None, None], 1)[:, 0]
        return {View("tokens"): tensor.mean(1), View("token"): tensor[:, 0].clone(), View("tokens", "last"): last}
    return {View("channels"): tensor.flatten(2).mean(2), View("tokens"): tensor.flatten(1, -2).mean(1)}


def _view(call: _Call) -> View:
    """How an activation of this layer is pooled: convolutions have their channels first, others last."""
    assert call.given is not None
    if len(call.given) == 2:
        return View("flatten")
    return View("channels" if call.before is not None and issubclass(call.before, _ConvNd) else "tokens")


def _counts_padding(call: _Call, batch: Batch) -> bool:
    """Whether a mean over tokens may count padding: there are a mask or lengths that reductions do not find."""
    known = any(word in str(name) for name in batch.given for word in ("mask", "lengths"))
    if call.given is None or _view(call).how != "tokens" or not known:
        return False
    return not _mask_fits(call.given, batch)


def _mask_fits(shape: torch.Size, batch: Batch) -> bool:
    return getattr(batch.given.get("attention_mask"), "shape", None) == shape[:-1]


def _width(shape: torch.Size, view: View) -> int:
    return shape[1 if view.how == "channels" else -1]
