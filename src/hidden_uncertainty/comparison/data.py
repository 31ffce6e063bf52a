"""The loaders that methods are compared on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..batches import Adapter, batches, require_repeatable, unpack


class Labelled:
    """A loader that remembers the labels it gave, so that they are in the order of the scores even if it shuffles.

    Args:
        loader: any iterable of batches.
        adapter: see `unpack`.

    Example:
        >>> loader = Labelled([(torch.zeros(2, 3), torch.tensor([5, 7]))])
        >>> for batch in loader:
        ...     pass
        >>> loader.label()
        tensor([5, 7])
    """

    def __init__(self, loader: Iterable[Any], adapter: Adapter | None = None) -> None:
        self.loader, self.adapter = loader, adapter
        self.labels: list[Tensor | None] = []

    def __iter__(self) -> Iterator[Any]:
        self.labels = []
        for item in self.loader:
            self.labels.append(unpack(item, self.adapter).label)
            yield item

    def label(self) -> Tensor | None:
        """All labels of the last pass, on the CPU; None when there were none."""
        found = [label.cpu() for label in self.labels if label is not None]
        if found and len(found) < len(self.labels):
            raise ValueError(f"only {len(found)} of {len(self.labels)} batches have labels: give all of them or none.")
        return torch.cat(found) if found else None

    def first(self, count: int) -> tuple[list[Any], list[int]]:
        """Batches of at least `count` inputs together, or all there are, as the loader gives them; and their sizes."""
        items: list[Any] = []
        sizes: list[int] = []
        for item in self.loader:
            items.append(item)
            sizes.append(len(unpack(item, self.adapter)))
            if sum(sizes) >= count:
                break
        return items, sizes


def check(name: str, loader: Iterable[Any], adapter: Adapter | None = None) -> None:
    """Raise, with the loader's name, where it cannot be read, can be read only once, or gives nothing.

    Example:
        >>> check("letters", [])
        Traceback (most recent call last):
        ValueError: letters: the loader gave no batches; ...
    """
    try:
        require_repeatable(loader, passes=2)
        next(batches(loader, adapter))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
