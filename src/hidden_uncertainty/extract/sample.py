"""Which pixels a density is fitted to: a few per class and image, and of these a uniform sample of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b

import torch
from torch import Tensor

from ..model.tasks import Task
from .pixels import Pixels

HIGHEST = 1 << 44  # random keys lie below; a class above them still fits into 64 bits


def generator_of(seed: int, image: int, device: torch.device) -> torch.Generator:
    """Random numbers of one image, the same in whatever batch it comes."""
    digest = blake2b(f"{seed},{image}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)


def random_keys(count: int, generator: torch.Generator) -> Tensor:
    """Uniform whole numbers, (count,): whole, since single precision would give a million pixels the same keys."""
    return torch.randint(HIGHEST, (count,), generator=generator, device=generator.device)


def draw(group: Tensor, keys: Tensor, counts: Tensor, most: int) -> Tensor:
    """At most that many pixels per group, those of the lowest keys.

    Args:
        group: of each pixel, (m,).
        keys: random, (m,).
        counts: pixels of each group, (G,).
        most: per group.

    Example:
        >>> keys = random_keys(6, torch.Generator().manual_seed(0))
        >>> group = torch.tensor([0, 1, 0, 0, 1, 2])
        >>> group[draw(group, keys, group.bincount(), most=2)]
        tensor([0, 0, 1, 1, 2])
    """
    # Sorting all pixels would take longer than a network on a GPU: those that cannot be among the lowest are left out.
    # Eight deviations more than wanted are expected to be left, so that no group runs short.
    enough = most + 8 * most**0.5 + 16
    limit = ((enough / counts.clamp(min=1)).clamp(max=1) * HIGHEST).long()  # (G,)
    near = (keys < limit[group]).nonzero()[:, 0]
    near = near[(group[near] * HIGHEST + keys[near]).argsort(stable=True)]
    sizes = group[near].bincount(minlength=len(counts))
    rank = torch.arange(len(near), device=near.device) - (sizes.cumsum(0) - sizes)[group[near]]
    return near[rank < most]


class Reservoir:
    """A uniform sample of a stream of rows, of bounded size: the rows of the lowest random keys.

    Which rows are kept depends on their keys alone, not on their order or on how they were batched.

    Args:
        size: the most rows kept; a quarter more, and what one call adds, are held on the way.

    Example:
        >>> reservoir = Reservoir(2)
        >>> for row in ([3, 30], [1, 10], [2, 20]):
        ...     reservoir.add(torch.tensor(row[:1]), {"z": torch.tensor(row[1:])})
        >>> reservoir.rows()
        {'z': tensor([10, 20])}
    """

    def __init__(self, size: int) -> None:
        self.size, self.held = size, 0
        self._keys: list[Tensor] = []
        self._columns: dict[str, list[Tensor]] = {}
        self._limit: Tensor | None = None

    def wants(self, keys: Tensor) -> Tensor:
        """Which rows of these keys may be kept, (m,): no others need be made."""
        return torch.ones_like(keys, dtype=torch.bool) if self._limit is None else keys < self._limit

    def add(self, keys: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Add rows with their keys (m,): columns (m, ...), the same ones each time."""
        if not self._keys:
            self._columns = {name: [] for name in columns}
        self._keys.append(keys)
        for name, values in columns.items():
            self._columns[name].append(values)
        self.held += len(keys)
        if self.held > self.size + self.size // 4:
            self._shrink()

    def rows(self) -> dict[str, Tensor]:
        """The columns of the rows kept, in the random order of their keys; empty when none was added."""
        if not self._keys:
            return {}
        self._shrink()
        return {name: parts[0] for name, parts in self._columns.items()}

    def _shrink(self) -> None:
        keys, order = torch.cat(self._keys).sort(stable=True)
        order = order[: self.size]
        if len(keys) >= self.size:
            self._limit = keys[self.size - 1]
        self._keys, self.held = [keys[: self.size]], len(order)
        for parts in self._columns.values():
            joined = torch.cat(parts)
            parts.clear()  # before the rows kept are copied
            parts.append(joined[order.to(joined.device)])


class Sampler:
    """Draws from one image after the other, and counts what all their pixels have.

    Args:
        pixels: how many to draw and keep.
        task: whether pixels are classes, which are counted and balanced, or numbers.
        classes: how many there are; None for numbers.
        seed: with an image's number, decides which of its pixels are drawn.
    """

    def __init__(self, pixels: Pixels, task: Task, classes: int | None, *, seed: int) -> None:
        self.pixels, self.task, self.classes, self.seed = pixels, task, classes, seed
        self._rows, self._numbers = Reservoir(pixels.reservoir), Reservoir(pixels.reservoir)
        self._counts: Tensor | int = 0

    def add(self, image: int, values: Tensor, valid: Tensor, read: Callable[[Tensor], Mapping[str, Tensor]]) -> None:
        """Draw from an image.

        Args:
            image: its number.
            values: what the method is conditioned on, a class or a number per pixel, (H·W,).
            valid: which pixels count, (H·W,).
            read: gives the columns to keep of some pixels (m,); called with those that are kept alone.
        """
        pixels = valid.nonzero()[:, 0]
        if len(pixels) == 0:
            return
        values = values[pixels]
        generator = generator_of(self.seed, image, values.device)
        keys = random_keys(len(pixels), generator)
        if self.task.discrete:
            group = _checked(values, self.classes or 0)
        else:
            group = torch.zeros_like(pixels)
            some = self._numbers.wants(keys)
            self._numbers.add(keys[some], {"values": values[some]})
        counts = group.bincount(minlength=self.classes or 1)
        self._counts = self._counts + counts
        drawn = draw(group, keys, counts, self.pixels.per_class)
        # Keys of their own: the lowest of many pixels are lower than the lowest of few.
        keys = random_keys(len(drawn), generator)
        kept = self._rows.wants(keys)
        self._rows.add(keys[kept], read(pixels[drawn[kept]]))

    def rows(self) -> dict[str, Tensor]:
        """The columns of the pixels kept, shuffled."""
        rows = self._rows.rows()
        if not rows:
            raise ValueError(
                f"no pixel counts: every label in the loader is one to ignore ({self.pixels.ignore}) or NaN. Check the "
                "labels and Pixels(ignore=)."
            )
        return rows

    def population(self) -> Tensor:
        """What all pixels that count have: how many there are of each class (C,), or a uniform sample of numbers."""
        if not self.task.discrete:
            return self._numbers.rows()["values"]
        assert isinstance(self._counts, Tensor)  # where no pixel counts, `rows` has raised
        return self._counts


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
