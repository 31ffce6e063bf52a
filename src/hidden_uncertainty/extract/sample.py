"""Which pixels a density is fitted to: of each class a uniform sample of its pixels in all images, of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b

import torch
from torch import Tensor

from ..model.tasks import Task
from .pixels import Pixels

HIGHEST = 1 << 44  # random keys lie below; a class above them still fits into 64 bits
VALUES = "values"  # the column of what pixels are conditioned on


def generator_of(seed: int, image: int, device: torch.device) -> torch.Generator:
    """Random numbers of one image, by a digest of its content: the same wherever in whatever batch it comes."""
    digest = blake2b(f"{seed},{image}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)


def random_keys(count: int, generator: torch.Generator) -> Tensor:
    """Uniform whole numbers, (count,): whole, since single precision would give a million pixels the same keys."""
    return torch.randint(HIGHEST, (count,), generator=generator, device=generator.device)


class Reservoir:
    """Uniform samples of a stream of rows, one per group, of bounded size altogether: the rows of the lowest keys.

    Groups share the room evenly (`share_evenly`). Which rows are kept depends on their keys alone, not on their order
    or on how they were batched.

    Args:
        size: the most rows kept, unless there are more groups; a quarter more are held on the way.
        groups: how many there are.

    Example:
        >>> reservoir = Reservoir(3, groups=2)
        >>> for key in (3, 1, 2, 4):
        ...     z = torch.tensor([10 * key])
        ...     reservoir.add(torch.tensor([key // 4]), torch.tensor([key]), lambda rows: {"z": z[rows]})
        >>> reservoir.rows()["z"]
        tensor([10, 20, 40])
    """

    def __init__(self, size: int, groups: int) -> None:
        self.size, self.held = size, 0
        self.seen = torch.zeros(groups, dtype=torch.long, device="cpu")  # rows of each group, kept or not
        self._group: list[Tensor] = []
        self._keys: list[Tensor] = []
        self._columns: dict[str, list[Tensor]] = {}
        self._limit: Tensor | None = None  # (groups,), below which a key must lie to be kept

    def add(self, group: Tensor, keys: Tensor, read: Callable[[Tensor], Mapping[str, Tensor]]) -> None:
        """Add rows.

        Args:
            group: of each, (m,).
            keys: random, below `HIGHEST`, (m,).
            read: gives the columns (k, ...) of some rows, by their indices (k,), the same ones each time; it is called
                with those that are kept alone.
        """
        self.seen += group.bincount(minlength=len(self.seen)).cpu()
        new = torch.arange(len(keys), device=keys.device)
        if self._limit is not None:
            new = new[keys < self._limit[group]]
        if self.held + len(new) > self.size + self.size // 4:
            # Before rows are read: one image may have more pixels than there is room for.
            order = self._lowest(torch.cat([*self._group, group[new]]), torch.cat([*self._keys, keys[new]]))
            new = new[order[order >= self.held] - self.held]
            self._keep(order[order < self.held])
        if len(new) or not self._keys:
            self._group.append(group[new])
            self._keys.append(keys[new])
            for name, values in read(new).items():
                self._columns.setdefault(name, []).append(values)
            self.held += len(new)

    def rows(self, most: Tensor | None = None) -> dict[str, Tensor]:
        """The columns of the rows kept, in the random order of their keys; empty when none was added.

        Args:
            most: keep no more of each group than these, (groups,).
        """
        if not self._keys:
            return {}
        keys = torch.cat(self._keys)
        order = self._lowest(torch.cat(self._group), keys, most)
        self._keep(order[keys[order].argsort(stable=True)])
        return {name: parts[0] for name, parts in self._columns.items()}

    def _lowest(self, group: Tensor, keys: Tensor, most: Tensor | None = None) -> Tensor:
        """Indices of the rows to keep, of those held, group by group."""
        room = share_evenly(self.seen, self.size)
        room = (room if most is None else room.minimum(most)).to(keys.device)
        counts = group.bincount(minlength=len(room))
        first = counts.cumsum(0) - counts
        order = (group * HIGHEST + keys).argsort(stable=True)
        last = keys[order[(first + room - 1).clamp(0, len(order) - 1)]]
        self._limit = torch.where(room < self.seen.to(keys.device), last, HIGHEST)
        rank = torch.arange(len(order), device=order.device) - first[group[order]]
        return order[rank < room[group[order]]]

    def _keep(self, order: Tensor) -> None:
        if not self._keys:
            return
        self._group, self._keys = [torch.cat(self._group)[order]], [torch.cat(self._keys)[order]]
        for parts in self._columns.values():
            joined = torch.cat(parts)
            parts.clear()  # before the rows kept are copied
            parts.append(joined[order.to(joined.device)])
        self.held = len(order)


def share_evenly(counts: Tensor, size: int) -> Tensor:
    """How many of each group to keep, at most `size` together: all, or a number that is the same for all others.

    Example:
        >>> share_evenly(torch.tensor([5, 100, 50]), 45)
        tensor([ 5, 20, 20])
    """
    low, high = 1, max(1, int(counts.max()))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(counts.clamp(max=middle).sum()) <= size else (low, middle - 1)
    return counts.clamp(max=low)


class Sampler:
    """Draws from one image after the other, and counts what all their pixels have.

    Args:
        pixels: how many to draw.
        task: whether pixels are classes, of which each has its sample, or numbers.
        classes: how many there are; None for numbers.
        seed: with an image's content, decides which of its pixels are drawn.
    """

    def __init__(self, pixels: Pixels, task: Task, classes: int | None, *, seed: int) -> None:
        self.pixels, self.task, self.classes, self.seed = pixels, task, classes, seed
        self._kept = Reservoir(pixels.reservoir, classes or 1)
        self._images = torch.zeros_like(self._kept.seen)  # that have pixels of each class

    def add(self, image: int, values: Tensor, valid: Tensor, read: Callable[[Tensor], Mapping[str, Tensor]]) -> None:
        """Draw from an image.

        Args:
            image: a digest of its content.
            values: what the method is conditioned on, a class or a number per pixel, (H·W,).
            valid: which pixels count, (H·W,).
            read: gives the columns to keep of some pixels (m,); called with those that are kept alone.
        """
        pixels = valid.nonzero()[:, 0]
        if len(pixels) == 0:
            return
        values = values[pixels]
        group = _checked(values, self.classes or 0) if self.task.discrete else torch.zeros_like(pixels)
        keys = random_keys(len(pixels), generator_of(self.seed, image, values.device))
        before = self._kept.seen.clone()
        self._kept.add(group, keys, lambda some: {**read(pixels[some]), VALUES: values[some]})
        self._images += self._kept.seen > before

    def drawn(self) -> tuple[dict[str, Tensor], Tensor]:
        """The columns of the pixels drawn, shuffled, and what all pixels that count have.

        That is how many there are of each class (C,), or a uniform sample of numbers.
        """
        whole = self._kept.rows()
        if not whole:
            raise ValueError(
                f"no pixel counts: no image came, or every label is one to ignore ({self.pixels.ignore}) or NaN. Check "
                "the labels and Pixels(ignore=)."
            )
        population = self._kept.seen if self.task.discrete else whole[VALUES]
        rows = self._kept.rows(self.pixels.per_class * self._images)
        del rows[VALUES]
        return rows, population


def _checked(label: Tensor, classes: int) -> Tensor:
    if label.is_floating_point():
        raise ValueError(f"labels of classes are whole numbers, but the loader gave {label.dtype}.")
    low, high = int(label.min()), int(label.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"the labels are {low} to {high}, but the network has {classes} classes, 0 to {classes - 1}: name the "
            "labels to leave out with Pixels(ignore=)."
        )
    return label.long()
