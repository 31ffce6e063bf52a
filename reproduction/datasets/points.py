"""Inputs with the numbers to predict from them, held in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Points:
    """Inputs with their targets.

    Args:
        x: (n, d).
        y: (n,).

    Example:
        >>> points = Points(torch.zeros(5, 2), torch.arange(5.0))
        >>> len(points), points[points.y > 2].y
        (5, tensor([3., 4.]))
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dim() != 2 or self.y.shape != self.x.shape[:1]:
            raise ValueError(f"expected x (n, d) and y (n,), got {tuple(self.x.shape)} and {tuple(self.y.shape)}.")

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: slice | Tensor) -> Points:
        """Some of the points: a slice, a mask or a tensor of indices."""
        return Points(self.x[index], self.y[index])

    def batches(self, size: int = 256) -> list[tuple[Tensor, Tensor]]:
        """The points in order, `size` at a time, as a loader yields them.

        Example:
            >>> [len(y) for _, y in Points(torch.zeros(5, 2), torch.arange(5.0)).batches(2)]
            [2, 2, 1]
        """
        return list(zip(self.x.split(size), self.y.split(size), strict=True))

    def divide(self, share: float, *, seed: int = 0) -> tuple[Points, Points]:
        """Split off a share of the points at random: that share, and the rest.

        Args:
            share: above 0 and below 1, and such that neither part is empty.
            seed: of the draw.

        Example:
            >>> unseen, rest = Points(torch.zeros(5, 2), torch.arange(5.0)).divide(0.2)
            >>> len(unseen), len(rest)
            (1, 4)
        """
        count = round(share * len(self)) if 0 < share < 1 else 0
        if not 0 < count < len(self):
            raise ValueError(f"share must leave at least one of the {len(self)} points in both parts, got {share}.")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed), device="cpu").to(self.y.device)
        return self[order[:count]], self[order[count:]]
