"""A part of a data set, held in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """Images with their labels.

    Args:
        images: (n, C, H, W), in [0, 1].
        labels: (n,).

    Example:
        >>> split = Split(torch.zeros(5, 1, 8, 8), torch.arange(5))
        >>> len(split), split[split.labels > 2].labels
        (5, tensor([3, 4]))
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"expected images (n, C, H, W) and labels (n,), got {tuple(self.images.shape)} and "
                f"{tuple(self.labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: slice | Tensor) -> Split:
        """Some of the images: a slice, a mask or a tensor of indices."""
        return Split(self.images[index], self.labels[index])

    def batches(self, size: int = 256) -> list[tuple[Tensor, Tensor]]:
        """The images in order, `size` at a time, as a loader would give them.

        Example:
            >>> [len(labels) for _, labels in Split(torch.zeros(5, 1, 8, 8), torch.arange(5)).batches(2)]
            [2, 2, 1]
        """
        return list(zip(self.images.split(size), self.labels.split(size), strict=True))
