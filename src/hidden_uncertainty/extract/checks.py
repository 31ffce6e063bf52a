"""What is refused of what a loader, a layer or a network gave."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from ..model.batches import Batch
from ..reduce import Reduce


def refuse_rows(activation: Tensor, layer: str, samples: int) -> NoReturn:
    """Raise an error about what a layer gave, which has not one row per input."""
    raise ValueError(
        f"layer {layer!r} gave {tuple(activation.shape)} for {samples} inputs; its first dimension must count the "
        "inputs. Choose another layer, or another part of its output with select=; a single input needs a first "
        "dimension too: x[None]."
    )


def check_padding(activation: Tensor, reduce: Reduce, batch: Batch, layer: str) -> None:
    """Raise where tokens that `attention_mask` calls padding would be part of what is read of a layer (n, T, W).

    Of reductions that read tokens.
    """
    mask = batch.kwargs.get("attention_mask")
    if activation.dim() != 3 or not isinstance(mask, Tensor):
        return
    read = mask if reduce.how == "tokens" else mask[:, reduce.token :][:, :1]
    if mask.shape != activation.shape[:2] or bool(read.all()):
        return
    what = "averaged over its tokens" if reduce.how == "tokens" else f"read at token {reduce.token}"
    raise ValueError(
        f"layer {layer!r} is {what}, but attention_mask says that some of these are padding, which would count: a text "
        "would be scored differently beside longer ones. Give texts of one length together, without padding; or take a "
        "token that is never padding, such as the first with reduce='token'; or choose a layer without tokens, such as "
        "a pooler."
    )


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
