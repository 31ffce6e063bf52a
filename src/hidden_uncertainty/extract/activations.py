"""What a term reads of what a layer returned: one row per input, without padding; and what is refused of it."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from ..model.batches import Batch
from ..model.outputs import select_masked
from ..reduce import Reduce


def activation_of(output: Any, reduce: Reduce, batch: Batch, layer: str, *, masked: bool = True) -> Tensor:
    """What is reduced of what a layer returned, (n, ...); tokens of which some are padding come pooled, as one."""
    activation, real = select_masked(output, reduce.select, f"layer {layer!r}")
    axis, samples = 0 if real is not None else reduce.batch_axis, batch.size  # packed sequences count their inputs
    if not -activation.dim() <= axis < activation.dim() or activation.shape[axis] != samples:
        fitting = [place for place, size in enumerate(activation.shape) if size == samples]
        hint = f"Its axis {fitting[0]} does: Reduce(batch_axis={fitting[0]}). Or choose" if fitting else "Choose"
        raise ValueError(
            f"layer {layer!r} gave {tuple(activation.shape)} for {samples} inputs; its "
            f"{'first dimension' if axis == 0 else f'axis {axis}'} must count the inputs. {hint} another layer, or "
            "another part of its output with select=; a single input needs a first dimension too: x[None]."
        )
    activation = activation.movedim(axis, 0)
    if not masked or reduce.how not in ("tokens", "token") or activation.dim() < 3:
        return activation
    if real is None:
        real = _mask(reduce, batch, activation.shape[1])
    traced = torch.compiler.is_compiling()  # a graph does not branch on what it is given
    if real is None or (not traced and bool(real.all())):
        return activation
    if real.dim() != activation.dim() - 1 and real.numel() == activation.shape[:-1].numel():
        real = real.reshape(activation.shape[:-1])  # such as (n, 1, 1, T)
    if real.shape != activation.shape[:-1]:
        raise ValueError(
            f"layer {layer!r} gave tokens {tuple(activation.shape[:-1])}, but the mask {reduce.mask!r} is of shape "
            f"{tuple(real.shape)}, as where a network adds tokens. Name a mask of these tokens with Reduce(mask=), or "
            "count all of them, also padding, with mask=None."
        )
    if reduce.how == "token":
        if not traced and not bool(real[:, reduce.token :][:, :1].all()):
            raise ValueError(
                f"layer {layer!r} is read at token {reduce.token}, which for some inputs is padding: a text would be "
                "scored differently beside longer ones. Take a token that is never padding, such as the first with "
                "reduce='token', or the last real one with Reduce('tokens', pool='last'), or the mean with 'tokens'."
            )
        return activation
    pooled = reduce.pooled(activation, real)
    return pooled.reshape(pooled.shape[0], *[1] * (activation.dim() - 2), pooled.shape[-1])


def _mask(reduce: Reduce, batch: Batch, tokens: int) -> Tensor | None:
    """Which tokens are real, as the batch says by a mask or by lengths (n,); None where it says nothing."""
    if reduce.mask is None:
        return None
    given = batch.given
    name = reduce.mask.removeprefix("~") if isinstance(reduce.mask, str) else reduce.mask
    mask = given.get(name)
    if isinstance(mask, Tensor):
        if not torch.compiler.is_compiling() and bool((mask < 0).any()):
            raise ValueError(
                f"the mask {name!r} has numbers below zero, as those that are added to attention scores: expected zero "
                "for padding and one for real tokens. Name another input with Reduce(mask=), or mask=None."
            )
        if mask.dim() == 1:
            mask = torch.arange(tokens, device=mask.device) < mask[:, None]
        return mask != 0 if name == reduce.mask else mask == 0
    if reduce.mask == "attention_mask":
        return None
    raise ValueError(f"mask={reduce.mask!r} names none of the network's inputs: {', '.join(map(repr, given))}.")


def refuse(what: str, wrong: Tensor, index: int | None) -> NoReturn:
    """Raise an error about inputs that have something wrong, by a mask (n, ...).

    Example:
        >>> refuse("layer 'fc' gave NaN", torch.tensor([True, False]), None)
        Traceback (most recent call last):
        ValueError: layer 'fc' gave NaN for 1 of 2 inputs: ...
    """
    bad, where = int(wrong.reshape(len(wrong), -1).any(1).sum()), "" if index is None else f" in batch {index}"
    raise ValueError(
        f"{what} for {bad} of {len(wrong)} inputs{where}: look for them in the inputs, or for an overflow in the "
        "network's precision."
    )


def check_count(before: int | None, now: int) -> None:
    """Raise unless a loader gave as many inputs in this pass as in the one before."""
    if before is not None and before != now:
        raise ValueError(
            f"the loader gave {before:,} inputs in one pass and {now:,} in the next: it must give the same ones each "
            "time (in any order). Turn off drop_last, or sampling with replacement."
        )
