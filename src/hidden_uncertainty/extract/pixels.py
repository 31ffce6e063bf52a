"""`Pixels`: how networks that predict for every pixel are treated; and the sample of pixels that is fitted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from numbers import Real
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from ..io import is_int, plain
from ..model.tasks import Task

Resolution = Literal["output", "latent"]
HIGHEST = 1 << 44  # random keys lie below; a class above them still fits into 64 bits
VALUES = "values"  # the column of what pixels are conditioned on
GROUPS, KEYS = "group", "key"  # columns of a reservoir's own


@dataclass(frozen=True)
class Pixels:
    """For `LatentDensity(..., pixels=Pixels())`: every pixel is scored, so that scores are maps (n, H, W).

    A layer's output (n, C, h, w), or (n, h, w, C) with `reduce="tokens"`, is one vector per place; maps of another size
    than the scores' are interpolated bilinearly (`align_corners=False`). Neighbouring pixels are alike, so a density is
    fitted to a uniform sample of the pixels of each class (for numbers, of all), as large as `per_class` and an even
    share of `reservoir` allow. p(ŷ) is that of all pixels. Which are drawn depends on `seed` and on an image's content,
    not on its place in the loader.

    Images may be exchangeable where their pixels are not, so thresholds are calibrated over images: an image's score is
    the one that a `share` of its pixels exceeds, and with `detector.threshold(0.05)` at most one new image in twenty
    has more pixels above than that share, of those whose label would not be ignored.

    Args:
        resolution: the grid of the scores: the network's `"output"`, or `"latent"`, that of the layer itself (with
            several layers, of the last that `combine` counts); class scores, or numbers, are interpolated to it.
        patch: k, odd: the k x k places around each one are one vector of C·k² numbers, in the order of
            `torch.nn.functional.unfold`, zeros beyond the edge as in a convolution.
        per_class: the most pixels drawn per class, for each image that has it, on average over these images.
        reservoir: the most pixels that a density is fitted to; that many vectors are held before they are reduced, on
            the device of the network, and up to as many again while they are sorted out.
        ignore: labels of pixels that are neither drawn, counted nor calibrated with: a value, several, or None. Pixels
            whose label is NaN never are. Labels of another size are read at the nearest pixel.
        share: of an image's pixels that may exceed the threshold without the image counting as a false alarm.

    Example:
        >>> Pixels.from_config(Pixels(patch=3, ignore=(0, 255)).config())
        Pixels(resolution='output', patch=3, per_class=500, reservoir=100000, ignore=(0, 255), share=0.01)
    """

    resolution: Resolution = "output"
    patch: int = 1
    per_class: int = 500
    reservoir: int = 100_000
    ignore: float | Sequence[float] | None = 255
    share: float = 0.01

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        if self.resolution not in get_args(Resolution):
            raise ValueError(f"resolution must be one of {get_args(Resolution)}, not {self.resolution!r}.")
        for name in ("patch", "per_class", "reservoir"):
            value = getattr(self, name)
            if not is_int(value) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}.")
        if self.patch % 2 == 0:
            raise ValueError(f"patch must be odd, so that it has a middle, not {self.patch}.")
        if not 0 <= self.share < 1:
            raise ValueError(f"share is a share of pixels, from 0 to below 1, not {self.share!r}.")
        if isinstance(self.ignore, Sequence):
            object.__setattr__(self, "ignore", tuple(self.ignore))
        wrong = [value for value in self.ignored if not isinstance(value, Real) or value != value]
        if wrong:
            raise ValueError(f"ignore takes label values, not {wrong[0]!r}; labels of NaN are ignored anyway.")

    @property
    def ignored(self) -> tuple[float, ...]:
        """The labels to ignore."""
        if self.ignore is None:
            return ()
        return tuple(self.ignore) if isinstance(self.ignore, Sequence) else (self.ignore,)

    def valid(self, label: Tensor) -> Tensor:
        """Which pixels count, by their labels."""
        if not label.is_floating_point():
            label = label.long()  # compared as bytes, 255 would be -1
        valid = ~label.isnan()
        for value in self.ignored:
            valid &= label != value
        return valid

    def image_score(self, scores: Tensor) -> Tensor:
        """The lowest of an image's scores (m,) that at most a `share` of them exceeds."""
        above = int(self.share * len(scores))
        above += (above + 1) / len(scores) <= self.share  # 0.29 * 100 rounds to just below 29
        return scores.kthvalue(len(scores) - above).values

    def config(self) -> dict[str, Any]:
        """The arguments, ready for JSON."""
        ignore = list(self.ignore) if isinstance(self.ignore, Sequence) else self.ignore
        return {**asdict(self), "ignore": ignore}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The inverse of `config`."""
        return cls(**config)


class Reservoir:
    """Uniform samples of a stream of rows, one per group, of bounded size altogether: the rows of the lowest keys.

    Groups share the room evenly (`share_evenly`). Which rows are kept depends on their keys alone, not on their order
    or on how they were batched. A quarter more are held on the way.
    """

    def __init__(self, size: int, groups: int) -> None:
        self.size, self.held = size, 0
        self.seen = torch.zeros(groups, dtype=torch.long, device="cpu")  # rows of each group, kept or not
        self._columns: dict[str, list[Tensor]] = {}  # of the rows held, with their groups and keys
        self._limit: Tensor | None = None  # (groups,), below which a key must lie to be kept

    def add(self, group: Tensor, keys: Tensor, read: Callable[[Tensor], Mapping[str, Tensor]]) -> None:
        """Add rows by their groups and random keys, (m,); `read` gives the columns of those kept, by index."""
        self.seen += group.bincount(minlength=len(self.seen)).cpu()
        new = torch.arange(len(keys), device=keys.device)
        if self._limit is not None:
            new = new[keys < self._limit[group]]
        if self.held + len(new) > self.size + self.size // 4:
            # Before rows are read: one image may have more pixels than there is room for.
            known = ((GROUPS, group[new]), (KEYS, keys[new]))
            order = self._lowest(*(torch.cat([*self._columns.get(name, []), part]) for name, part in known))
            new = new[order[order >= self.held] - self.held]
            self._keep(order[order < self.held])
        if len(new) or not self._columns:
            for name, values in {**read(new), GROUPS: group[new], KEYS: keys[new]}.items():
                self._columns.setdefault(name, []).append(values)
            self.held += len(new)

    def rows(self, most: Tensor | None = None) -> dict[str, Tensor]:
        """The columns of the rows kept, at most so many of each group, in the random order of their keys."""
        if not self._columns:
            return {}
        keys = torch.cat(self._columns[KEYS])
        order = self._lowest(torch.cat(self._columns[GROUPS]), keys, most)
        self._keep(order[keys[order].argsort(stable=True)])
        return {name: parts[0] for name, parts in self._columns.items() if name not in (GROUPS, KEYS)}

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
        for parts in self._columns.values():
            joined = torch.cat(parts)
            parts.clear()  # before the rows kept are copied
            parts.append(joined[order.to(joined.device)])
        self.held = len(order)


def share_evenly(counts: Tensor, size: int) -> Tensor:
    """How many of each group to keep, at most `size` together: all, or a number that is the same for all others."""
    low, high = 1, max(1, int(counts.max()))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(counts.clamp(max=middle).sum()) <= size else (low, middle - 1)
    return counts.clamp(max=low)


class Sampler:
    """Draws from one image after the other, by its content and a seed, and counts what all their pixels have."""

    def __init__(self, pixels: Pixels, task: Task, classes: int | None, *, seed: int) -> None:
        self.pixels, self.task, self.classes, self.seed = pixels, task, classes, seed
        self._kept = Reservoir(pixels.reservoir, classes or 1)
        self._images = torch.zeros_like(self._kept.seen)  # that have pixels of each class

    def add(self, image: int, values: Tensor, valid: Tensor, read: Callable[[Tensor], Mapping[str, Tensor]]) -> None:
        """Draw from an image, by a digest of its content; `read` gives the columns to keep of some pixels (m,).

        What the method is conditioned on, and which pixels count, are (H·W,).
        """
        pixels = valid.nonzero()[:, 0]
        if len(pixels) == 0:
            return
        values = values[pixels]
        group = _checked(values, self.classes or 0) if self.task.discrete else torch.zeros_like(pixels)
        # By the image's content: the same wherever in whatever batch it comes. Whole numbers, since single precision
        # would give a million pixels the same keys.
        digest = int.from_bytes(blake2b(f"{self.seed},{image}".encode(), digest_size=8).digest(), "little")
        generator = torch.Generator(values.device).manual_seed(digest >> 1)
        keys = torch.randint(HIGHEST, (len(pixels),), generator=generator, device=values.device)
        before = self._kept.seen.clone()
        self._kept.add(group, keys, lambda some: {**read(pixels[some]), VALUES: values[some]})
        self._images += self._kept.seen > before

    def drawn(self) -> tuple[dict[str, Tensor], Tensor]:
        """The columns of the pixels drawn, shuffled; and of all, how many each class has, or a sample of numbers."""
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
