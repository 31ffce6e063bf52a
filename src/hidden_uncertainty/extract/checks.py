"""What is refused of what a loader, a layer or a network gave."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor


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
