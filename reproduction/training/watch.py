"""Early stopping: when networks in training stop, and which weights they keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

Criterion = Literal["loss", "accuracy"]
Keep = Literal["best", "last"]
CRITERIA: tuple[Criterion, ...] = ("loss", "accuracy")


class Watch:
    """Early stopping of several networks at once, by every criterion at once.

    A network is done by a criterion once that has not improved for `patience` epochs. Its weights of the best epoch and
    of the last are kept, so that one training serves all ways to stop.

    Args:
        live: what training changes, (networks, ...) each; read, never written.
        patience: epochs without improvement before a network is done.
        criteria: what is watched.

    Example:
        >>> weight = torch.zeros(1, 1)
        >>> watch = Watch([weight], patience=1, criteria=("loss",))
        >>> for epoch, loss in enumerate([2.0, 1.0, 3.0]):
        ...     _ = weight.fill_(epoch)
        ...     watch.update({"loss": torch.tensor([loss])})
        >>> watch.done, watch.kept["loss", "best"][0].item(), watch.kept["loss", "last"][0].item()
        (True, 1.0, 2.0)
    """

    def __init__(self, live: Sequence[Tensor], patience: int, criteria: Sequence[Criterion] = CRITERIA) -> None:
        self.live, self.patience = list(live), patience
        count, device = len(live[0]), live[0].device
        self.lowest = {name: torch.full((count,), math.inf, device=device) for name in criteria}
        self.since = {name: torch.zeros(count, dtype=torch.long, device=device) for name in criteria}
        self.epochs = {name: torch.zeros(count, dtype=torch.long, device=device) for name in criteria}
        keeps: tuple[Keep, ...] = ("best", "last")
        self.kept = {(name, keep): [t.clone() for t in live] for name in criteria for keep in keeps}

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """What is watched."""
        return tuple(self.lowest)

    @property
    def done(self) -> bool:
        """Whether every network has stopped by every criterion."""
        return bool(torch.stack([since >= self.patience for since in self.since.values()]).all())

    @torch.no_grad()
    def update(self, values: Mapping[Criterion, Tensor]) -> None:
        """Record an epoch.

        Args:
            values: of each criterion, one per network, lower is better; NaN never improves.
        """
        for name, lowest in self.lowest.items():
            going = self.since[name] < self.patience
            better = going & (values[name] < lowest)
            lowest.copy_(torch.where(better, values[name], lowest))
            self.since[name].copy_(torch.where(better, 0, self.since[name] + going))
            self.epochs[name] += going
            for keep, which in (("best", better), ("last", going)):
                for kept, live in zip(self.kept[name, keep], self.live, strict=True):  # type: ignore[index]
                    kept.copy_(torch.where(which.view(-1, *[1] * (live.dim() - 1)), live, kept))
